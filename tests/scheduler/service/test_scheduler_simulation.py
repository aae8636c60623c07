# SPDX-License-Identifier: Apache-2.0
"""The simulation: many seeds go well, each seed is one history, and planted bugs are found."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

import attrs
import pytest

from compactlib.fences import Admission, LockingFence, MemoryFence
from compactlib.scheduler import (
    BlockMeta,
    Command,
    JobPlan,
    JobStatus,
    PollRequest,
    PollResponse,
    RunningJob,
    SchedulerService,
    StatusUpdate,
)
from compactlib.scheduler.apply import apply as apply_module, complete as complete_module
from compactlib.scheduler.apply.effects import Effects
from compactlib.scheduler.model.poll import Assignment, Verdict
from compactlib.scheduler.model.update import ApplyResult, Operation, PlanUpdate
from compactlib.scheduler.model.values import BlockTombstones
from compactlib.scheduler.persistence.state_rows import under
from compactlib.scheduler.plan.schedule import Schedule
from compactlib.scheduler.queue.due_jobs import DueJobs
from compactlib.scheduler.queue.job import Job
from compactlib.scheduler.queue.job_queue import JobQueue
from compactlib.scheduler.queue.metadata_index import AddOutcome, MetadataIndex, Replaced
from compactlib.scheduler.queue.state import SchedulerState
from compactlib.scheduler.queue.tombstones import Tombstones
from compactlib.scheduler.workers.worker_core import Effect, Renewed, Stop, WorkerCore
from tests.scheduler.simulation.simulation import (
    Simulation,
    SimulationFailure,
    SimulationSettings,
    main,
    simulate,
    simulate_many,
)

EVERYDAY: Final = 100
"""Seeds of an ordinary run: enough for all that can happen; the rest is in the soak."""
ENOUGH: Final = 250
"""Seeds among which each planted bug below shows itself."""


def test_many_seeds_go_well_and_nothing_that_can_happen_is_left_out() -> None:
    total = simulate_many(range(EVERYDAY))
    assert total["seeds"] == EVERYDAY
    for what in ("assigned", "reassigned", "completed", "evicted", "excluded", "deleted", "same states", "accepted",
                 "stale token", "not found", "superseded", "sources gone", "future token", "tried again"):
        assert total[what] >= 5, (what, total)


def test_a_seed_that_went_wrong_once_goes_well() -> None:
    # A worker deletes a tenant's dropped span long after its lease; a job over several tenants' blocks had meanwhile
    # put a block there.
    simulate(5026)


@pytest.mark.soak
@pytest.mark.parametrize("thousand", range(5))
def test_many_more_seeds_go_well(thousand: int) -> None:
    simulate_many(range(1000 * thousand, 1000 * (thousand + 1)))


def test_the_same_seed_gives_the_same_history_ten_times() -> None:
    first = simulate(7, trace=True)
    assert len(first.trace) > 50
    for _ in range(9):
        assert simulate(7, trace=True) == first
    assert simulate(8, trace=True).trace != first.trace


def test_a_history_does_not_depend_on_the_process_that_it_runs_in() -> None:
    def told(hash_seed: str) -> str:
        command = [sys.executable, "-m", "tests.scheduler.simulation.simulation", "--seed", "7", "--trace"]
        return subprocess.run(command, check=True, capture_output=True, text=True,
                              env={"PYTHONHASHSEED": hash_seed}).stdout

    one = told("1")
    assert one == told("2")
    assert "leads term 1" in one
    assert one.startswith("   0.000 node")


def test_the_command_line_tells_of_a_failure(monkeypatch: pytest.MonkeyPatch,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2"]) == 0
    assert "assigned" in capsys.readouterr().out
    forget_tokens(monkeypatch)
    assert main(["--seeds", "500", "--trace"]) == 1
    told = capsys.readouterr().err
    assert "FAILED" in told
    assert "replay it with: python -m tests.scheduler.simulation.simulation --seed" in told


def test_a_report_shows_itself() -> None:
    report = simulate(3)
    assert repr(report).startswith("SimulationReport(seed=3, entries=")
    assert report.to_dicts()[0]["entries"] == report.entries
    assert "<table>" in report._repr_html_()


# --------------------------------------------------------------------------------------------- planted bugs


class Planted(Simulation):
    """A simulation with parts of one's own."""

    service_class: type[SchedulerService] = SchedulerService
    core_class: type[WorkerCore] = WorkerCore
    fence_class: type[MemoryFence] = MemoryFence

    def new_service(self, state: SchedulerState | None = None) -> SchedulerService:
        return self.service_class(self.config, policy=super().new_service(state).policy, state=state)

    def new_core(self) -> WorkerCore:
        return self.core_class(self.settings.capacity, cleanup_capacity=4, patience_seconds=10)

    def new_fence(self) -> LockingFence:
        return self.fence_class()


