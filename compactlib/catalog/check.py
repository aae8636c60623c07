# SPDX-License-Identifier: Apache-2.0
"""Recovery, verification and reclaim of the update log, over a shared reader.

The log must hold a record for every version from its earliest to its latest, and no record above the latest. Only the
earliest record is a snapshot, and only if the log was ever cut. Activation times ascend strictly. Recovery raises the
first contradiction, so it never accepts a shorter history for the whole; verification collects all contradictions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs

from compactlib.budget import Budget
from compactlib.catalog import keys
from compactlib.catalog.errors import ObjectNotFound, RecordMissing
from compactlib.catalog.history import RetainedVersions, is_far_above
from compactlib.catalog.records import LEASES, TERMS, TIMES
from compactlib.catalog.schema import EMPTY, Catalog
from compactlib.catalog.timestamp import Timestamp
from compactlib.catalog.update_log import LogState, UpdateLog
from compactlib.errors import BudgetSpent, Busy, CorruptData, Unsupported
from compactlib.kv import Delete
from compactlib.kv.cell import Cell
from compactlib.report import Finding, VerifyReport

_MAX_READS = 100
_RECLAIM_BATCH = 500
Damage = CorruptData | Unsupported


# ---------------------------------------------------------------------------------------------------------- the reader


@attrs.frozen
class Read:
    """The result of reading a version from the log.

    Attributes:
        catalog: the catalog of this version; `None` if this record or an earlier one cannot be read. The reader reuses
            the object: its content changes with the next version.
        payload: the stored update; `None` for a snapshot.
        size: bytes of key and record.
    """

    version: int
    catalog: Catalog | None
    payload: bytes | None = None
    size: int = 0
    problem: Damage | None = None


def read_versions(log: UpdateLog, state: LogState, above: Catalog = EMPTY) -> Iterator[Read]:
    """Yield a `Read` for every version from the earliest to the latest, and for every stray record above the latest.

    Args:
        log: the log to read.
        state: the log's marks.
        above: begin after this version, unless the log already begins above it.

    Raises:
        CorruptData: a key under the prefix of updates has no version.
    """
    expected = max(above.version + 1, state.earliest)
    growing: Catalog | None = above.copy()
    for version, key, record in log.entries(expected):
        for missing in range(expected, min(version, state.latest + 1)):
            growing = None
            yield Read(missing, None, problem=_missing(missing))
        expected = max(expected, version + 1)
        size = len(key) + len(record)
        if version > state.latest:
            yield Read(version, None, size=size, problem=_damaged(version, f"{state.latest}, the latest version",
                                                                  f"a record of version {version}"))
            continue
        try:
            found = log.decode(version, key, record)
            payload = None if isinstance(found, Catalog) else found[1]
            if isinstance(found, Catalog) != (version == state.earliest):
                what = ("a snapshot", "an update")
                expects, finds = what if version == state.earliest else what[::-1]
                raise _damaged(version, expects, finds)
            if isinstance(found, Catalog):
                growing = found
            elif growing is not None:
                if found[0].activation <= growing.activation:
                    raise _damaged(version, f"an activation above {growing.activation}", str(found[0].activation))
                try:
                    growing.apply(found[0])
                except ObjectNotFound as error:
                    raise _damaged(version, f"changes of version {version - 1}", str(error)) from error
        except (CorruptData, Unsupported) as error:
            growing = None
            yield Read(version, None, size=size, problem=error)
        else:
            yield Read(version, growing, payload, size)
    for missing in range(expected, state.latest + 1):
        yield Read(missing, None, problem=_missing(missing))


def _missing(version: int) -> RecordMissing:
    return RecordMissing(key=keys.update_key(version).decode(), version=version,
                         expected=f"the record of version {version}")


def _damaged(version: int, expected: str, found: str) -> CorruptData:
    return CorruptData(path=keys.update_key(version).decode(), offset=12, expected=expected, found=found)


# ------------------------------------------------------------------------------------------------------------ recovery


def recover_history(log: UpdateLog, known: RetainedVersions | None = None,
                    state: LogState | None = None) -> RetainedVersions:
    """Return the history in the log; version 0 alone if the log is empty. O(new versions), in pages.

    Re-reads if another process appends or cuts at the same time.

    Args:
        log: the log to read.
        known: an earlier result; returned unchanged if the log has no newer version, at the cost of one request.
        state: the log's marks, if the caller has just read them.

    Raises:
        RecordMissing: a version, a mark or a piece of a snapshot is missing.
        CorruptData: a record is damaged, or contradicts another record.
        Unsupported: a later release wrote a record.
        Busy: each attempt to read the log met a new cut or append.
    """
    known = RetainedVersions() if known is None else known
    if state is None or state.latest < known.latest:  # `state` was read before `known`
        state = log.state()
    for _ in range(_MAX_READS):
        try:
            return _read_on(log, state, known)
        except (CorruptData, Unsupported):
            again = log.state()
            if (again.earliest, again.latest) == (state.earliest, state.latest):
                raise
            state = again
    raise Busy(f"the catalog's log was cut or grew {_MAX_READS} times while it was read; try when there is less load")


def _read_on(log: UpdateLog, state: LogState, known: RetainedVersions) -> RetainedVersions:
    if state.latest < known.latest:
        raise RecordMissing(key=keys.LATEST.decode(), version=known.latest, expected=f"version {known.latest}, which "
                            f"the log had before; it ends at {state.latest} now")
    updates: list[tuple[Timestamp, bytes]] = []
    catalogs = [known.catalog(known.latest)]
    for read in read_versions(log, state, catalogs[0]) if state.latest > known.latest else ():
        if read.problem is not None or read.catalog is None:
            raise read.problem or AssertionError(f"version {read.version} has neither a catalog nor a problem")
        if read.payload is None:  # the log begins above the known versions
            updates, catalogs = [], [read.catalog.copy()]
            known = RetainedVersions(catalogs[0])
            continue
        updates.append((read.catalog.activation, read.payload))
        if read.version == state.latest or is_far_above(catalogs[-1], read.catalog):
            catalogs.append(read.catalog.copy())
    found = known.followed_by(updates, catalogs[1:])
    return found.beginning_with(found.catalog(state.earliest)) if state.earliest > found.earliest else found


# -------------------------------------------------------------------------------------------------------- verification


def verify_log(log: UpdateLog, history: RetainedVersions, budget: Budget) -> VerifyReport:
    """Read every record, and compare the log with `history`, the versions in memory.

    Re-reads if another process appends or cuts at the same time.

    Raises:
        BudgetSpent: the budget ended.
        Busy: each attempt to read the log met a new cut or append.
    """
    for _ in range(_MAX_READS):
        found = _Verification(log, budget)
        state = found.versions(history)
        if found.findings and state is not None:
            again = log.state()
            if (again.earliest, again.latest) != (state.earliest, state.latest):
                continue
        found.rest()
        return VerifyReport(tuple(found.findings), found.records, found.bytes_read)
    raise Busy(f"the catalog's log grew or was cut {_MAX_READS} times while it was read; try when there is less load")


class _Verification:
    """A pass over the log, with its findings and counters."""

    def __init__(self, log: UpdateLog, budget: Budget) -> None:
        self.findings: list[Finding] = []
        self.records = 0
        self.bytes_read = 0
        self._log = log
        self._budget = budget

    def versions(self, history: RetainedVersions) -> LogState | None:
        """Read every version; return the log's marks, `None` if they are damaged."""
        state = None
        with self._collecting():
            state = self._log.state()
            for read in read_versions(self._log, state):
                self._count(read.size)
                if read.problem is not None:
                    self._add_damage(read.problem)
                elif history.has(read.version) and not (
                        read.catalog == history.catalog(read.version) if read.payload is None else
                        read.version == history.earliest or read.payload == history.payload(read.version)):
                    self.findings.append(Finding("order", keys.update_key(read.version).decode(),
                                                 f"version {read.version} differs from the version in memory"))
            for version in range(state.latest + 1, history.latest + 1):
                self._add_damage(_missing(version))
        return state

    def rest(self) -> None:
        """Read the leftovers of cuts, and all other records of the partition."""
        with self._collecting():
            for key, size in garbage(self._log, self._budget):
                self._count(size)
                self.findings.append(Finding("leftover", key.decode("ascii", "backslashreplace"),
                                             "it is no longer needed; reclaim() deletes it"))
        checks: dict[bytes, Callable[[bytes, bytes], object]] = {
            keys.TERM: TERMS.unseal, keys.COORDINATOR: LEASES.unseal, keys.PUBLISHED: TIMES.unseal}
        checks |= dict.fromkeys((keys.PINS, keys.MEMBERS, keys.LOW_WATERMARK, keys.FORMAT), self._check_cell)
        for prefix, check in checks.items():
            with self._log.store.scan(self._log.partition, prefix=prefix) as entries:
                for entry in entries:
                    if entry.key == prefix or prefix.endswith(b"/"):
                        self._count(len(entry.key) + len(entry.value))
                        with self._collecting():
                            check(entry.key, entry.value)

    def _check_cell(self, key: bytes, stored: bytes) -> None:
        Cell(self._log.store, self._log.partition, key, _AnyValue()).value_of(stored)

    def _count(self, size: int) -> None:
        self._budget.check()
        self.records += 1
        self.bytes_read += size

    @contextmanager
    def _collecting(self) -> Iterator[None]:
        try:
            yield
        except (CorruptData, Unsupported) as error:
            self._add_damage(error)

    def _add_damage(self, error: Damage) -> None:
        kind = "missing" if isinstance(error, RecordMissing) else "damage"
        if str(error) not in {known.what for known in self.findings}:
            self.findings.append(Finding(kind, str(getattr(error, "path", "")), str(error), error))


