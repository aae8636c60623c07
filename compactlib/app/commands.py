"""The commands that look at a log and compact it: `inspect`, `plan`, `compact`, `verify`."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import attrs

from compactlib.app.executors import opened_executor
from compactlib.app.inspection import inspect_log, limits_of
from compactlib.app.terminal import progress_bar, show_table, waiting
from compactlib.budget import Budget
from compactlib.errors import CorruptData
from compactlib.outcome import Failed, Skipped
from compactlib.raftlog import (
    CompactionKind,
    CompactionPolicy,
    CostPolicy,
    DeadRatio,
    LogOptions,
    LogReader,
    RaPolicy,
    SeedPolicy,
    SegmentLog,
    plan_major,
    plan_minor,
)
from compactlib.raftlog.folder import damage_in
from compactlib.raftlog.unflushed import logs_of_store
from compactlib.report import Table

POLICIES: tuple[CompactionPolicy, ...] = (SeedPolicy(), RaPolicy(), CostPolicy())
"""The policies that a command line can name, with their default settings."""


def policy_named(name: str) -> CompactionPolicy:
    """One of `POLICIES`; raises `KeyError` for any other name."""
    return {policy.name: policy for policy in POLICIES}[name]


@attrs.frozen(kw_only=True)
class CompactSettings:
    """What `compact` is to do.

    Attributes:
        kind: `"auto"` makes it a major one when there is as much dead as live to be compacted.
        policy: name of the policy of a major one.
        executor: name of the executor.
        workers: how many tasks it runs at once; default its own.
        bytes_per_second: limit of what is written; default none.
        total_bytes: how much may be written; default no limit.
        as_json: print `to_dicts()` instead of a table.
    """

    kind: CompactionKind = "auto"
    policy: str = "seed"
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
        _print_json(seen.to_dict())
        return 0
    segments, others = seen.tables()
    show_table(segments)
    if others.rows:
        print()
        show_table(others)
    return 0


def plan(folder: str, *, kind: str, policy: str, as_json: bool) -> int:
    """Print what a compaction would do now; returns the exit code."""
    with LogReader(folder) as reader:
        view = attrs.evolve(reader.view(), limits=limits_of(reader))
    made = plan_minor(view) if kind == "minor" else plan_major(view, policy_named(policy))
    if as_json:
        _print_json(made.to_dicts())
    else:
        show_table(made.table())
    return 0


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
        options = LogOptions(limits=limits, policy=policy_named(settings.policy), trigger=DeadRatio(),
                             observer=observer)
        log = stack.enter_context(SegmentLog(folder, options))
        outcome = log.compact(settings.kind, executor=executor, budget=budget)
    if isinstance(outcome, Failed):
        raise outcome.error
    if settings.as_json:
        _print_json(outcome.to_dicts())
    elif isinstance(outcome, Skipped):
        print(f"skipped: {outcome.reason}")
    else:
        show_table(outcome.stats.table())
    return 1 if not isinstance(outcome, Skipped) and outcome.stats.failed else 0


def verify(folder: str, *, as_json: bool) -> int:
    """Read everything in a log, or in all logs of a store, and print what is damaged.

    Returns the exit code: 1 if anything is.

    Raises:
        CompactlibError: it is no log and no store, or cannot be read.
    """
    logs = logs_of_store(folder)
    with waiting("verifying"):
        checked = [_verified(log) for log in ([folder] if logs is None else logs)]
    # What is wrong with the write-ahead log is wrong for each log of the store, and told once.
    damaged = list({str(error): error for each in checked for error in each.damaged}.values())
    rows = [_damage(error) for error in damaged]
    if as_json:
        _print_json(rows)
    elif rows:
        show_table(Table.from_dicts(rows))
        print(f"{folder}: {len(rows):,} damaged or missing; restore the files from a copy")
    else:
        entries, segments = sum(each.entries for each in checked), sum(each.segments for each in checked)
        print(f"{folder}: {'' if logs is None else f'{len(logs):,} logs, '}{entries:,} entries in {segments:,} "
              f"segments, all as they were written")
        if unflushed := sum(each.unflushed for each in checked):
            print(f"{unflushed:,} newer entries are in the write-ahead log, as they were written too")
    return 1 if rows else 0


@attrs.frozen
class _Verified:
    damaged: list[CorruptData]
    entries: int = 0
    segments: int = 0
    unflushed: int = 0


def _verified(folder: str) -> _Verified:
    try:
        with LogReader(folder) as reader:
            damaged = reader.verify()
            entries = sum(stats.entries for stats in reader.stats()) if not damaged else 0
            return _Verified(damaged, entries, len(reader.refs), len(reader.unflushed))
    except CorruptData as error:
        # So damaged that it cannot be opened: look at each file on its own.
        damaged = damage_in(folder)
        return _Verified(damaged if str(error) in map(str, damaged) else [*damaged, error])


def _damage(error: CorruptData) -> dict[str, Any]:
    return {"file": error.path, "offset": error.offset, "index": error.index, "expected": error.expected,
            "found": error.found}


def _print_json(value: Any) -> None:
    # What an error carries may be anything; as text it can always be told.
    print(json.dumps(value, indent=2, default=str))