def first_failure(limit: int = ENOUGH, kind: type[Simulation] = Simulation, config: dict[str, Any] | None = None,
                  **changes: Any) -> SimulationFailure:
    """Of the seeds up to the limit; their worlds with these settings changed."""
    for seed in range(limit):
        settings = attrs.evolve(SimulationSettings.from_seed(seed), **changes)
        settings = attrs.evolve(settings, config=attrs.evolve(settings.config, **config or {}))
        try:
            kind(seed, settings).run()
        except SimulationFailure as failure:
            return failure
    pytest.fail(f"{limit} seeds have not found the bug")


def forget_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever says so owns the job."""
    real = Schedule.check

    def check(self: Schedule, name: str, token: int, status: int) -> Job | Verdict:
        return real(self, name, max(token, self._command.index), status)

    monkeypatch.setattr(Schedule, "check", check)


def forget_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job is given away although its lease is not over."""
    real = DueJobs.due
    check = JobQueue.may_be_assigned
    monkeypatch.setattr(DueJobs, "due", lambda self, now: real(self, now + 4.0))
    monkeypatch.setattr(JobQueue, "may_be_assigned", lambda self, state, now: check(self, state, now + 4.0))


def forget_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue takes one more than it may."""
    monkeypatch.setattr(Schedule, "has_room", lambda self: True)
    real = apply_module._queue_job  # noqa: SLF001

    def queue_job(effects: Effects, update: PlanUpdate, item: Any) -> None:
        limits = effects.limits
        effects.limits = attrs.evolve(limits, max_queue_size=0)
        try:
            real(effects, update, item)
        finally:
            effects.limits = limits

    monkeypatch.setattr(apply_module, "_queue_job", queue_job)


def evict_what_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pyroscope's zombie: an eviction does not look at what the poll is about, a renewal revives."""
    def excluded(self: JobQueue, now: float) -> Iterator[Job]:
        return (job for job in self if self.has_failed(job.state))

    def renew(effects: Effects, item: Any, assignments: list[Any]) -> None:
        job = effects.state.jobs.get(item.state.name)
        if job is None:
            given_up = effects.state.quarantine.get(item.state.name)
            if given_up is not None:
                effects.state.take_up(given_up)
                effects.state.jobs.add(item.state, attrs.evolve(given_up.plan, source_blocks=()))
        real_renew(effects, item, assignments)

    real_renew = apply_module._renew  # noqa: SLF001
    monkeypatch.setattr(apply_module, "_renew", renew)
    monkeypatch.setattr(JobQueue, "excluded", excluded)
    real_evict = Schedule.evict_job

    def evict_job(self: Schedule) -> Any:
        touched, self.touched = self.touched, set()
        try:
            return real_evict(self)
        finally:
            self.touched |= touched

    monkeypatch.setattr(Schedule, "evict_job", evict_job)


def assign_whatever_was_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apply does not look whether the job has changed since prepare."""
    real = apply_module._assign  # noqa: SLF001

    def assign(effects: Effects, item: Any) -> Any:
        job = effects.state.jobs.get(item.state.name)
        return real(effects, item if job is None else attrs.evolve(item, replaced=job.state))

    monkeypatch.setattr(apply_module, "_assign", assign)


def complete_whatever_was_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apply completes a job that went to somebody else since prepare."""
    real = complete_module.complete

    def complete(effects: Effects, item: Any) -> None:
        job = effects.state.jobs.get(item.state.name)
        if job is not None:
            item = attrs.evolve(item, state=attrs.evolve(item.state, token=job.state.token))
        real(effects, item)

    monkeypatch.setattr(apply_module, "complete", complete)


def delete_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tombstones are due as soon as they are there: late copies of blocks come back to life."""
    real = Tombstones.due
    monkeypatch.setattr(Tombstones, "due",
                        lambda self, now, limit, skip=frozenset(): real(self, now + 1e6, limit, skip))


def protect_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index takes blocks that wait for deletion."""
    real = MetadataIndex.add
    monkeypatch.setattr(MetadataIndex, "add", lambda self, block, tombstones=None: real(self, block))


