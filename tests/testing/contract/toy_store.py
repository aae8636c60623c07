# SPDX-License-Identifier: Apache-2.0
"""A small store that keeps the contract, and its driver: one file a write, whose lines that begin with `#` are garbage.

A compaction writes each file that has garbage anew, without it, and commits it by a rename. Each step that a planted
mistake gets wrong is a method of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from compactlib.clock import Clock
from compactlib.contract import CommitFence, Policy
from compactlib.errors import AuditFailed, Closed, CompactlibError, CorruptData, InvalidInput, Stale
from compactlib.executors import Executor, LocalExecutor, RewriteFailure, RewriteResult
from compactlib.executors.tasks import foreign_error
from compactlib.files import Files, sync_names, write_durably
from compactlib.files.folder_lock import FolderLock
from compactlib.outcome import Done, Failed, Skipped
from compactlib.report import Finding, VerifyReport
from compactlib.runtime import Budget, Observer
from compactlib.runtime.ownership import Ownership, Run
from compactlib.testing import Journal, World
from tests.harness.toy_lines import Clean, LineChoice, LineFile, LinePlan, LineStatus, LineView, MinGarbage


class LineStore:
    """The store. Right in everything, one step a method, for others to get one of them wrong."""

    def __init__(self, folder: Path, *, files: Files, clock: Clock) -> None:
        self._folder = folder
        self._files = files
        self._policy: Policy[LineView, LineChoice] = MinGarbage()
        self._clock = clock
        self._owner = Ownership(f"the lines in {folder}")
        self._lock = self.locked()
        try:
            sync_names(self._files, folder)
        except BaseException:
            self._lock.release()
            raise

    def locked(self) -> FolderLock:
        return FolderLock(self._folder)

    def write(self, number: int, lines: Sequence[str]) -> None:
        """One file of lines; durable on return."""
        self.require_open()
        write_durably(self._files, self._path(number), [f"{line}\n".encode() for line in lines])

    def read(self, number: int) -> list[str]:
        """The lines of a file that are no garbage."""
        data = self._path(number).read_bytes()
        if not data.isascii():
            raise CorruptData(path=self._path(number), offset=0, expected="ASCII text", found="other bytes")
        return [line for line in data.decode().splitlines() if not line.startswith("#")]

    def view(self, *, budget: Budget | None = None) -> LineView:
        self.require_open()
        return LineView(str(self._folder), tuple(self._line_file(path) for path in self._paths()))

    def plan(self, policy: Policy[LineView, LineChoice] | None = None, *, view: LineView | None = None) -> LinePlan:
        self.require_open()
        chosen = self.choice(policy or self._policy, self.view() if view is None else view)
        return LinePlan(str(self._folder), chosen.files, chosen.why, self.room())

    def choice(self, policy: Policy[LineView, LineChoice], view: LineView) -> LineChoice:
        found: object = policy.choose(view, self._clock.now())
        if not isinstance(found, LineChoice):
            raise InvalidInput(f"the policy {policy.name} chose {found!r}; choose() has to answer a LineChoice")
        return found

    def room(self) -> int | None:
        return self._files.available_bytes(self._folder)

    def compact(self, plan: LinePlan | None = None, *, policy: Policy[LineView, LineChoice] | None = None,
                executor: Executor | None = None, budget: Budget | None = None, observer: Observer | None = None,
                fence: CommitFence | None = None) -> Done[int] | Skipped | Failed:
        self.require_open()
        self.require_one_of(plan, policy)
        self.require_mine(plan)
        with self.begin(budget) as run:
            if run is None:
                return self.busy()
            return self.carry_out(run, plan, policy, executor or LocalExecutor(), self.notified(run, observer), fence)

    def begin(self, budget: Budget | None) -> contextlib.AbstractContextManager[Run | None]:
        return self._owner.begin(budget)

    def require_one_of(self, plan: LinePlan | None, policy: object) -> None:
        if plan is not None and policy is not None:
            raise InvalidInput("a plan and a policy were given; give one of them")

    def require_mine(self, plan: LinePlan | None) -> None:
        if plan is not None and plan.store != str(self._folder):
            raise InvalidInput(f"this is a plan of {plan.store}; make one of {self._folder}")

    def busy(self) -> Skipped:
        return Skipped("1 compaction is under way", is_busy=True)

    def notified(self, run: Run, observer: Observer | None) -> Observer:
        return run.observer(observer)

    def carry_out(self, run: Run, plan: LinePlan | None, policy: Policy[LineView, LineChoice] | None,
                  executor: Executor, observer: Observer, fence: CommitFence | None) -> Done[int] | Skipped | Failed:
        observer.event("lines_compaction_begins", {})
        if plan is None:
            plan = self.plan(policy)
        if plan.is_empty:
            return Skipped(plan.why)
        if self.is_outdated(plan):
            return Failed(Stale(f"the files of the plan {plan!r} have changed; make a new one"))
        room = self.room()
        if room is not None and room < plan.bytes_needed:
            return Skipped(f"{plan.bytes_needed} bytes are needed, and there is room for {room}; free some")
        committed = 0
        try:
            run.budget.check()
            for outcome in self.rewritten(plan, executor, run.budget, observer):
                if isinstance(outcome, RewriteFailure):
                    raise outcome.error
                run.budget.check()
                self.commit(outcome, fence)
                committed += 1
        except _Unknown as error:
            return Failed(error.cause, "unknown")
        except CompactlibError as error:
            return Failed(error, self.changed(committed))
        finally:
            self.clean_up()
        return Done(committed)

    def changed(self, committed: int) -> Any:
        return "partly" if committed else "no"

    def is_outdated(self, plan: LinePlan) -> bool:
        return not set(plan.chosen) <= set(self.view().files)

    def rewritten(self, plan: LinePlan, executor: Executor, budget: Budget,
                  observer: Observer) -> Iterator[RewriteResult | RewriteFailure]:
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
                observer: Observer) -> Iterable[Any]:
        try:
            yield from executor.run(tasks, budget=budget, observer=observer)
        except CompactlibError:
            raise
        except Exception as error:
            raise foreign_error("clean", error) from error

    def commit(self, result: RewriteResult, fence: CommitFence | None) -> None:
        with self.guard(fence):
            private = result.files[0].path
            target = private.split(".lines")[0] + ".lines"
            try:
                self._files.rename(private, target)
                self._files.sync_folder(self._folder)
            except CompactlibError as error:
                raise _Unknown(error) from error

    def guard(self, fence: CommitFence | None) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext() if fence is None else fence.guard()

    def clean_up(self) -> int:
        leftovers = [path for path in self._folder.iterdir() if path.suffix == ".new"]
        for path in leftovers:
            with contextlib.suppress(CompactlibError):
                self._files.unlink(path)
        return len(leftovers)

    def reclaim(self, *, budget: Budget | None = None) -> Done[int] | Skipped | Failed:
        self.require_open()
        with self.begin(budget) as run:
            return self.busy() if run is None else Done(self.clean_up())

    def verify(self, *, budget: Budget | None = None) -> VerifyReport:
        self.require_open()
        findings: list[Finding] = []
        size = 0
        for path in self._paths():
            size += path.stat().st_size
            findings += self.damage_in(path)
        return VerifyReport(tuple(findings), len(self._paths()), size)

    def damage_in(self, path: Path) -> list[Finding]:
        try:
            self.read(int(path.stem))
        except CompactlibError as error:
            return [Finding("damage", str(path), "a line has changed", error)]
        return []

    def status(self) -> LineStatus:
        self.require_open()
        return LineStatus(self.is_busy(), len(self._paths()))

    def is_busy(self) -> bool:
        return self._owner.is_running

    def audit(self) -> None:
        self.require_open()
        if not self._folder.is_dir():
            raise AuditFailed(f"{self._folder} is gone")

    def close(self) -> None:
        self._owner.close()
        self._lock.release()

    def require_open(self) -> None:
        if self._owner.is_closed:
            raise Closed(f"{self._folder} was closed; open it again")
        self._lock.require_mine()

    def _paths(self) -> list[Path]:
        return sorted(path for path in self._folder.iterdir() if path.suffix == ".lines")

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:04}.lines"

    def _line_file(self, path: Path) -> LineFile:
        lines = path.read_bytes().splitlines(True)
        garbage = sum(len(line) for line in lines if line.startswith(b"#"))
        return LineFile(int(path.stem), sum(map(len, lines)), garbage)


class _Unknown(Exception):
    """The commit may have happened."""

    def __init__(self, cause: CompactlibError) -> None:
        super().__init__(str(cause))
        self.cause = cause


class LineDriver:
    """Opens stores of one kind, and writes files of which a third is garbage."""

    has_peers = False

    def __init__(self, kind: type[LineStore] = LineStore) -> None:
        self._kind = kind

    def settings(self) -> Sequence[None]:
        return [None]

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
