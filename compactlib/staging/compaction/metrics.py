# SPDX-License-Identifier: Apache-2.0
"""Metrics of the staging area, as an observer is notified of them, for dashboards and alarms.

| name | labels | says |
|---|---|---|
| `staging_commits` | `repository`, `outcome` | commits: `committed`, `no_changes`, `already_committed`, `error` |
| `staging_commit_seconds` | `repository`, `outcome` | time they took |
| `staging_ranges_read`, `_reused`, `_written` | `repository` | ranges that compactions touched |
| `staging_tombstones_written`, `staging_tombstones_listed` | `repository` | tombstones |
| `staging_write_retries` | `repository`, `operation` | writes done anew because a branch changed under them |
| `staging_tokens_cleaned`, `staging_entries_cleaned`, `staging_orphans_found` | `repository` | cleanup |
| `staging_ranges_collected`, `staging_metaranges_collected` | `repository` | garbage |

Compactions, seconds and bytes have the names that they have for every store: `compactlib.runtime.store_numbers`.

Levels come as events with a `value`, each time they change: `staging_sealed_tokens` (of one branch, once it has any;
`None` when the branch is gone) and `staging_cleanup_backlog` (marks that still wait). Each garbage collection reports
`staging_garbage`, with how many files are `live`, how many unneeded ones are still too `young` to go, and how many of
the history are `gone`.
"""

from __future__ import annotations

import threading

from compactlib.outcome import Done, Failed
from compactlib.runtime.observe import Observer, telling
from compactlib.runtime.store_numbers import Moved, StoreNumbers
from compactlib.staging.compaction.outcome import CompactionOutcome, outcome_name
from compactlib.staging.events import StagingEvents, telling_events
from compactlib.staging.record import BranchRecord

_MAX_BRANCHES = 10_000


class _Level:
    """How many sealed tokens a branch has, by the newest of its records; `record` is `None` once the branch is gone."""

    __slots__ = ("is_telling", "record", "told")

    def __init__(self) -> None:
        self.record: BranchRecord | None = None
        self.told: int | None = None
        self.is_telling = False


class StagingMetrics(StagingEvents):
    """Passes what happens on the branches of a repository on to an observer, and to other listeners.

    Args:
        observer: notified of the numbers.
        repository: the label.
        others: notified of the same events, such as a sensor's.
    """

    def __init__(self, observer: Observer, repository: str, *others: StagingEvents) -> None:
        self._observer = telling(observer)
        self._labels = {"repository": repository}
        self._others = tuple(map(telling_events, others))
        self._levels: dict[str, _Level] = {}
        self._lock = threading.Lock()

    def record_seen(self, branch: str, record: BranchRecord) -> None:
        """Report the number of sealed tokens if it is not the one reported last."""
        for other in self._others:
            other.record_seen(branch, record)
        self._see(branch, record)

    def record_written(self, branch: str, record: BranchRecord) -> None:
        """As `record_seen`."""
        for other in self._others:
            other.record_written(branch, record)
        self._see(branch, record)

    def _see(self, branch: str, record: BranchRecord) -> None:
        # Called with every read: what changes nothing must cost nothing.
        level = self._levels.get(branch)
        if not record.sealed_tokens if level is None else level.record == record:
            return
        with self._lock:
            level = self._levels.get(branch) or self._new_level(branch)
            if level is None or (level.record is not None and record.is_outdated_by(level.record)):
                return
            level.record = record
        self._tell(branch, level)

    def _new_level(self, branch: str) -> _Level | None:
        """One more; `None` if there are as many as may be, none of which is down to zero."""
        if len(self._levels) >= _MAX_BRANCHES:
            spare = next((name for name, level in self._levels.items() if level.told == 0), None)
            if spare is None:
                return None
            del self._levels[spare]
        level = self._levels[branch] = _Level()
        return level

    def _tell(self, branch: str, level: _Level) -> None:
        """Report the level until it is the one that was reported; one thread at a time, so that the last one stands."""
        is_mine = False
        while True:
            with self._lock:
                if level.is_telling and not is_mine:
                    return
                value = None if level.record is None else len(level.record.sealed_tokens)
                is_mine = level.is_telling = value != level.told
                if not is_mine:
                    if value is None and self._levels.get(branch) is level:
                        del self._levels[branch]
                    return
                level.told = value
            try:
                self._observer.event("staging_sealed_tokens", {**self._labels, "branch": branch, "value": value})
            except BaseException:
                # An interrupt: whoever comes next reports it again.
                with self._lock:
                    level.is_telling, level.told = False, -1
                raise

    def tombstones_written(self, branch: str, record: BranchRecord, count: int) -> None:
        """Counted."""
        self._observer.count("staging_tombstones_written", count, self._labels)
        for other in self._others:
            other.tombstones_written(branch, record, count)

    def tombstones_listed(self, branch: str, record: BranchRecord, count: int) -> None:
        """Counted."""
        self._observer.count("staging_tombstones_listed", count, self._labels)
        for other in self._others:
            other.tombstones_listed(branch, record, count)

    def write_retried(self, branch: str, operation: str) -> None:
        """Counted."""
        self._observer.count("staging_write_retries", 1, {**self._labels, "operation": operation})
        for other in self._others:
            other.write_retried(branch, operation)

    def committed(self, branch: str, record: BranchRecord) -> None:
        """Passed on."""
        for other in self._others:
            other.committed(branch, record)

    def reset(self, branch: str, record: BranchRecord) -> None:
        """Passed on."""
        for other in self._others:
            other.reset(branch, record)

    def compacted(self, branch: str, record: BranchRecord) -> None:
        """Passed on."""
        for other in self._others:
            other.compacted(branch, record)

    def branch_deleted(self, branch: str) -> None:
        """Its level is cleared."""
        for other in self._others:
            other.branch_deleted(branch)
        with self._lock:
            level = self._levels.get(branch)
            if level is None:
                return
            level.record = None
        self._tell(branch, level)


def report_commit(observer: Observer, repository: str, outcome: str, seconds: float) -> None:
    """Report how a commit went."""
    labels = {"repository": repository, "outcome": outcome}
    observer.count("staging_commits", 1, labels)
    observer.measure("staging_commit_seconds", seconds, labels)


def report_compaction(observer: Observer, repository: str, branch: str, outcome: CompactionOutcome,
                      seconds: float, policy: str) -> None:
    """Report how a compaction went; what it replaced is freed only when it is collected."""
    name, moved = outcome_name(outcome), None
    fields: dict[str, object] = {"repository": repository, "branch": branch, "outcome": name, "seconds": seconds}
    match outcome:
        case Done(stats):
            applied = stats.applied
            moved = Moved(read=applied.bytes_read, copied=applied.bytes_written)
            for counter, value in (("read", applied.ranges_read), ("reused", applied.ranges_reused),
                                   ("written", applied.ranges_written)):
                observer.count(f"staging_ranges_{counter}", value, {"repository": repository})
            fields |= {"sealed_before": stats.sealed_before, "sealed_after": stats.sealed_after,
                       "added": applied.added, "changed": applied.changed, "removed": applied.removed}
        case Failed(error):
            fields["error"] = str(error)
        case _:
            fields["reason"] = outcome.reason
    StoreNumbers("staging", repository).compacted(observer, outcome, seconds, policy=policy, moved=moved)
    observer.event("staging_compaction", fields)