def forget_missing_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job is completed although retention has removed its sources."""
    def replace(self: MetadataIndex, tenant: str, shard: int, sources: tuple[str, ...],
                new: tuple[BlockMeta, ...]) -> Replaced:
        removed = self.remove(tenant, shard, sources)
        return Replaced(removed, tuple(block for block in new if self.add(block) is AddOutcome.ADDED))

    monkeypatch.setattr(MetadataIndex, "missing", lambda *_: ())
    monkeypatch.setattr(MetadataIndex, "replace", replace)


def throw_away_what_is_owned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs of a job are deleted whenever somebody's report about it is refused."""
    monkeypatch.setattr(complete_module, "refuse_outputs", lambda *_: None)
    monkeypatch.setattr(apply_module, "refuse_outputs", lambda effects, name, blocks: effects.delete_later(
        BlockTombstones(name=f"{name} at {effects.command.index}", tenant=blocks[0].tenant,
                                        shard=blocks[0].shard, level=1, blocks=(blocks[0].id,))))


def drop_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that are given up vanish."""
    monkeypatch.setattr(Effects, "quarantine", lambda *_, **__: None)


def begin_with_the_first_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that comes back from a snapshot goes on under the settings that it was made with."""
    real = Simulation.new_service
    monkeypatch.setattr(Simulation, "new_service", lambda self, state=None: real(
        self, None if state is None else under(state, self.config)))


def try_again_what_somebody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    real = apply_module.begin_anew

    def begin_anew(effects: Effects, name: str) -> int:
        effects.expiry = float("inf")
        return real(effects, name)

    monkeypatch.setattr(apply_module, "begin_anew", begin_anew)


def let_replicas_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """What apply does depends on which service does it."""
    real, services = SchedulerService.apply, dict[int, int]()

    def apply(self: SchedulerService, command: Command, operation: Operation) -> ApplyResult:
        result = real(self, command, operation)
        for job in self.state.jobs:
            if services.setdefault(id(self), len(services)) % 2 and job.state.status is JobStatus.UNSPECIFIED:
                self.state.jobs.put(job, attrs.evolve(job.state, last_failure="as this one sees it"))
        return result

    monkeypatch.setattr(SchedulerService, "apply", apply)


BUGS: dict[str, tuple[Any, ...]] = {
    "the token is not checked": (forget_tokens, "was accepted with token .*, and belongs to|, and renewed"),
    "the lease is ignored": (forget_leases, "its lease lasts until"),
    "the limit is ignored": (forget_the_limit, "the limit is"),
    "evicted and renewed in one poll": (evict_what_is_renewed, "the limit is|wait for nothing|audit"),
    "apply assigns what has changed": (assign_whatever_was_prepared, "given away|lease"),
    "apply completes what has changed": (complete_whatever_was_prepared, "is completed with token"),
    "deleted at once": (delete_at_once, "several blocks|gone|indexed", {"writer_patience": 30.0, "loss_rate": 0.5}),
    "tombstones protect nothing": (protect_nothing, "several blocks|gone|indexed|back"),
    "sources are gone": (forget_missing_sources, "were dropped by retention",
                         {"retention": True, "workers": 1, "loss_rate": 0.5, "writer_patience": 1.0,
                          "config": {"cleanup_delay_seconds": 1.0}}),
    "outputs are deleted without a look": (throw_away_what_is_owned, "was deleted for|is gone"),
    "given up without a word": (drop_without_a_word, "not in quarantine|wait for nothing"),
    "settings of a snapshot are forgotten": (begin_with_the_first_settings, "another state",
                                             {"raised_limits": True, "crash_rate": 0.3}),
    "a retry ignores the lease": (try_again_what_somebody_has, "to be tried again, its lease lasts until",
                                  {"retried_jobs": True, "failure_rate": 0.5}),
    "replicas differ": (let_replicas_differ, "another state|the token of .* falls"),
}


@pytest.mark.soak
@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, message, *changes = BUGS[bug]
    plant(monkeypatch)
    failure = first_failure(**(changes[0] if changes else {}))
    assert re.search(message, failure.what), (failure.seed, failure.what)


class ApplyTwice(SchedulerService):
    """Replays what it has applied before."""

    def apply(self, command: Command, operation: Operation) -> ApplyResult:
        if self.state.applied is not None and command.index <= self.state.applied_index:
            self.state.applied = Command(command.index - 1, command.term, command.appended_at)
        return super().apply(command, operation)


class AnyTerm(SchedulerService):
    """Carries out what was prepared in another term."""

    def apply(self, command: Command, operation: Operation) -> ApplyResult:
        if isinstance(operation, PlanUpdate):
            operation = attrs.evolve(operation, term=command.term)
        return super().apply(command, operation)


class OpenFence(MemoryFence):
    """Lets everybody in."""

    def commit(self, resource: str, token: int, value: bytes) -> Admission:
        return Admission(resource, token, None)


