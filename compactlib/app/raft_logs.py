# SPDX-License-Identifier: Apache-2.0
"""Raft logs for the commands: one log, and the store of several with one write-ahead log."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import attrs

from compactlib.app.executors import started_executor
from compactlib.app.inspection import inspect_log
from compactlib.app.stores import StoreAt
from compactlib.app.terminal import Answer, progress_bar
from compactlib.errors import InvalidInput, StorageError
from compactlib.raftlog import (
    CostPolicy,
    DeadRatio,
    DropDead,
    LogOptions,
    LogPlan,
    LogPolicy,
    LogReader,
    RaPolicy,
    SeedPolicy,
    SegmentLog,
    logs_of_store,
    verify_log,
)
from compactlib.raftlog.errors import NotALog
from compactlib.raftlog.policy import CompactionState, plan_for
from compactlib.report import Table, VerifyReport
from compactlib.runtime import Budget

_POLICIES: tuple[LogPolicy, ...] = (DropDead(), SeedPolicy(), RaPolicy(), CostPolicy())
_TRIGGER = DeadRatio()
SeenT = TypeVar("SeenT")


class RaftLogAt(StoreAt):
    """A raft log in a folder of its own, or one of a store's."""

    kind = "raft log"
    unit = "entries"

    def inspect(self) -> Answer:
        """Its segments, and every other name in the folder."""
        with LogReader(self.path) as reader:
            seen = inspect_log(reader)
        segments, others = seen.tables()
        return Answer(seen.to_dict(), (segments, *(("", others) if others.rows else ())))

    def planned(self) -> LogPlan:
        """Under the limits of the log's newest segment."""
        policy = self._policy
        with LogReader(self.path) as reader:
            view = reader.view()
            if policy is not None:
                return reader.plan(policy, view=view)
        state = CompactionState.of(view.compactable, minors_since_major=0, last_major_at=0.0, now=0.0)
        due = _TRIGGER.wants_major(state)
        why = due or f"nothing is rewritten yet: {_TRIGGER.why_not(state)}"
        return plan_for(view, SeedPolicy() if due else DropDead(), why=why)

    def chosen(self, plan: LogPlan) -> tuple[list[Any], dict[str, list[str]]]:
        """Numbers of segments."""
        left: dict[str, list[str]] = {}
        for each in plan.left_out:
            left.setdefault(each.reason, []).append(str(each.stats.number))
        return sorted({*(stats.number for stats in plan.drops), *(n for group in plan.groups for n in group.numbers)}
                      ), left

    def compacted(self) -> Any:
        """By this process, which locks the log."""
        asked = self.asked
        with LogReader(self.path) as reader:
            # Before the executor is started, which may take seconds; and `SegmentLog` would make a log where none is.
            limits = reader.limits
        budget = Budget(bytes_per_second=asked.rate, total_bytes=asked.max_bytes)
        with started_executor(asked) as executor, progress_bar("compact") as observer, \
                SegmentLog(self.path, LogOptions(limits=limits, trigger=_TRIGGER, observer=observer)) as log:
            return log.compact(policy=self._policy, executor=executor, budget=budget)

    def verified(self) -> VerifyReport:
        """Also of a log that is so damaged that it cannot be opened."""
        return verify_log(self.path)

    @property
    def _policy(self) -> LogPolicy | None:
        return next((policy for policy in _POLICIES if policy.name == self.asked.policy), None)


class RaftLogStoreAt(StoreAt):
    """All logs of a `RaftLogStore`; they are planned one by one, and compacted by their store."""

    kind = "store of raft logs"
    unit = "entries"

    @property
    def _logs(self) -> list[RaftLogAt]:
        return [RaftLogAt(attrs.evolve(self.asked, path=path)) for path in logs_of_store(self.path) or ()]

    def _of_each(self, look: Callable[[RaftLogAt], SeenT]) -> list[SeenT]:
        """What is seen of each log, but for those that their owner has removed since they were listed."""
        seen = []
        for log in self._logs:
            try:
                found = look(log)
            except (NotALog, StorageError):
                if os.path.lexists(log.path):
                    raise
                continue
            if os.path.lexists(log.path):
                seen.append(found)
        return seen

    def inspect(self) -> Answer:
        """One row a log."""
        rows = self._of_each(_row_of)
        title = (f"{self.path}: {len(rows):,} logs with one write-ahead log; look at one by its folder, "
                 f"{os.path.join(self.path, 'logs', 'LOG')}")
        return Answer({"folder": self.path, "logs": rows}, (Table.from_dicts(rows, title=title),))

    def planned(self) -> Any:
        """Refused: which log?"""
        raise InvalidInput(f"{self.path} is a {self.kind}; say which one: "
                           f"{os.path.join(self.path, 'logs', 'LOG')}, see compactlib inspect {self.path}")

    def chosen(self, plan: Any) -> tuple[list[Any], dict[str, list[str]]]:
        """There is no plan of all."""
        raise NotImplementedError

    def compacted(self) -> Any:
        """Refused: the store does that."""
        raise InvalidInput(f"{self.path} is a {self.kind}, which compacts them itself: "
                           f"RaftLogStore(folder, options).log(ID).compact(), or a LogCompactionWorker")

    def verified(self) -> VerifyReport:
        """What is wrong with the write-ahead log is wrong for each log of the store, and reported once."""
        checked = self._of_each(RaftLogAt.verified)
        found = {(each.kind, each.place, each.what): each for report in checked for each in report.findings}
        return VerifyReport(tuple(found.values()), sum(each.records for each in checked),
                            sum(each.bytes_read for each in checked))

    def counted(self, report: VerifyReport) -> str:
        """In how many logs, too."""
        return f"{len(self._logs):,} logs, {super().counted(report)}"


def _row_of(log: RaftLogAt) -> dict[str, Any]:
    with LogReader(log.path) as reader:
        seen = inspect_log(reader)
    segments = seen.view.segments
    return {"log": os.path.basename(log.path), "segments": len(segments),
            "entries": sum(stats.entries for stats in segments),
            "live": sum(stats.live_entries for stats in segments), "in_wal": len(seen.unflushed),
            "snapshot": None if seen.snapshot is None else seen.snapshot.index,
            "file_bytes": sum(size or 0 for size in seen.file_bytes)}
