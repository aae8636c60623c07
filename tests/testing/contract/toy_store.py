# SPDX-License-Identifier: Apache-2.0
"""A small store that keeps the contract, and its driver: one file a write, whose lines that begin with `#` are garbage.

A compaction rewrites each file with garbage, without it, and commits it by a rename. Each step that a planted
mistake gets wrong is a method of its own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import attrs

from compactlib.budget import Budget
from compactlib.clock import Clock
from compactlib.contract import CommitFence, Policy
from compactlib.errors import AuditFailed, BudgetSpent, Busy, CompactionFailed, CompactlibError, InvalidInput, Stale
from compactlib.executors import Executor, LocalExecutor, RewriteFailure, RewriteResult
from compactlib.executors.tasks import foreign_error
from compactlib.files import Files, sync_names, write_durably
from compactlib.guard import Guard, Run
from compactlib.observer import Observer, notify
from compactlib.report import VerifyReport
from compactlib.testing import Driver, Journal, World
from tests.harness.toy_lines import Clean, LineChoice, LineFile, LinePlan, LineStatus, LineView, MinGarbage


@attrs.frozen
class LineReport:
    """The result of a compaction: the number of rewritten files, and the reason if there are none or not all."""

    files: int = 0
    why: str = ""
    is_partial: bool = False

    @property
    def is_empty(self) -> bool:
        return not self.files


class LineStore:
    """The store. Right in everything, one step a method, for others to get one of them wrong."""

    def __init__(self, folder: Path, *, files: Files, clock: Clock) -> None:
        self._folder, self._files, self._clock = folder, files, clock
        self._policy: Policy[LineView, LineChoice] = MinGarbage()
        self._compacting: int | None = None  # the thread that does
        self._guard = Guard(f"the lines in {folder}")
        try:
            with self._guard.lock:
                self._guard.begin("its opening")
                self.lock_folder()
                sync_names(self._files, folder)
                self._guard.done()
        except BaseException:
            self._guard.release()
            raise

    def lock_folder(self) -> None:
        self._guard.lock_folder(self._folder)

    def require_open(self) -> None:
        self._guard.require_open()

    def close(self) -> None:
        if self.is_within():
            raise Busy(f"{self._folder} cannot be closed by its own compaction; close it when that has ended")
        self._guard.release()

    def is_within(self) -> bool:
        return self._compacting == threading.get_ident()

    def write(self, number: int, lines: Sequence[str]) -> None:
        """One file of lines; durable on return."""
        self.require_open()
        write_durably(self._files, self._path(number), [f"{line}\n".encode() for line in lines])

    def read(self, number: int) -> list[str]:
        """The lines of a file that are no garbage."""
        return [line for line in self._path(number).read_text().splitlines() if not line.startswith("#")]

    # ---- sense and plan

    def view(self, *, budget: Budget | None = None) -> LineView:
        self.require_open()
        return LineView(str(self._folder), tuple(self._line_file(path) for path in self._paths()))

    def plan(self, policy: Policy[LineView, LineChoice] | None = None, *, view: LineView | None = None) -> LinePlan:
        self.require_open()
        chosen = self.choice(policy or self._policy, self.view() if view is None else view)
        return LinePlan(str(self._folder), chosen.files, chosen.why, self.room())

    def choice(self, policy: Policy[LineView, LineChoice], view: LineView) -> LineChoice:
        return policy.choose(view, self._clock.now())

    def room(self) -> int | None:
        return self._files.available_bytes(self._folder)

    # ---- compact

    def compact(self, plan: LinePlan | None = None, *, policy: Policy[LineView, LineChoice] | None = None,
                executor: Executor | None = None, budget: Budget | None = None, observer: Observer | None = None,
                fence: CommitFence | None = None) -> LineReport:
        self.require_open()
        self.require_one_of(plan, policy)
        self.require_mine(plan)
        with self.begun(budget) as run:
            self.notify(observer, "lines_compaction_begins")
            return self.carry_out(run, self.plan(policy) if plan is None else plan, executor or LocalExecutor(),
                                  observer, fence)

    def require_one_of(self, plan: LinePlan | None, policy: object) -> None:
        if plan is not None and policy is not None:
            raise InvalidInput("a plan and a policy were given; give one of them")

    def require_mine(self, plan: LinePlan | None) -> None:
        if plan is not None and plan.store != str(self._folder):
            raise InvalidInput(f"this is a plan of {plan.store}; make one of {self._folder}")

    @contextlib.contextmanager
    def begun(self, budget: Budget | None) -> Iterator[Run]:
        run = Run(self._guard, budget)
        with run.held:
            run.begin()
            self._compacting = threading.get_ident()
            try:
                yield run
            finally:
                self._compacting = None

    def notify(self, observer: Observer | None, event: str) -> None:
        notify(observer, event)

    def carry_out(self, run: Run, plan: LinePlan, executor: Executor, observer: Observer | None,
                  fence: CommitFence | None) -> LineReport:
        if plan.is_empty:
            return LineReport(why=plan.why)
        if self.is_outdated(plan):
            raise Stale(f"the files of the plan {plan!r} have changed; make a new one")
        room = self.room()
        if room is not None and room < plan.bytes_needed:
            return LineReport(why=f"{plan.bytes_needed} bytes are needed, and there is room for {room}; free some")
        committed = 0
        try:
            run.budget.check()
            for outcome in self.rewritten(plan, executor, run.budget, observer):
                if isinstance(outcome, RewriteFailure):
                    raise outcome.error
                run.budget.check()
                committed += self.commit(outcome, fence)
        except CompactlibError as error:
            if not self.has_changed_by(committed):
                raise
            if isinstance(error, BudgetSpent):
                return LineReport(committed, str(error), is_partial=True)
            raise CompactionFailed(report=LineReport(committed), failures={"the next file": error}) from error
        finally:
            self.clean_up()
        return self.whole(committed)

    def has_changed_by(self, committed: int) -> bool:
        return committed > 0

    def whole(self, committed: int) -> LineReport:
        return LineReport(committed)

    def is_outdated(self, plan: LinePlan) -> bool:
        return not set(plan.chosen) <= set(self.view().files)

    def rewritten(self, plan: LinePlan, executor: Executor, budget: Budget,
                  observer: Observer | None) -> Iterator[RewriteResult | RewriteFailure]:
        """The outcome of each task, exactly once."""
        tasks = {task.name: task for task in map(self.task, plan.chosen)}
        for outcome in self.answers(executor, list(tasks.values()), budget, observer):
            if not isinstance(outcome, RewriteResult | RewriteFailure) or tasks.pop(outcome.task, None) is None:
                raise InvalidInput(f"the executor answered {outcome!r}; one outcome a task is needed")
            yield outcome
        if tasks:
            raise InvalidInput(f"the executor has not answered for {sorted(tasks)}")

    def task(self, file: LineFile) -> Clean:
        return Clean(f"clean {file.number}", str(self._path(file.number)), self._files)

    def answers(self, executor: Executor, tasks: list[Clean], budget: Budget,
                observer: Observer | None) -> Iterable[Any]:
        try:
            yield from executor.run(tasks, budget=budget, observer=observer)
        except CompactlibError:
            raise
        except Exception as error:
            raise foreign_error("clean", error) from error

    def commit(self, result: RewriteResult, fence: CommitFence | None) -> int:
        """Switch one file, and return how many were switched."""
        private = result.files[0].path
        with self.guarded(fence), self._guard.lock:
            self._guard.begin("a commit")
            self._files.rename(private, private.split(".lines")[0] + ".lines")
            self._files.sync_folder(self._folder)
            self._guard.done()
        return 1

    def guarded(self, fence: CommitFence | None) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext() if fence is None else fence.guard()

    # ---- reclaim, and the rest

    def clean_up(self) -> int:
        leftovers = [path for path in self._folder.iterdir() if path.suffix == ".new"]
        for path in leftovers:
            with contextlib.suppress(CompactlibError):
                self._files.unlink(path)
        return len(leftovers)

    def reclaim(self, *, budget: Budget | None = None) -> LineReport:
        self.require_open()
        with self.begun(budget):
            return LineReport(self.clean_up())

    def verify(self, *, budget: Budget | None = None) -> VerifyReport:
        self.require_open()
        return VerifyReport((), len(self._paths()), sum(path.stat().st_size for path in self._paths()))

    def status(self) -> LineStatus:
        self.require_open()
        return LineStatus(self.is_busy(), len(self._paths()))

    def is_busy(self) -> bool:
        return bool(self._guard.running)

    def audit(self) -> None:
        self.require_open()
        if not self._folder.is_dir():
            raise AuditFailed(f"{self._folder} is gone")

    def _paths(self) -> list[Path]:
        return sorted(path for path in self._folder.iterdir() if path.suffix == ".lines")

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:04}.lines"

    def _line_file(self, path: Path) -> LineFile:
        lines = path.read_bytes().splitlines(True)
        garbage = sum(len(line) for line in lines if line.startswith(b"#"))
        return LineFile(int(path.stem), sum(map(len, lines)), garbage)


class LineDriver(Driver[LineStore]):
    """Opens stores of one kind, and writes files of which a third is garbage."""

    def __init__(self, kind: type[LineStore] = LineStore) -> None:
        self._kind = kind

    def open(self, world: World, settings: None) -> LineStore:
        return self._kind(world.folder, files=world.files, clock=world.clock)

    def policy(self) -> MinGarbage:
        return MinGarbage(min_bytes=2)

    def act(self, store: LineStore, rng: Random, journal: Journal) -> None:
        for number in (2 * len(journal.changes) + 1, 2 * len(journal.changes) + 2):
            with journal.trying(number):
                store.write(number, [_line(number, line) if line % 3 else f"# garbage {line}" for line in range(9)])

    def check(self, store: LineStore, journal: Journal, *, damage: str) -> None:
        for number in (change.what for change in journal.changes):
            assert store.read(number) == [_line(number, line) for line in range(9) if line % 3], f"file {number}"


def _line(number: int, line: int) -> str:
    return f"file {number}, line {line}"
