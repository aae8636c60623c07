# SPDX-License-Identifier: Apache-2.0
"""The commands that look at a raft log, or at all logs of a store, and compact it: `inspect`, `plan`, `why`, `compact`,
`verify`."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import attrs

from compactlib.app.executors import opened_executor
from compactlib.app.inspection import inspect_log, limits_of
from compactlib.app.terminal import print_json, progress_bar, show_left, show_table, show_verified, waiting
from compactlib.errors import CorruptData
from compactlib.outcome import Failed, Skipped
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
)
from compactlib.raftlog.compaction.plan.plan import plan_for
from compactlib.raftlog.compaction.report import report_of
from compactlib.raftlog.compaction.sense.trigger import CompactionState
from compactlib.raftlog.log.folder import Examination, examine_segments
from compactlib.raftlog.log.unflushed import logs_of_store
from compactlib.raftlog.model.names import LOGS_FOLDER
from compactlib.report import Table, VerifyReport
from compactlib.runtime.budget import Budget

POLICIES: tuple[LogPolicy, ...] = (DropDead(), SeedPolicy(), RaPolicy(), CostPolicy())
"""The policies that a command line can name, with their default settings."""
AUTO = "auto"
"""Stands for `SeedPolicy` if as many bytes are dead as live, else for `DropDead`."""
_TRIGGER = DeadRatio()


def policy_named(name: str) -> LogPolicy | None:
    """One of `POLICIES`, `None` for `AUTO`; raises `KeyError` for any other name."""
    return {AUTO: None, **{policy.name: policy for policy in POLICIES}}[name]


@attrs.frozen(kw_only=True)
class CompactSettings:
    """What `compact` is to do.

    Attributes:
        policy: name of the policy, or `AUTO`.
        executor: name of the executor.
        workers: how many tasks it runs at once; default its own.
        bytes_per_second: limit of what is written; default none.
        total_bytes: how much may be written; default no limit.
        as_json: print `to_dicts()` instead of a table.
    """

    policy: str = AUTO
    executor: str = "local"
    workers: int | None = None
    bytes_per_second: float | None = None
    total_bytes: int | None = None
    as_json: bool = False


def inspect(folder: str, *, as_json: bool) -> int:
    """Print what lies in the folder of a log; returns the exit code."""
    with LogReader(folder) as reader:
        seen = inspect_log(reader)
    if as_json:
        print_json(seen.to_dict())
        return 0
    segments, others = seen.tables()
    show_table(segments)
    if others.rows:
        print()
        show_table(others)
    return 0


def inspect_store(folder: str, *, as_json: bool) -> int:
    """Print which logs a store has; returns the exit code."""
    rows: list[dict[str, Any]] = []
    for path in logs_of_store(folder) or ():
        with LogReader(path) as reader:
            seen = inspect_log(reader)
        segments = seen.view.segments
        rows.append({"log": os.path.basename(path), "segments": len(segments),
                     "entries": sum(stats.entries for stats in segments),
                     "live": sum(stats.live_entries for stats in segments), "in_wal": len(seen.unflushed),
                     "snapshot": None if seen.snapshot is None else seen.snapshot.index,
                     "file_bytes": sum(size or 0 for size in seen.file_bytes)})
    if as_json:
        print_json({"folder": folder, "logs": rows})
        return 0
    show_table(Table.from_dicts(rows, title=f"{folder}: {len(rows):,} logs with one write-ahead log; look at one by "
                                            f"its folder, {os.path.join(folder, LOGS_FOLDER, 'LOG')}"))
    return 0


def plan(folder: str, *, policy: str | None, as_json: bool) -> int:
    """Print what a compaction would do now; returns the exit code."""
    with LogReader(folder) as reader:
        made = _planned(reader, policy_named(policy or AUTO))
    if as_json:
        print_json(made.to_dicts())
    else:
        show_table(made.table())
    return 0


def why(folder: str, *, policy: str | None, as_json: bool) -> int:
    """Print why a compaction would do what it would do now, or nothing; returns the exit code."""
    with LogReader(folder) as reader:
        made = _planned(reader, policy_named(policy or AUTO))
    left: dict[str, list[str]] = {}
    for each in made.left_out:
        left.setdefault(each.reason, []).append(str(each.stats.number))
    taken = sorted({*(stats.number for stats in made.drops), *(n for group in made.groups for n in group.numbers)})
    if as_json:
        print_json({"folder": folder, "is_empty": made.is_empty, "policy": made.policy.name, "why": made.why,
                    "taken": taken, "left": left})
        return 0
    print(repr(made).strip("<>").removeprefix("LogPlan: "))
    show_left(left)
    return 0


def _planned(reader: LogReader, policy: LogPolicy | None) -> LogPlan:
    view = attrs.evolve(reader.view(), limits=limits_of(reader))
    if policy is not None:
        return reader.plan(policy, view=view)
    state = CompactionState.of(view.compactable, minors_since_major=0, last_major_at=0.0, now=0.0)
    due = _TRIGGER.wants_major(state)
    return plan_for(view, SeedPolicy() if due else DropDead(), why=due or f"nothing is rewritten yet: "
                                                                         f"{_TRIGGER.why_not(state)}")


def compact(folder: str, settings: CompactSettings) -> int:
    """Compact a log and print what was done; returns the exit code: 1 if a part of it could not be done.

    Raises:
        CompactlibError: nothing could be done; says why.
    """
    with LogReader(folder) as reader:
        # Before the executor is started, which may take seconds; and `SegmentLog` would make a log where none is.
        limits = limits_of(reader)
    budget = Budget(bytes_per_second=settings.bytes_per_second, total_bytes=settings.total_bytes)
    with contextlib.ExitStack() as stack:
        with waiting(f"starting {settings.executor}"):
            executor = stack.enter_context(opened_executor(settings.executor, settings.workers))
        observer = stack.enter_context(progress_bar("compact"))
        log = stack.enter_context(SegmentLog(folder, LogOptions(limits=limits, trigger=_TRIGGER, observer=observer)))
        outcome = log.compact(policy=policy_named(settings.policy), executor=executor, budget=budget)
    report = report_of(outcome)
    if isinstance(outcome, Failed) and outcome.changed == "no":
        raise outcome.error
    if settings.as_json:
        print_json(outcome.to_dicts())
    elif isinstance(outcome, Skipped):
        print(f"skipped: {outcome.reason}")
    elif report is not None:
        show_table(report.table())
    return 1 if isinstance(outcome, Failed) else 0


def verify(folder: str, *, as_json: bool) -> int:
    """Read everything in a log, or in all logs of a store, and print what is damaged.

    Returns the exit code: 1 if anything is.

    Raises:
        CompactlibError: it is no log and no store, or cannot be read.
    """
    logs = logs_of_store(folder)
    with waiting("verifying"):
        checked = [_verified(log) for log in ([folder] if logs is None else logs)]
    # What is wrong with the write-ahead log is wrong for each log of the store, and reported once.
    found = {(each.kind, each.place, each.what): each for report in checked for each in report.findings}
    report = VerifyReport(tuple(found.values()), sum(each.records for each in checked),
                          sum(each.bytes_read for each in checked))
    return show_verified(folder, report, "entries", as_json=as_json,
                         counted="" if logs is None else f"{len(logs):,} logs, ")


def _verified(folder: str) -> VerifyReport:
    try:
        with LogReader(folder) as reader:
            return reader.verify()
    except CorruptData as error:
        # So damaged that it cannot be opened: look at each file on its own.
        seen = Examination()
        examine_segments(folder, seen)
        if not any(str(error) == str(each.error) for each in seen.findings):
            seen.note(error)
        return seen.report()
