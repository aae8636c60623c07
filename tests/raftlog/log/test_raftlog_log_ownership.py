# SPDX-License-Identifier: Apache-2.0
"""A log owns its compaction: one at a time, told from any thread, ended by closing, and unharmed by whoever raises."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest

from compactlib.errors import Busy, Closed, CompactlibError, TaskFailed
from compactlib.executors import Attempt, Executor, LocalExecutor, RewriteFailure, RewriteResult, RewriteTask
from compactlib.executors.tasks import attempt_task
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog import LogChoice, LogView, SegmentLog
from compactlib.raftlog.compaction.report import CompactionFailed
from compactlib.rewrite import RewriteOutcome
from compactlib.runtime import Budget, Observer, Progress
from tests.raftlog.compaction_logs import Expected, compact_to_rest, entries_of, options, strays
from tests.raftlog.wrapped_files import WatchedFiles

LIVE = [1, 20, 40, 60]
EXPECTED = Expected.of(entries_of(1, 80), 64, LIVE)


def opened(folder: Path, **changes: Any) -> SegmentLog:
    """A log with four groups to rewrite."""
    log = SegmentLog(folder, options(**changes))
    log.extend(entries_of(1, 80))
    log.record_snapshot(64, LIVE)
    return log


class _EachAlone:
    """Rewrites every segment by itself, so that there are several tasks."""

    name: ClassVar[str] = "each alone"

    def choose(self, view: LogView, now: float) -> LogChoice:
        return LogChoice(tuple((segment.number,) for segment in view.candidates), (), "each alone")


def usable(log: SegmentLog, folder: Path) -> None:
    """The log goes on as if nothing had happened, and leaves nothing behind."""
    EXPECTED.check(log)
    compact_to_rest(log)
    EXPECTED.check(log)
    log.append(81, 2, b"after")
    log.sync()
    log.audit()
    log.close()
    assert strays(folder) == []


@attrs.define
class _Inside(Observer):
    """Does something once when told of work by a thread that is not the test's own."""

    act: Callable[[], object]
    own_thread: bool = False
    told: list[object] = attrs.field(factory=list)

    def progress(self, progress: Progress) -> None:
        here = threading.current_thread() is threading.main_thread()
        if not self.told and here == self.own_thread:
            self.told.append(None)
            try:
                self.told[0] = self.act()
            except BaseException as error:
                self.told[0] = error


class _OwnThreads:
    """An executor of a host: each task in a thread that the library knows nothing of."""

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteOutcome]:
        for number, task in enumerate(tasks):
            outcomes: list[RewriteOutcome] = []
            attempt = Attempt(f"own-{number}", budget or Budget(), observer or Observer())

            def work(task: RewriteTask = task, attempt: Attempt = attempt,
                     outcomes: list[RewriteOutcome] = outcomes) -> None:
                outcomes.append(attempt_task(task, attempt))
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            yield from outcomes


@pytest.mark.parametrize("executor", [LocalExecutor(), LocalExecutor(workers=2), _OwnThreads()],
                         ids=["one", "two", "of its own"])
def test_closing_from_an_observer_is_busy_on_whichever_thread(tmp_path: Path, executor: Executor) -> None:
    """It hung for good on a worker's thread: the lock knew only the thread that had begun."""
    logs: list[SegmentLog] = []
    observer = _Inside(lambda: logs[0].close(), own_thread=isinstance(executor, LocalExecutor))
    log = opened(tmp_path, observer=observer)
    logs.append(log)
    assert isinstance(log.compact(policy=_EachAlone(), executor=executor), Done)
    assert isinstance(observer.told[0], Busy)
    usable(log, tmp_path)


def test_a_second_compaction_is_skipped_also_from_inside(tmp_path: Path) -> None:
    logs: list[SegmentLog] = []
    observer = _Inside(lambda: (logs[0].compact(policy=logs[0].policy), logs[0].reclaim()), own_thread=True)
    log = opened(tmp_path, observer=observer)
    logs.append(log)
    assert isinstance(log.compact(policy=_EachAlone(), executor=LocalExecutor(workers=2)), Done)
    told = observer.told[0]
    assert isinstance(told, tuple)
    assert [type(each) for each in told] == [Skipped, Skipped]
    usable(log, tmp_path)


@pytest.mark.parametrize("executor", [LocalExecutor(), LocalExecutor(workers=2), _OwnThreads()],
                         ids=["one", "two", "of its own"])
def test_closing_from_a_task_is_busy_on_whichever_thread(tmp_path: Path, executor: Executor) -> None:
    """A task's disk is the host's, and may do anything; so may the threads of a host's executor."""
    logs: list[SegmentLog] = []
    refused: list[BaseException] = []

    def look(operation: str, path: str) -> None:
        if operation == "create" and "rewrite-" in path and not refused:
            try:
                logs[0].close()
            except Busy as error:
                refused.append(error)

    log = opened(tmp_path, files=WatchedFiles(look))
    logs.append(log)
    assert isinstance(log.compact(policy=_EachAlone(), executor=executor), Done)
    assert len(refused) == 1
    usable(log, tmp_path)


@attrs.frozen
class _PolicyThat:
    act: Callable[[], object]

    name: ClassVar[str] = "acts"

    def choose(self, view: LogView, now: float) -> LogChoice:
        self.act()
        return _EachAlone().choose(view, now)


def test_closing_from_a_policy_is_busy_and_propagates(tmp_path: Path) -> None:
    log = opened(tmp_path)
    with pytest.raises(Busy, match="from within"):
        log.compact(policy=_PolicyThat(log.close))
    usable(log, tmp_path)


