# SPDX-License-Identifier: Apache-2.0
"""`compactlib demo`: a real log written, compacted by each executor, opened anew, verified, and reported on."""

from __future__ import annotations

import contextlib
import os
import random
import shutil  # noqa: TID251 - scratch of the demo, no data of the library
import tempfile  # noqa: TID251 - scratch of the demo, no data of the library
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeAlias

import attrs

from compactlib.app.demo_log import LogSize, WrittenLog, copy_log, limits_for, write_log
from compactlib.app.demo_report import (
    ExecutorRun,
    run_table,
    say_begin,
    say_commands,
    say_left_out,
    say_run,
    say_selection,
    say_verdict,
    say_written,
)
from compactlib.app.executors import opened_executor
from compactlib.app.proof import differing_files, problems_in
from compactlib.app.terminal import progress_bar, show_table, waiting
from compactlib.app.workload import DEFAULT_MAX_BYTES, make_history, select_files
from compactlib.clock import Clock, SystemClock
from compactlib.errors import CompactionFailed, CorruptData, InvalidInput, MissingDependency, Unsupported
from compactlib.files import LocalFiles, list_folder, local_path
from compactlib.outcome import is_empty, raised
from compactlib.raftlog import LogCompactionReport, LogOptions, SegmentLimits, SegmentLog
from compactlib.rewrite import Executor

WRITTEN = "written"
"""The name of the log that was not compacted, in the demo's folder; the others bear their executors' names."""

OpenExecutor: TypeAlias = Callable[[str, int | None], AbstractContextManager[Executor]]


@attrs.frozen(kw_only=True)
class DemoSettings:
    """What the demo is to do.

    Attributes:
        input: the folder whose files are read.
        executors: names of executors, each of which compacts a copy of the same log.
        optional: those that are left out if they cannot run here.
        folder: where to keep the logs: missing or empty; default a temporary folder that goes at the end.
        max_bytes: how many bytes of files to read.
        seed: decides which files are chosen, and their history.
        workers: how many tasks an executor runs at once; default its own.
    """

    input: str
    executors: tuple[str, ...]
    optional: tuple[str, ...] = ()
    folder: str | None = None
    max_bytes: int = DEFAULT_MAX_BYTES
    seed: int = 0
    workers: int | None = None


def run_demo(settings: DemoSettings, *, open_executor: OpenExecutor = opened_executor,
             clock: Clock | None = None) -> int:
    """Run the demo and print what happens; returns the exit code, 0 if everything was verified, 1 if not.

    Raises:
        NotFound, InvalidInput: there is no input, or the folder for the logs has something in it.
        StorageError: the disk refused.
        MissingDependency, Unsupported: an executor cannot run here.
    """
    folder = _prepared(settings.folder)
    demo = _Demo(settings, folder, open_executor, SystemClock() if clock is None else clock)
    keep = settings.folder is not None
    try:
        verified = demo.run()
        # What went wrong must be there to be looked at.
        keep = keep or not verified
        if keep:
            say_commands(folder, (WRITTEN, *demo.executors))
        return 0 if verified else 1
    except CorruptData:
        keep = True
        raise
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _prepared(folder: str | None) -> str:
    if folder is None:
        return tempfile.mkdtemp(prefix="compactlib-demo-")
    folder = local_path(folder, "--folder")
    if not os.path.exists(folder):
        LocalFiles().make_folder(folder)
    names = list_folder(folder)
    if names:
        raise InvalidInput(f"{folder} is not empty (it holds {names[0]!r}); name a folder that is, or none that exists")
    return folder


class _Demo:
    """The steps of one demo."""

    def __init__(self, settings: DemoSettings, folder: str, open_executor: OpenExecutor, clock: Clock) -> None:
        self._settings = settings
        self._folder = folder
        self._open_executor = open_executor
        self._clock = clock
        self.executors: list[str] = []

    def run(self) -> bool:
        """All steps; returns whether everything was verified."""
        say_begin()
        limits, written = self._write()
        before = LogSize.of(written.folder)
        say_written(written, before)
        runs = [run for name in self._settings.executors if (run := self._compact(name, written, limits)) is not None]
        self.executors = [run.executor for run in runs]
        print()
        show_table(run_table(before, runs))
        print()
        return say_verdict(written, runs, self._differences(runs))

    @staticmethod
    def _differences(runs: list[ExecutorRun]) -> list[str]:
        first, *others = runs
        return [f"{name} of {other.executor} differs from that of {first.executor}"
                for other in others for name in differing_files(first.folder, other.folder)]

    def _write(self) -> tuple[SegmentLimits, WrittenLog]:
        settings = self._settings
        rng = random.Random(settings.seed)
        with waiting("looking for files"):
            selection = select_files(settings.input, settings.max_bytes, rng)
        say_selection(settings.input, selection)
        history = make_history(selection.files, rng)
        limits = limits_for(history)
        with waiting("writing the log"):
            written = write_log(os.path.join(self._folder, WRITTEN), history, limits=limits, seed=settings.seed,
                                clock=self._clock)
        return limits, written

    def _compact(self, name: str, written: WrittenLog, limits: SegmentLimits) -> ExecutorRun | None:
        folder = os.path.join(self._folder, name)
        began = self._clock.monotonic()
        with contextlib.ExitStack() as stack:
            try:
                with waiting(f"starting {name}"):
                    executor = stack.enter_context(self._open_executor(name, self._settings.workers))
            except (MissingDependency, Unsupported) as error:
                if name not in self._settings.optional:
                    raise
                say_left_out(name, error)
                return None
            started = self._clock.monotonic() - began
            with waiting("copying the log"):
                copy_log(written.folder, folder)
            report = _compacted(folder, name, limits, executor)
        with waiting("verifying"):
            problems = tuple(problems_in(folder, written))
        run = ExecutorRun(executor=name, folder=folder, start_seconds=started, report=report, size=LogSize.of(folder),
                          problems=problems)
        say_run(run)
        return run


def _compacted(folder: str, name: str, limits: SegmentLimits, executor: Executor) -> LogCompactionReport | None:
    with progress_bar(name) as observer, SegmentLog(folder, LogOptions(limits=limits, observer=observer)) as log:
        try:
            report = raised(log.compact(policy=log.policy, executor=executor))
        except CompactionFailed as error:
            report = error.report
    return None if is_empty(report) else getattr(report, "report", report)