class DeafCore(WorkerCore):
    """Goes on with jobs that it has lost, under whatever token there is."""

    def answered(self, request: PollRequest, response: PollResponse) -> tuple[Effect, ...]:
        return tuple(effect for effect in super().answered(request, response) if not isinstance(effect, Stop))


CUT_OFF: Final[dict[str, Any]] = {
    "workers": 2, "nodes": 1, "fenced": True, "in_place": True, "cut_off_rate": 0.5, "rough_seconds": 120.0,
    "loss_rate": 0.0, "crash_rate": 0.0, "failure_rate": 0.0, "job_seconds": 30.0, "hang_rate": 0.5, "obedience": 0.0,
    "config": {"max_failures": 0, "backoff_seconds": 0.0}}
"""Two workers that lose jobs to each other for as long as one of them is cut off, and publish in place."""

PARTS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "applied twice": ({"service_class": ApplyTwice}, "applied entry .* twice", {}),
    "any term": ({"service_class": AnyTerm}, "was carried out in term",
                 {"prepare_in_the_log": True, "careless_leaders": True, "election_rate": 1.0, "nodes": 3}),
    "open fence": ({"fence_class": OpenFence}, "commits after .* was admitted", {**CUT_OFF, "in_place": False}),
}


@pytest.mark.parametrize("part", sorted(PARTS))
def test_a_planted_part_is_found(part: str) -> None:
    parts, message, changes = PARTS[part]
    failure = first_failure(kind=type("WithBug", (Planted,), parts), **changes)
    assert re.search(message, failure.what), (failure.seed, failure.what)


def test_reporting_what_an_earlier_holder_committed_is_found_to_be_wrong() -> None:
    failure = first_failure(nodes=1, loss_rate=0.6, workers=4, failure_rate=0.0, job_seconds=4.0, obedience=0.0,
                            cleanup_seconds=1.0, rough_seconds=60.0, fenced=True, reuses_results=True,
                            config={"max_failures": 1, "max_queue_size": 1, "cleanup_delay_seconds": 12.0})
    assert "its object is gone" in failure.what


@attrs.frozen
class RenewedUnder(Renewed):
    """A renewal that changes the run's token."""

    token: int = 0


def let_runs_change_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that lost its job goes on under the token of the later assignment, as if it had been renewed."""
    lose, begin, renew = WorkerCore._take_answer, WorkerCore._take_job, RunningJob.renew  # noqa: SLF001

    def take_answer(self: WorkerCore, update: StatusUpdate, answer: Any, assignment: Assignment | None,
                    now: float) -> list[Effect]:
        held = self._jobs.get(update.name)
        if held is None or assignment is None or assignment.token <= held.token:
            return lose(self, update, answer, assignment, now)
        return take_job(self, held.plan, assignment, now)

    def take_job(self: WorkerCore, job: JobPlan, assignment: Assignment, now: float) -> list[Effect]:
        held = self._jobs.get(job.name)
        if held is None:
            return begin(self, job, assignment, now)
        held.token = assignment.token
        return [RenewedUnder(held.run, 0.0, held.token)] if held.outcome is None else []

    def renewed(self: RunningJob, effect: Renewed) -> None:
        renew(self, effect)
        if isinstance(effect, RenewedUnder):
            self._token = effect.token

    monkeypatch.setattr(WorkerCore, "_take_answer", take_answer)
    monkeypatch.setattr(WorkerCore, "_take_job", take_job)
    monkeypatch.setattr(RunningJob, "renew", renewed)


def test_a_run_that_goes_on_under_a_later_token_is_found_to_overwrite_what_another_one_published(
        monkeypatch: pytest.MonkeyPatch) -> None:
    let_runs_change_their_tokens(monkeypatch)
    failure = first_failure(60, **CUT_OFF)
    assert re.search("what token .* has published of .* is overwritten with token .* by a run that began before",
                     failure.what)


def test_workers_that_are_cut_off_lose_their_jobs_and_overwrite_nothing() -> None:
    run_worlds(range(40), **CUT_OFF)


@pytest.mark.soak
def test_many_workers_that_are_cut_off_overwrite_nothing() -> None:
    run_worlds(range(40, 1000), **CUT_OFF)


def run_worlds(seeds: Iterable[int], config: dict[str, Any], **changes: Any) -> None:
    """Run the worlds of some seeds, with these settings changed."""
    for seed in seeds:
        settings = attrs.evolve(SimulationSettings.from_seed(seed), **changes)
        Simulation(seed, attrs.evolve(settings, config=attrs.evolve(settings.config, **config))).run()


def test_a_worker_that_does_not_stop_costs_work_but_harms_nothing() -> None:
    kind = type("Deaf", (Planted,), {"core_class": DeafCore})
    for seed in range(30):
        kind(seed).run()
