# SPDX-License-Identifier: Apache-2.0
"""A worker runs jobs, keeps their leases, gives them back, cleans up, and ends when it is stopped."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from compactlib.clock import ManualClock
from compactlib.commandlog import KVLog
from compactlib.errors import Busy, InvalidInput
from compactlib.kv import MemoryStore
from compactlib.scheduler import (
    BlockMeta,
    CompactedBlocks,
    JobStatus,
    LevelConfig,
    NoOutput,
    PollRequest,
    PollResponse,
    RunningJob,
    Scheduler,
    SchedulerConfig,
    Tombstone,
    Worker,
    WorkerOptions,
)
from compactlib.scheduler.errors import JobLost, ReleaseJob
from compactlib.testing import Interrupted
from tests.harness.recording import RecordingObserver

PATIENCE = 60.0
QUICK = WorkerOptions(poll_seconds=0.01, max_poll_seconds=0.05)


def opened(count: int = 2, *, clock: ManualClock | None = None, **settings: float) -> Scheduler:
    """Return a scheduler with a number of planned jobs of one block each."""
    config = SchedulerConfig(levels=(LevelConfig(max_blocks=1),), **settings)  # type: ignore[arg-type]
    scheduler = Scheduler(KVLog(MemoryStore(), clock=clock), None, config)
    scheduler.add_blocks(BlockMeta(id=f"b{number}", tenant="acme", shard=1, level=0) for number in range(count))
    scheduler.poll(PollRequest(job_capacity=count))
    return scheduler


def done(job: RunningJob) -> CompactedBlocks:
    plan = job.plan
    output = BlockMeta(id=job.output_id(), tenant=plan.tenant, shard=plan.shard, level=1)
    return CompactedBlocks(tenant=plan.tenant, shard=plan.shard, source_blocks=plan.source_blocks, new_blocks=(output,))


def until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def levels_of(scheduler: Scheduler) -> list[int]:
    return sorted(scheduler.read(lambda machine: [block.level for block in machine.index.blocks()]))


def test_jobs_run_in_threads_and_outputs_replace_sources() -> None:
    scheduler, runs = opened(3), []

    def execute(job: RunningJob) -> CompactedBlocks:
        runs.append(job.token)
        return done(job)

    with Worker(scheduler, execute, options=QUICK) as worker:
        until(lambda: levels_of(scheduler) == [1, 1, 1])
    assert worker.is_idle
    assert len(runs) == 3
    assert (worker.failures, worker.last_error) == (0, None)
    assert scheduler.status()["jobs"] == 0


def test_a_worker_starts_again_after_it_was_stopped() -> None:
    scheduler = opened(1)
    worker = Worker(scheduler, done, options=QUICK)
    worker.stop()
    for _ in range(2):
        worker.start()
        worker.start()
        worker.stop()
        worker.stop()
    with worker:
        until(lambda: levels_of(scheduler) == [1])


def test_run_pending_works_in_the_thread_of_its_caller() -> None:
    scheduler, threads = opened(2), set()

    def execute(job: RunningJob) -> CompactedBlocks:
        threads.add(threading.current_thread())
        return done(job)

    worker = Worker(scheduler, execute, options=WorkerOptions(capacity=2))
    assert worker.run_pending() == 2
    assert worker.run_pending() == 0
    assert threads == {threading.current_thread()}
    assert levels_of(scheduler) == [1, 1]


def test_an_interrupt_of_run_pending_leaves_no_job_behind() -> None:
    """The next calls complete the interrupted work, or release it. At a sample of the places, to save time."""
    with ThreadPoolExecutor(1) as elsewhere:
        class Remote:
            """Polls in another thread, where no interrupt comes."""

            def __init__(self) -> None:
                self.scheduler = opened(2)

            def poll(self, request: PollRequest) -> PollResponse:
                return elsewhere.submit(self.scheduler.poll, request).result()

        options = WorkerOptions(capacity=2, poll_seconds=0.01)
        with Interrupted() as whole:
            assert Worker(Remote(), done, options=options).run_pending() == 2
        assert whole.places > 50
        for place in range(1, whole.places + 1, 11):
            remote = Remote()
            worker, interrupted = Worker(remote, done, options=options), Interrupted(place)
            with contextlib.suppress(KeyboardInterrupt), interrupted:
                worker.run_pending()
            worker.run_pending()
            worker.run_pending()
            assert worker.is_idle, interrupted.where


def test_a_job_released_by_an_interrupt_does_not_begin_later() -> None:
    """At every place until the first of two jobs runs."""
    with ThreadPoolExecutor(1) as elsewhere:
        class Remote:
            """Polls in another thread, where no interrupt comes; notes the released runs."""

            def __init__(self) -> None:
                self.scheduler = opened(2)
                self.released: set[int] = set()

            def poll(self, request: PollRequest) -> PollResponse:
                self.released |= {said.token for said in request.status_updates if said.status == JobStatus.RELEASED}
                return elsewhere.submit(self.scheduler.poll, request).result()

        for place in itertools.count(1):
            remote, began = Remote(), list[bool]()

            def execute(job: RunningJob, remote: Remote = remote, began: list[bool] = began) -> CompactedBlocks:
                began.append(job.token in remote.released)
                return done(job)

            worker, interrupted = Worker(remote, execute, options=WorkerOptions(capacity=1)), Interrupted(place)
            with contextlib.suppress(KeyboardInterrupt), interrupted:
                worker.run_pending()
            is_over = bool(began)
            worker.run_pending()
            assert True not in began, interrupted.where
            if is_over:
                break
        assert place > 50


def test_a_job_that_checks_keeps_its_lease_in_run_pending() -> None:
    clock = ManualClock(1000.0)
    scheduler = opened(1, clock=clock)

    def execute(job: RunningJob) -> CompactedBlocks:
        for _ in range(10):
            clock.advance(6.0)
            job.check()
            assert job.lease_seconds_left > 0
        return done(job)

    Worker(scheduler, execute, clock=clock).run_pending()
    assert levels_of(scheduler) == [1]


def test_a_lost_job_assigned_again_in_the_same_answer_is_a_new_run() -> None:
    clock = ManualClock(1000.0)
    scheduler, tokens = opened(1, clock=clock), []
    worker = Worker(scheduler, lambda job: execute(job), clock=clock, options=WorkerOptions(capacity=2))

    def execute(job: RunningJob) -> CompactedBlocks:
        tokens.append(job.token)
        if len(tokens) == 1:
            clock.advance(16.0)
            other = scheduler.poll(PollRequest(job_capacity=1))  # another worker gets it
            clock.advance(16.0)  # and loses it, so that this one's next poll brings it back
            assert other.assignments[0].token > job.token
            with pytest.raises(JobLost):
                job.check()
            assert job.token == tokens[0]
        return done(job)

    for _ in range(3):
        worker.run_pending()
    assert len(tokens) == 2
    assert tokens[0] < tokens[1]
    assert levels_of(scheduler) == [1]


def test_a_job_that_was_lost_is_stopped_and_its_outcome_thrown_away() -> None:
    clock = ManualClock(1000.0)
    scheduler = opened(1, clock=clock)
    lost: list[JobLost] = []

    def execute(job: RunningJob) -> CompactedBlocks:
        clock.advance(16.0)
        assert scheduler.poll(PollRequest(job_capacity=1)).compaction_jobs  # another worker gets it
        with pytest.raises(JobLost) as caught:
            job.check()
        lost.append(caught.value)
        assert job.is_stopped
        return done(job)

    worker = Worker(scheduler, execute, clock=clock)
    worker.run_pending()
    assert lost
    assert levels_of(scheduler) == [0]
    assert worker.jobs == ()
    assert worker.is_idle


@pytest.mark.parametrize(("error", "failures"), [(ReleaseJob("later"), 0), (ValueError("broken"), 1)])
def test_a_job_that_raises_is_given_back_or_has_failed(error: Exception, failures: int) -> None:
    scheduler = opened(1)

    def execute(job: RunningJob) -> CompactedBlocks:
        raise error

    worker = Worker(scheduler, execute)
    worker.run_pending()
    [row] = scheduler.table().to_dicts()
    assert (row["phase"], row["failures"]) == ("unassigned", failures)
    assert str(error) in row["last failure"]
    assert worker.failures == failures


def test_results_that_cannot_be_stored_fail_the_job_and_not_the_poll() -> None:
    scheduler = opened(1)
    wrong: Any = ["b0"]
    worker = Worker(scheduler, lambda job: CompactedBlocks(tenant="acme", shard=1, source_blocks=wrong,
                                                           no_output=NoOutput.EMPTY))
    worker.run_pending()
    assert isinstance(worker.last_error, InvalidInput)
    assert scheduler.table().to_dicts()[0]["failures"] == 1


def test_stop_cancels_and_releases_jobs() -> None:
    scheduler, began = opened(1), threading.Event()

    def execute(job: RunningJob) -> CompactedBlocks:
        began.set()
        while True:
            job.check()
            time.sleep(0.001)

    worker = Worker(scheduler, execute, options=QUICK)
    worker.start()
    assert began.wait(PATIENCE)
    worker.stop()
    [row] = scheduler.table().to_dicts()
    assert (row["phase"], row["failures"]) == ("unassigned", 0)
    assert "shuts down" in row["last failure"]


def test_a_job_that_raises_because_it_was_stopped_has_not_failed() -> None:
    scheduler, began = opened(1), threading.Event()

    def execute(job: RunningJob) -> CompactedBlocks:
        began.set()
        until(lambda: job.is_stopped)
        raise ValueError("half done")

    worker = Worker(scheduler, execute, options=QUICK)
    worker.start()
    assert began.wait(PATIENCE)
    worker.stop()
    [row] = scheduler.table().to_dicts()
    assert (row["phase"], row["failures"]) == ("unassigned", 0)


def test_a_job_that_ends_during_the_poll_that_loses_it_is_over() -> None:
    scheduler, may_end = opened(1), threading.Event()
    threads: list[threading.Thread] = []

    class Losing:
        def poll(self, request: PollRequest) -> PollResponse:
            if not threads:
                return scheduler.poll(request)
            may_end.set()
            threads[0].join(PATIENCE)
            return PollResponse()

    def execute(job: RunningJob) -> CompactedBlocks:
        threads.append(threading.current_thread())
        assert may_end.wait(PATIENCE)
        return done(job)

    worker = Worker(Losing(), execute, options=QUICK)
    worker.start()
    until(lambda: may_end.is_set() and worker.is_idle)
    worker.stop()
    assert worker.jobs == ()


def test_stop_lets_jobs_end_in_their_grace() -> None:
    scheduler, began = opened(1), threading.Event()

    def execute(job: RunningJob) -> CompactedBlocks:
        began.set()
        time.sleep(0.05)
        job.check()
        return done(job)

    worker = Worker(scheduler, execute, options=QUICK)
    worker.start()
    assert began.wait(PATIENCE)
    worker.stop(grace_seconds=PATIENCE)
    assert levels_of(scheduler) == [1]


def test_a_worker_that_is_stopped_by_its_own_job_ends() -> None:
    scheduler = opened(1)
    refused: list[Busy] = []

    def execute(job: RunningJob) -> CompactedBlocks:
        with pytest.raises(Busy, match="within the worker's own work") as caught:
            worker.stop()
        refused.append(caught.value)
        return done(job)

    worker = Worker(scheduler, execute, options=QUICK)
    worker.start()
    until(lambda: refused and worker.is_idle)
    worker.stop()
    assert levels_of(scheduler) == [1]


def test_an_error_of_the_transport_is_kept_and_polls_continue() -> None:
    scheduler, polls = opened(1), []
    observer = RecordingObserver()

    class Flaky:
        def poll(self, request: PollRequest) -> PollResponse:
            polls.append(request)
            if len(polls) < 3:
                raise OSError("no route")
            return scheduler.poll(request)

    with Worker(Flaky(), done, options=QUICK, observer=observer) as worker:
        until(lambda: levels_of(scheduler) == [1])
    assert worker.failures == 2
    assert "no route" in str(worker.last_error)
    assert [fields["in_a_row"] for name, fields in observer.events if name == "scheduler_poll_failed"] == [1, 2]


def test_a_worker_deletes_the_blocks_of_tombstones_and_confirms() -> None:
    clock = ManualClock(1000.0)
    scheduler = opened(2, clock=clock, cleanup_delay_seconds=60.0)
    deleted: list[str] = []

    def clean(tombstone: Tombstone) -> None:
        deleted.extend(tombstone.blocks)

    worker = Worker(scheduler, done, cleanup=clean, clock=clock, options=WorkerOptions(capacity=2))
    worker.run_pending()
    assert deleted == []
    clock.advance(61.0)
    worker.run_pending()
    assert sorted(deleted) == ["b0", "b1"]
    assert worker.is_idle
    assert scheduler.status()["tombstones"] == 0


def test_a_worker_that_its_observer_stops_reports_its_jobs() -> None:
    scheduler, refused = opened(1), list[str]()

    class Stopping:
        def event(self, name: str, /, **fields: Any) -> None:
            if name == "scheduler_job_started":
                try:
                    worker.stop(wait_seconds=2.0)
                except Busy as error:
                    refused.append(str(error))

    worker = Worker(scheduler, done, options=QUICK, observer=Stopping())
    worker.start()
    until(lambda: refused)
    until(lambda: worker.is_idle)
    assert "from within the worker's own work" in refused[0]
    assert scheduler.table().to_dicts()[0]["phase"] == "unassigned"
    worker.stop()


def test_without_an_answer_a_job_is_stopped_once_patience_is_over() -> None:
    clock = ManualClock(1000.0)
    scheduler, silent = opened(1, clock=clock), threading.Event()

    class Cut:
        def poll(self, request: PollRequest) -> PollResponse:
            if silent.is_set():
                raise OSError("cut off")
            return scheduler.poll(request)

    def execute(job: RunningJob) -> CompactedBlocks:
        silent.set()
        for _ in range(100):
            clock.advance(10.0)
            job.check()
        raise AssertionError("it was never stopped")

    worker = Worker(Cut(), execute, clock=clock, options=WorkerOptions(patience_seconds=100.0))
    worker.run_pending()
    silent.clear()
    worker.run_pending()
    [row] = scheduler.table().to_dicts()
    assert "no answer from the scheduler" in row["last failure"]
    assert row["failures"] == 0


@pytest.mark.parametrize("options", [
    {"capacity": 0}, {"poll_seconds": 0.0}, {"jitter": 2.0}, {"poll_seconds": 100.0}, {"patience_seconds": -1.0}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        WorkerOptions(**options)