class _AnyValue:
    """The codec of a cell whose frame alone is checked."""

    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, data: bytes, place: str) -> bytes:
        return data


# ------------------------------------------------------------------------------------------------------------- reclaim


@attrs.frozen
class CatalogReclaim:
    """The report of a reclaim.

    Attributes:
        keys: number of deleted keys.
        bytes_freed: bytes of the deleted keys and their records.
        why: the reason of an empty or partial report.
        is_partial: whether leftovers remain.
    """

    keys: int
    bytes_freed: int
    why: str = ""
    is_partial: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing to delete."""
        return not self.keys and not self.is_partial


def reclaim(log: UpdateLog, budget: Budget) -> CatalogReclaim:
    """Delete the leftovers of cuts. Restartable at any step.

    Leftovers are updates below the earliest version, pieces of snapshots below it, and pieces of attempts at the
    earliest version that lost to another writer. The earliest version only rises and no key below it is written again,
    so a caller that is delayed while others cut the log further deletes nothing that is needed.

    Raises:
        RecordMissing, CorruptData, Unsupported: the snapshot at the earliest version cannot be read.
        BudgetSpent: the budget ended before anything was deleted.
    """
    waste = garbage(log, budget)
    step = min(_RECLAIM_BATCH, log.store.limits.max_transact)
    deleted = freed = 0
    for at in range(0, len(waste), step):
        try:
            budget.check()
        except BudgetSpent as error:
            if not at:
                raise
            return CatalogReclaim(deleted, freed, str(error), is_partial=True)
        batch = waste[at:at + step]
        log.store.transact(deletes=[Delete(log.partition, key) for key, _ in batch])
        deleted, freed = deleted + len(batch), freed + sum(size for _, size in batch)
    return CatalogReclaim(deleted, freed, "" if waste else "there are no leftovers of cuts")


def garbage(log: UpdateLog, budget: Budget) -> list[tuple[bytes, int]]:
    """Return the keys that `reclaim` would delete now, each with the bytes of key and record.

    Raises:
        RecordMissing, CorruptData, Unsupported, BudgetSpent: as `reclaim`.
    """
    for _ in range(_MAX_READS):
        earliest, _condition = log.earliest()
        found: list[tuple[bytes, int]] = []
        if not earliest:
            return found
        version, record = 0, b""
        for version, key, record in log.entries(0, few=True):
            budget.check()
            if version >= earliest:
                break
            found.append((key, len(key) + len(record)))
        if version == earliest:
            used = set(log.piece_keys(version, record))
            with log.store.scan(log.partition, prefix=keys.PIECES) as entries:
                for entry in entries:
                    budget.check()
                    of_version = keys.version_of(entry.key, keys.PIECES)
                    # Above the earliest version, another node may be writing a snapshot at this moment.
                    if of_version is not None and of_version <= earliest and entry.key not in used:
                        found.append((entry.key, len(entry.key) + len(entry.value)))
            return found
        if log.earliest()[0] == earliest:
            raise _missing(earliest)
    raise Busy(f"the catalog's log was cut {_MAX_READS} times while it was read; try when there is less load")
