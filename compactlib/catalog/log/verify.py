# SPDX-License-Identifier: Apache-2.0
"""Reading the whole update log to find what is damaged or missing; for backups, and after trouble with a store."""

from __future__ import annotations

from collections.abc import Iterator

from compactlib.catalog.errors import RecordDamaged, RecordMissing, RecordTooNew
from compactlib.catalog.log import keys
from compactlib.catalog.log.log_model import LogState
from compactlib.catalog.log.reclaim import garbage
from compactlib.catalog.log.records import RecordType, Update, unseal
from compactlib.catalog.log.recover import applied
from compactlib.catalog.log.update_log import UpdateLog
from compactlib.catalog.schema.catalog import EMPTY, Catalog
from compactlib.catalog.schema.versions import RetainedVersions
from compactlib.errors import Busy, CompactlibError
from compactlib.report import Finding, VerifyReport
from compactlib.runtime.budget import Budget

_MAX_LOOKS = 10
_DAMAGE = (RecordDamaged, RecordMissing, RecordTooNew)
_OTHERS = ((keys.FORMAT, RecordType.FORMAT), (keys.TERM, RecordType.TERM), (keys.COORDINATOR, RecordType.TERM),
           (keys.PIN_EPOCH, RecordType.PIN), (keys.PINS, RecordType.PIN),
           (keys.LOW_WATERMARK, RecordType.LOW_WATERMARK),
           (keys.PUBLISHED, RecordType.PUBLISHED), (keys.PUBLISHER, RecordType.PUBLISHED))
"""What else lies in the partition: a key, or what a key begins with, and its record."""


def verify_log(log: UpdateLog, history: RetainedVersions, budget: Budget) -> VerifyReport:
    """Read every record; `history` is what its owner has in memory, and is held against the log.

    Others may append and cut at the same time: it then looks again.

    Raises:
        BudgetSpent: the budget ended.
        Busy: the log was cut again and again while it was read.
    """
    for _ in range(_MAX_LOOKS):
        reading = _Reading(log, budget)
        state = reading.marks()
        if state is not None:
            reading.versions(state, history)
        latest = 0 if state is None else state.latest
        if latest < history.latest and not reading.is_broken:
            reading.lost(latest, history.latest)
        if reading.findings and reading.marks() != state and not reading.is_broken:
            continue
        reading.rest()
        return VerifyReport(tuple(reading.findings), reading.records, reading.bytes_read)
    raise Busy(f"the catalog's log grew or was cut {_MAX_LOOKS} times while it was read; try when there is less load")


class _Reading:
    """One pass over the log."""

    def __init__(self, log: UpdateLog, budget: Budget) -> None:
        self.findings: list[Finding] = []
        self.records = 0
        self.bytes_read = 0
        self.is_broken = False
        self._log = log
        self._budget = budget

    def marks(self) -> LogState | None:
        """What the log's marks say; `None` for an empty log, or if they are damaged."""
        try:
            return self._log.state()
        except _DAMAGE as error:
            self.is_broken = True
            self._found(error)
            return None

    def versions(self, state: LogState, history: RetainedVersions) -> None:
        """Every version's record, replayed as far as nothing is missing."""
        before: Catalog | None = None if state.compacted else EMPTY
        expected = state.earliest
        for version, key, record in self._entries(state):
            if version > expected:
                self._missing(expected, version - 1)
                before = None
            expected = version + 1
            is_first = version == state.earliest and state.compacted
            before = self._replayed(key, version, record, before, is_first)
            if before is None or not history.has(version):
                continue
            known = history.catalog(version)
            if known != before:
                self.findings.append(Finding("order", key.decode(), f"{known!r} is in memory, and the log replays to "
                                                                    f"{before!r}"))
            else:
                # An equal one, with which the next one in memory has in common all that did not change.
                before = known
        if expected <= state.latest:
            self._missing(expected, state.latest)

    def lost(self, latest: int, known: int) -> None:
        """The log ends before a version that is in memory."""
        self._missing(latest + 1, known)

    def _entries(self, state: LogState) -> Iterator[tuple[int, bytes, bytes]]:
        try:
            for version, key, record in self._log.records.from_version(state.earliest):
                self._read(key, record)
                if version > state.latest:
                    self.findings.append(Finding("order", key.decode(), f"lies above the latest version, "
                                                                        f"{state.latest}"))
                else:
                    yield version, key, record
        except RecordDamaged as error:  # a key that is none
            self._found(error)

    def _replayed(self, key: bytes, version: int, record: bytes, before: Catalog | None,
                  is_first: bool) -> Catalog | None:
        try:
            found = self._log.records.decode(version, key, record)
            if isinstance(found, Update) == is_first:
                self.findings.append(Finding("order", key.decode(), f"{'an update' if is_first else 'a snapshot'} "
                                             f"where {'the snapshot' if is_first else 'an update'} must be"))
                return None
            if isinstance(found, Update):
                return None if before is None else applied(found, before)
        except _DAMAGE as error:
            self._found(error)
            return None
        return found

    def rest(self) -> None:
        """What a cut has left behind, and the records of everything else in the partition."""
        try:
            for key, size in garbage(self._log, self._budget).items():
                self.records += 1
                self.bytes_read += size
                self.findings.append(Finding("leftover", key.decode("ascii", "backslashreplace"),
                                             "it is no longer needed; reclaim() deletes it"))
        except _DAMAGE as error:
            self._found(error)
        for prefix, kind in _OTHERS:
            with self._log.store.scan(self._log.partition, prefix=prefix) as entries:
                for entry in entries:
                    if entry.key != prefix and not prefix.endswith(b"/"):
                        continue
                    self._read(entry.key, entry.value)
                    try:
                        unseal(entry.key, entry.value, kind)
                    except _DAMAGE as error:
                        self._found(error)

    def _read(self, key: bytes, record: bytes) -> None:
        self._budget.check()
        self.records += 1
        self.bytes_read += len(key) + len(record)

    def _missing(self, first: int, last: int) -> None:
        key = keys.update_key(first).decode()
        many = "" if first == last else f", and those up to {last}"
        self._found(RecordMissing(key=key, version=first, expected=f"the record of version {first}{many}"))

    def _found(self, error: CompactlibError) -> None:
        kind = "missing" if isinstance(error, RecordMissing) else "damage"
        finding = Finding(kind, str(getattr(error, "key", "")), str(error), error)
        if str(finding.what) not in {known.what for known in self.findings}:
            self.findings.append(finding)
