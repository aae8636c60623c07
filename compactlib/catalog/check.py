# SPDX-License-Identifier: Apache-2.0
"""Recovery, verification and reclaim of the update log.

The log must hold a record for every version from its earliest to its latest, and no record above the latest. Only the
earliest record is a snapshot, and only if the log was ever cut. Activation times ascend strictly. Recovery raises the
first contradiction, so it never accepts a truncated history. Verification collects all contradictions, and compares the
log with the versions in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import attrs

from compactlib.budget import Budget
from compactlib.catalog import keys
from compactlib.catalog.errors import ObjectNotFound, RecordMissing
from compactlib.catalog.history import RetainedVersions
from compactlib.catalog.members import Nodes
from compactlib.catalog.pins import PinSet
from compactlib.catalog.plan import CutReport
from compactlib.catalog.records import LEASES, SNAPSHOTS, TERMS, TIMES
from compactlib.catalog.schema import EMPTY, Catalog, Update
from compactlib.catalog.update_log import LogState, UpdateLog
from compactlib.errors import BudgetSpent, Busy, CompactlibError, CorruptData, Unsupported
from compactlib.kv.batches import sound_entries
from compactlib.kv.cell import Cell
from compactlib.report import Finding, VerifyReport

_MAX_READS = 100
_RECLAIM_BATCH = 500
_FEW = 4  # records in the first page of a scan for leftovers; later pages are larger


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
            before, state = state, log.state()
            if state == before:
                raise
    raise Busy(f"the catalog's log was cut or grew {_MAX_READS} times while it was read; try when there is less load")


def _read_on(log: UpdateLog, state: LogState, known: RetainedVersions) -> RetainedVersions:
    if state.latest < known.latest:
        raise RecordMissing(key=keys.LATEST.decode(), version=known.latest, expected=f"version {known.latest}, which "
                            f"the log had before; it ends at {state.latest} now")
    expected = max(known.latest + 1, state.earliest)
    if expected > state.latest:
        return known.beginning_with(state.earliest) if state.earliest > known.earliest else known
    updates, growing = list[Update](), known.catalog(known.latest).copy()
    for version, key, record in log.entries(expected):
        if version > state.latest:
            raise _damaged(version, f"{state.latest}, the latest version", f"a record of version {version}")
        if version > expected:
            raise _missing(expected)
        if version == state.earliest:  # the log begins above the known versions
            growing = EMPTY.copy()
        updates.append(log.decode(version, key, record, is_snapshot=version == state.earliest))
        _apply(updates[-1], growing)
        expected += 1
    if expected <= state.latest:
        raise _missing(expected)
    if updates[0].version == state.earliest:
        return RetainedVersions(updates, growing)
    history = known.followed_by(updates, growing)
    return history.beginning_with(state.earliest) if state.earliest > history.earliest else history


def _apply(update: Update, growing: Catalog) -> None:
    if update.activation <= growing.activation:
        raise _damaged(update.version, f"an activation above {growing.activation}", str(update.activation))
    try:
        growing.apply(update)
    except ObjectNotFound as error:
        raise _damaged(update.version, f"changes of version {update.version - 1}", str(error)) from error


def _missing(version: int) -> RecordMissing:
    return RecordMissing(key=keys.update_key(version).decode(), version=version,
                         expected=f"the record of version {version}")


def _damaged(version: int, expected: str, found: str) -> CorruptData:
    return CorruptData(path=keys.update_key(version).decode(), offset=12, expected=expected, found=found)


# -------------------------------------------------------------------------------------------------------- verification


def verify_log(log: UpdateLog, history: RetainedVersions, budget: Budget) -> VerifyReport:
    """Read every record, and compare the log with `history`, the versions in memory.

    Re-reads if another process appends or cuts at the same time.

    Raises:
        BudgetSpent: the budget ended.
        Busy: each attempt to read the log met a new cut or append.
    """
    for _ in range(_MAX_READS):
        before, records, size = _state(log), 0, 0
        findings, damage = list[Finding](), dict[bytes, CompactlibError]()
        for part in (_versions(log, history, damage), _leftovers(log, budget), _other_records(log, damage)):
            try:
                for length, found in part:
                    budget.check()
                    records, size = records + bool(length), size + length
                    if found is not None:
                        findings.append(found)
            except (CorruptData, Unsupported) as error:  # a mark or the earliest snapshot; check the other parts
                findings.append(_finding(error))
        findings += map(_finding, damage.values())
        if all(found.kind == "leftover" for found in findings) or _state(log) == before:
            # Two parts may find the same damage.
            return VerifyReport(tuple({(found.place, found.what): found for found in findings}.values()), records, size)
    raise Busy(f"the catalog's log grew or was cut {_MAX_READS} times while it was read; try when there is less load")


def _state(log: UpdateLog) -> LogState | None:
    """Return the marks; `None` if they cannot be read."""
    try:
        return log.state()
    except (CorruptData, Unsupported):
        return None


def _finding(error: CompactlibError) -> Finding:
    return Finding("missing" if isinstance(error, RecordMissing) else "damage", str(getattr(error, "path", "")),
                   str(error), error)


Checked: TypeAlias = Iterator[tuple[int, Finding | None]]
"""Pairs of a row's size (key and record; 0 without a row) and its finding. Errors of rows go into `damage`, by key."""


