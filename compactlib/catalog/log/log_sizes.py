# SPDX-License-Identifier: Apache-2.0
"""How many bytes the update log takes in its store, version by version: what a plan forecasts from."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from compactlib.catalog.log import keys
from compactlib.catalog.log.update_log import UpdateLog
from compactlib.runtime.budget import Budget


@attrs.frozen
class LogSizes:
    """Bytes of keys and records; what a store adds to them is not counted.

    Attributes:
        records: of each version's record, those below the earliest version too, which are not needed.
        pieces: of the pieces of split snapshots, by the version of the snapshot, used or not.
        earliest_mark: of the mark of the earliest version.
        term_mark: of the mark of the coordinators' term; 0 if there is none.
        term: that term; 0 if there is none.
        earliest: the version of the log's first record; 0 for an empty log.
    """

    records: Mapping[int, int] = attrs.field(factory=dict)
    pieces: Mapping[int, int] = attrs.field(factory=dict)
    earliest_mark: int = 0
    term_mark: int = 0
    term: int = 0
    earliest: int = 0

    def up_to(self, version: int) -> int:
        """What a cut to `version` replaces or deletes, the marks not counted."""
        return sum(size for sizes in (self.records, self.pieces) for one, size in sizes.items() if one <= version)


class LogMeter:
    """Measures one log again and again; what it has measured above the earliest version it does not read twice.

    Args:
        log: what to measure.
    """

    def __init__(self, log: UpdateLog) -> None:
        self._log = log
        self._known: Mapping[int, int] = {}

    def measure(self, budget: Budget) -> LogSizes:
        """The sizes now; reads the records that it has not read yet.

        Raises:
            RecordMissing, RecordDamaged, RecordTooNew: the log's marks cannot be read.
            BudgetSpent: the budget ended.
        """
        state = self._log.state()
        if state is None:
            return LogSizes(term_mark=self._mark(keys.TERM), term=self._log.term()[0])
        records: dict[int, int] = {}
        for version, key, record in self._log.records.from_version(0, few=True):
            if version > state.earliest:
                break
            budget.check()
            records[version] = len(key) + len(record)
        # No record above the earliest version is ever written again, so these stay as they were.
        above = {version: size for version, size in self._known.items() if version > state.earliest}
        first = max(above, default=state.earliest) + 1
        for version, key, record in self._log.records.from_version(first, few=bool(above)):
            budget.check()
            above[version] = len(key) + len(record)
        self._known = above
        return LogSizes({**records, **above}, self._pieces(budget), self._mark(keys.EARLIEST), self._mark(keys.TERM),
                        self._log.term()[0], state.earliest)

    def _pieces(self, budget: Budget) -> Mapping[int, int]:
        pieces: dict[int, int] = {}
        with self._log.store.scan(self._log.partition, prefix=keys.CHUNKS) as entries:
            for entry in entries:
                budget.check()
                version = keys.chunk_version(entry.key)
                if version is not None:
                    pieces[version] = pieces.get(version, 0) + len(entry.key) + len(entry.value)
        return pieces

    def _mark(self, key: bytes) -> int:
        found = self._log.records.get(key)
        return 0 if found is None else len(key) + len(found[0])