class _Fault(Exception):
    """Somebody else's."""


class _Stop(BaseException):
    """As `KeyboardInterrupt` and `SystemExit`: it passes through everything."""


def raising(error: BaseException) -> Callable[..., Any]:
    def act(*arguments: object, **named: object) -> Any:
        raise error
    return act


@pytest.mark.parametrize("error", [_Fault("a bug"), Busy("of its own"), _Stop()],
                         ids=["foreign", "ours", "interrupt"])
def test_what_a_policy_raises_propagates_and_the_log_goes_on(tmp_path: Path, error: BaseException) -> None:
    log = opened(tmp_path)
    with pytest.raises(type(error)):
        log.compact(policy=_PolicyThat(raising(error)))
    with pytest.raises(type(error)):
        log.plan(_PolicyThat(raising(error)))
    usable(log, tmp_path)


class _RaisingObserver(Observer):
    def progress(self, progress: Progress) -> None:
        raise _Fault("a watcher's bug")

    def count(self, name: str, value: int = 1, labels: Mapping[str, str] | None = None) -> None:
        raise _Fault("a watcher's bug")

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        raise _Fault("a watcher's bug")


@pytest.mark.parametrize("workers", [1, 2])
def test_what_an_observer_raises_is_kept_and_the_work_is_done(tmp_path: Path, workers: int) -> None:
    log = opened(tmp_path, observer=_RaisingObserver())
    outcome = log.compact(policy=_EachAlone(), executor=LocalExecutor(workers=workers))
    assert isinstance(outcome, Done)
    assert len(outcome.stats.done) == 4
    log.close()
    (tmp_path / "0000000000000003.segment.tmp").write_bytes(b"left by a crash")
    # Opening tells of what it has found.
    usable(SegmentLog(tmp_path, options(observer=_RaisingObserver())), tmp_path)


@attrs.frozen
class _ExecutorThat:
    """Gives `good` outcomes as it should; then `then` happens."""

    good: int
    then: Callable[[Sequence[RewriteTask]], Iterable[Any]]

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
        listed = list(tasks)
        yield from LocalExecutor().run(listed[:self.good], budget=budget, observer=observer)
        yield from self.then(listed[self.good:])


def _result_of(task: RewriteTask) -> RewriteResult:
    return RewriteResult(task=task.name, attempt="none", files=(), bytes_read=0, bytes_written=0, seconds=0.0)


BROKEN: Mapping[str, Callable[[Sequence[RewriteTask]], Iterable[Any]]] = {
    "raises": raising(_Fault("the cluster is gone")),
    "raises one of ours": raising(CompactlibError("the cluster is gone")),
    "gives too few": lambda tasks: (),
    "gives a stranger's": lambda tasks: [RewriteFailure("somebody else's", CompactlibError("no"))],
    "gives nonsense": lambda tasks: ["done"],
    "gives no files": lambda tasks: map(_result_of, tasks),
}


@pytest.mark.parametrize("good", [0, 1])
@pytest.mark.parametrize("how", BROKEN)
def test_whatever_an_executor_does_the_rest_fails_by_name_and_the_log_goes_on(tmp_path: Path, how: str,
                                                                             good: int) -> None:
    log = opened(tmp_path)
    outcome = log.compact(policy=_EachAlone(), executor=_ExecutorThat(good, BROKEN[how]))
    assert isinstance(outcome, CompactionFailed)
    assert outcome.changed == ("partly" if good else "no")
    assert (len(outcome.report.done), len(outcome.report.failed)) == (good, 4 - good)
    error = outcome.error
    assert isinstance(error, CompactlibError)
    assert not how.startswith("raises") or "the cluster is gone" in str(error)
    assert how != "raises" or isinstance(error, TaskFailed)
    usable(log, tmp_path)


class _RunRaises:
    """Raises when it is called, and not when it is asked for the first outcome."""

    run = raising(_Fault("no cluster"))


def test_an_executor_that_raises_at_once_is_a_failure_by_name(tmp_path: Path) -> None:
    log = opened(tmp_path)
    outcome = log.compact(policy=log.policy, executor=_RunRaises())
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, TaskFailed)
    assert "no cluster" in str(outcome.error)
    usable(log, tmp_path)


def test_an_interrupt_in_the_executor_propagates_and_the_log_goes_on(tmp_path: Path) -> None:
    log = opened(tmp_path)
    with pytest.raises(_Stop):
        log.compact(policy=_EachAlone(), executor=_ExecutorThat(1, raising(_Stop())))
    usable(log, tmp_path)


def test_closing_from_another_thread_cancels_and_waits(tmp_path: Path) -> None:
    began, closed, order = threading.Event(), threading.Event(), list[str]()

    class Slow:
        def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
                observer: Observer | None = None) -> Iterator[RewriteOutcome]:
            assert budget is not None
            began.set()
            # Until the log is being closed, and not before.
            while not budget.cancelled:
                closed.wait(0.001)
            order.append("cancelled")
            yield from LocalExecutor().run(tasks, budget=budget, observer=observer)
            order.append("ended")

    log = opened(tmp_path)
    outcomes: list[object] = []
    thread = threading.Thread(target=lambda: outcomes.append(log.compact(policy=log.policy, executor=Slow())))
    thread.start()
    began.wait()
    log.close()
    order.append("closed")
    thread.join()
    assert order == ["cancelled", "ended", "closed"]
    assert isinstance(outcomes[0], Failed)
    for call in (log.compact, log.reclaim, log.sync):
        with pytest.raises(Closed):
            call()
    log.close()
    with SegmentLog(tmp_path, options()) as again:
        EXPECTED.check(again)