def _versions(log: UpdateLog, history: RetainedVersions, damage: dict[bytes, CompactlibError]) -> Checked:
    """Check that every version has a record, which equals the version in memory."""
    try:
        # Versions above those in memory must continue them. In a copy: polls may extend the history meanwhile.
        recover_history(log, history.beginning_with(history.earliest))
    except (CorruptData, Unsupported) as error:
        yield 0, _finding(error)
    state = log.state()
    first, present = max(state.earliest, 1), set[int]()
    for version, key, record in log.entries(first, damage=damage):
        present.add(version)
        found = None
        try:
            if version > state.latest:
                raise _damaged(version, f"{state.latest}, the latest version", f"a record of version {version}")
            is_first = version == state.earliest
            stored = log.decode(version, key, record, is_snapshot=is_first)
            if history.has(version) and stored != (
                    history.catalog(version).as_update() if is_first else history.update(version)):
                found = Finding("order", key.decode(), f"version {version} differs from the version in memory")
        except (CorruptData, Unsupported) as error:
            damage[key] = error
        yield len(key) + len(record), found
    for version in range(first, max(state.latest, history.latest) + 1):
        if version not in present:
            damage.setdefault(keys.update_key(version), _missing(version))


def _leftovers(log: UpdateLog, budget: Budget) -> Checked:
    for key, size in garbage(log, log.state().earliest, budget).items():
        yield size, Finding("leftover", key.decode("ascii", "backslashreplace"),
                            "it is no longer needed; reclaim() deletes it")


def _other_records(log: UpdateLog, damage: dict[bytes, CompactlibError]) -> Checked:
    """Check the records that belong to no version."""
    def check_cell(key: bytes, stored: bytes, of: Any) -> None:
        Cell(log.store, log.partition, key, of).value_of(stored)

    cells: dict[bytes, Any] = {keys.PINS: PinSet, keys.MEMBERS: Nodes, keys.LOW_WATERMARK: int, keys.FORMAT: str}
    checks: dict[bytes, Callable[[bytes, bytes], object]] = {
        keys.TERM: TERMS.unseal, keys.COORDINATOR: LEASES.unseal, keys.PUBLISHED: TIMES.unseal,
        **{key: partial(check_cell, of=of) for key, of in cells.items()}}
    for prefix, check in checks.items():
        for entry in sound_entries(log.store, log.partition, damage, prefix=prefix):
            if entry.key == prefix or prefix.endswith(b"/"):
                try:
                    check(entry.key, entry.value)
                except (CorruptData, Unsupported) as error:
                    damage[entry.key] = error
                yield len(entry.key) + len(entry.value), None


# ------------------------------------------------------------------------------------------------------------- reclaim


def reclaim(log: UpdateLog, budget: Budget) -> CutReport:
    """Delete the leftovers of cuts. Restartable at any step.

    Leftovers are updates below the earliest version, pieces of snapshots below it, and pieces of attempts at the
    earliest version that lost to another writer. The earliest version only rises and no key below it is written again,
    so a caller that is delayed while others cut the log further deletes nothing that is needed.

    Raises:
        RecordMissing, CorruptData, Unsupported: the snapshot at the earliest version cannot be read.
        BudgetSpent: the budget ended before anything was deleted.
    """
    earliest = log.state().earliest
    report, waste = CutReport(earliest=earliest, before=earliest), list(garbage(log, earliest, budget).items())
    step = min(_RECLAIM_BATCH, log.store.limits.max_transact)
    for at in range(0, len(waste), step):
        try:
            budget.check()
        except BudgetSpent as error:
            if not at:
                raise
            return attrs.evolve(report, why=str(error), is_partial=True)
        batch = waste[at:at + step]
        log.store.transact(changes={(log.partition, key): None for key, _ in batch})
        report = attrs.evolve(report, deleted=report.deleted + len(batch),
                              bytes_freed=report.bytes_freed + sum(size for _, size in batch))
    return report if waste else attrs.evolve(report, why="there are no leftovers of cuts")


def garbage(log: UpdateLog, earliest: int, budget: Budget) -> dict[bytes, int]:
    """Return the keys that `reclaim` would delete, each with the size of its row; of a damaged row, of the key alone.

    Raises:
        RecordMissing, CorruptData, Unsupported, BudgetSpent: as `reclaim`.
    """
    found, version, record = dict[bytes, int](), 0, b""
    damage: dict[bytes, CompactlibError] = {}
    if not earliest:
        return found
    for version, key, record in log.entries(0, page_size=_FEW, damage=damage):
        budget.check()
        if version >= earliest:
            break
        found[key] = len(key) + len(record)
    if keys.update_key(earliest) in damage:
        raise damage[keys.update_key(earliest)]
    found |= {key: len(key) for key in damage if (of_version := keys.version_of(key)) is not None
              and of_version < earliest}
    if version != earliest:
        if log.state().earliest == earliest:
            raise _missing(earliest)
        return found  # the log was cut further, and the pieces wait for the next call
    used = set(SNAPSHOTS.unseal(keys.update_key(version), record).keys(version))
    damage.clear()
    pieces = dict[bytes, int]()
    for entry in sound_entries(log.store, log.partition, damage, prefix=keys.PIECES):
        budget.check()
        pieces[entry.key] = len(entry.key) + len(entry.value)
    pieces |= {key: len(key) for key in damage}
    # Above the earliest version, another node may be writing a snapshot at this moment.
    return found | {key: size for key, size in pieces.items() if key not in used and (
        of_version := keys.version_of(key, keys.PIECES)) is not None and of_version <= earliest}
