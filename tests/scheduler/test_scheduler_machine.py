"""The service as a state machine against a plain model, and the properties of notes 5.5, item 6."""

from __future__ import annotations

import random

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from compactlib.scheduler import (
    AddBlocks,
    Applied,
    BlockMeta,
    Command,
    CompactedBlocks,
    FairShare,
    JobPhase,
    JobStatus,
    LevelConfig,
    NoOutput,
    Operation,
    PlanUpdate,
    PollRequest,
    PollResponse,
    Requeue,
    Retain,
    SchedulerConfig,
    SchedulerService,
    StatusUpdate,
    Tick,
    Verdict,
)
from compactlib.scheduler.state_rows import dump_rows, load_rows

CONFIG = SchedulerConfig(
    levels=(LevelConfig(max_blocks=3, max_age_seconds=20), LevelConfig(max_blocks=2, max_age_seconds=40)),
    max_failures=2, lease_seconds=10, max_queue_size=4, backoff_seconds=3, max_backoff_seconds=10,
    cleanup_delay_seconds=15, cleanup_lease_seconds=20)
FAIR = attrs.evolve(CONFIG, fair_share=FairShare({"A": 2}), higher_level_share=0.3)


@attrs.define
class Held:
    """A job as a worker knows it: it may have lost it, and not know."""

    name: str
    token: int
    sources: tuple[str, ...]
    tenant: str
    shard: int
    level: int


class Machine(RuleBasedStateMachine):
    """Workers that do anything at any time. The model: which worker was given which job last, and until when."""

    config = CONFIG

    def __init__(self) -> None:
        super().__init__()
        self.service = SchedulerService(self.config)
        self.log: list[tuple[Command, Operation]] = []
        self.now = 1000.0
        self.blocks = 0
        self.workers: list[Held] = []
        # The model: job to (token, end of the lease) of the last assignment, while the job exists.
        self.holder: dict[str, tuple[int, float]] = {}
        self.tokens: dict[str, int] = {}
        self.cleanup: list[str] = []
        self.done: set[str] = set()

    # ------------------------------------------------------------------------------------------------ operations

    def apply(self, operation: Operation) -> object:
        command = Command(len(self.log) + 1, 1, self.now)
        self.log.append((command, operation))
        return self.service.apply(command, operation)

    def poll(self, request: PollRequest) -> PollResponse:
        command = Command(len(self.log) + 1, 1, self.now)
        before = list(dump_rows(self.service.state))
        update = self.service.prepare(command, request)
        assert update == self.service.prepare(command, request)
        assert list(dump_rows(self.service.state)) == before
        self.log.append((command, update))
        applied = self.service.apply(command, update)
        assert isinstance(applied, Applied)
        self.check_renewals(request, applied.response)
        self.take(applied.response, command, update)
        return applied.response

    def check_renewals(self, request: PollRequest, response: PollResponse) -> None:
        """What each update must be answered, by what the model knows of holders."""
        seen: set[str] = set()
        for said, answer in zip(request.status_updates, response.answers, strict=True):
            assert said.name == answer.name
            if said.name in seen:
                assert answer.verdict in (Verdict.DUPLICATE, Verdict.NOT_FOUND)
                continue
            held = self.holder.get(said.name)
            if held is None:
                assert answer.verdict in (Verdict.NOT_FOUND, Verdict.STALE_TOKEN, Verdict.WRONG_STATE)
            elif said.token < held[0]:
                assert answer.verdict is Verdict.STALE_TOKEN
                assert answer.holder_deadline == held[1]
            elif said.status == JobStatus.IN_PROGRESS:
                assert answer.verdict is Verdict.ACCEPTED
                self.holder[said.name] = (held[0], self.now + self.config.lease_seconds)
            else:
                del self.holder[said.name]
                if said.status == JobStatus.SUCCESS and answer.verdict is Verdict.ACCEPTED:
                    assert said.compacted_blocks is not None
                    for block_id in said.compacted_blocks.source_blocks:
                        assert block_id not in self.done, "a block took effect twice"
                        self.done.add(block_id)
            if answer.verdict is Verdict.ACCEPTED:
                seen.add(said.name)

    def take(self, response: PollResponse, command: Command, update: PlanUpdate) -> None:
        leases = {lease.name: lease for lease in response.assignments}
        for plan in response.compaction_jobs:
            lease = leases[plan.name]
            held = self.holder.get(plan.name)
            assert lease.token == command.index
            assert lease.token > self.tokens.get(plan.name, 0), "a token went back"
            assert held is None or held[1] < self.now, "a live lease was broken"
            self.tokens[plan.name] = lease.token
            self.holder[plan.name] = (lease.token, lease.lease_expires_at)
            self.workers.append(Held(plan.name, lease.token, plan.source_blocks, plan.tenant, plan.shard,
                                     plan.compaction_level))
            self.cleanup += [tombstone.name for tombstone in plan.tombstones]
        self.cleanup += [tombstone.name for tombstone in response.tombstones]
        for gone in update.evicted_jobs:
            self.holder.pop(gone.state.name, None)

    # ----------------------------------------------------------------------------------------------------- rules

    @rule(seconds=st.sampled_from([0.0, 1.0, 5.0, 10.0, 10.5, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(seconds=st.sampled_from([0.5, 8.0]))
    def the_new_leader_s_clock_is_behind(self, seconds: float) -> None:
        self.now -= seconds

    @rule(count=st.integers(1, 5), tenant=st.sampled_from("AB"), shard=st.integers(0, 1))
    def blocks_arrive(self, count: int, tenant: str, shard: int) -> None:
        names = [f"b{self.blocks + number}" for number in range(count)]
        self.blocks += count
        self.apply(AddBlocks(tuple(BlockMeta(id=name, tenant=tenant, shard=shard, level=0, min_time=self.now,
                                             max_time=self.now) for name in names)))

    @rule(capacity=st.integers(0, 3))
    def an_idle_worker_polls(self, capacity: int) -> None:
        self.poll(PollRequest((), capacity))

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), capacity=st.integers(0, 2))
    def a_worker_reports(self, data: st.DataObject, capacity: int) -> None:
        count = data.draw(st.integers(1, 3))
        chosen = [data.draw(st.sampled_from(self.workers)) for _ in range(count)]
        updates = tuple(self.report(held, data) for held in chosen)
        self.poll(PollRequest(updates, capacity, tuple(self.cleanup) if data.draw(st.booleans()) else ()))

    def report(self, held: Held, data: st.DataObject) -> StatusUpdate:
        status = data.draw(st.sampled_from([JobStatus.IN_PROGRESS, JobStatus.SUCCESS, JobStatus.SUCCESS,
                                            JobStatus.FAILED, JobStatus.RELEASED]))
        results = None
        if status is JobStatus.SUCCESS:
            kind = data.draw(st.sampled_from(["output", "output", "empty", "missing"]))
            output = BlockMeta(id=f"{held.name}@{held.token}", tenant=held.tenant, shard=held.shard,
                               level=held.level + 1, min_time=self.now, max_time=self.now)
            results = CompactedBlocks(
                tenant=held.tenant, shard=held.shard, source_blocks=() if kind == "missing" else held.sources,
                new_blocks=(output,) if kind == "output" else (),
                no_output={"empty": NoOutput.EMPTY, "missing": NoOutput.MISSING}.get(kind))
        return StatusUpdate(held.name, held.token, status, results, "because")

    @rule()
    def a_tick(self) -> None:
        self.apply(Tick())

    @precondition(lambda self: self.service.state.quarantine)
    @rule(data=st.data())
    def an_operator_queues_a_job_again(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.service.state.quarantine)))
        self.tokens.pop(name, None)
        self.apply(Requeue((name,)))

    @rule(age=st.sampled_from([20_000.0, 40_000.0]))
    def retention(self, age: float) -> None:
        self.apply(Retain(self.now - age))

    # ------------------------------------------------------------------------------------------------ invariants

    @invariant()
    def everything_is_in_order(self) -> None:
        self.service.audit()
        assert self.service.state.unaccounted_blocks() == []
        assert len(self.service.state.jobs) <= self.config.max_queue_size

    @invariant()
    def holders_are_those_of_the_model(self) -> None:
        for phase, state in self.service.jobs(self.now):
            held = self.holder.get(state.name)
            assert (held is None) == (state.status is JobStatus.UNSPECIFIED)
            if held is not None:
                assert (state.token, state.lease_expires_at) == held
                assert (phase is JobPhase.IN_PROGRESS) == (self.now <= held[1])

    def teardown(self) -> None:
        expected = list(dump_rows(self.service.state))
        replica = SchedulerService(self.config)
        for command, operation in self.log:
            replica.apply(command, operation)
        assert list(dump_rows(replica.state)) == expected, "a replica that replays the log differs"
        again = load_rows(dump_rows(self.service.state), self.config)
        again.audit()
        assert list(dump_rows(again)) == expected
        command, request = Command(len(self.log) + 1, 1, self.now + 11), PollRequest((), 4)
        assert SchedulerService(state=again).prepare(command, request) == self.service.prepare(command, request)


class FairMachine(Machine):
    config = FAIR


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestFairMachine = FairMachine.TestCase
TestFairMachine.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)


def random_run(seed: int, steps: int, config: SchedulerConfig = CONFIG) -> list[object]:
    """What happens to a service whose workers are random: every update, answer and state."""
    rng = random.Random(seed)
    service, now, index, blocks = SchedulerService(config), 1000.0, 0, 0
    trace: list[object] = []
    held: list[tuple[PollResponse, int]] = []
    for _ in range(steps):
        now += rng.choice([0, 0.5, 3, 12])
        index += 1
        command = Command(index, 1, now)
        if rng.random() < 0.4:
            names = [f"b{blocks + number}" for number in range(rng.randint(1, 6))]
            blocks += len(names)
            trace.append(service.apply(command, AddBlocks(tuple(
                BlockMeta(id=name, tenant=rng.choice("AB"), shard=rng.randrange(2), level=0) for name in names))))
            continue
        updates = []
        for response, which in rng.sample(held, min(len(held), rng.randint(0, 2))):
            plan = response.compaction_jobs[which]
            token = next(lease.token for lease in response.assignments if lease.name == plan.name)
            output = BlockMeta(id=f"{plan.name}@{token}", tenant=plan.tenant, shard=plan.shard,
                               level=plan.compaction_level + 1)
            updates.append(StatusUpdate(plan.name, token, rng.choice([1, 1, 2, 2, 3, 4]), CompactedBlocks(
                tenant=plan.tenant, shard=plan.shard, source_blocks=plan.source_blocks, new_blocks=(output,))))
        update = service.prepare(command, PollRequest(tuple(updates), rng.randint(0, 3)))
        result = service.apply(command, update)
        assert isinstance(result, Applied)
        trace += [update, result]
        held += [(result.response, which) for which in range(len(result.response.compaction_jobs))]
        service.audit()
    return [*trace, *dump_rows(service.state)]


@pytest.mark.parametrize("config", [CONFIG, FAIR, SchedulerConfig.upstream(levels=CONFIG.levels, max_queue_size=5)])
def test_the_same_seed_gives_the_same_trace_ten_times(config: SchedulerConfig) -> None:
    first = random_run(11, 60, config)
    assert all(random_run(11, 60, config) == first for _ in range(9))
    assert random_run(12, 60, config) != first


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(200))
def test_longer_runs_of_random_workers(seed: int) -> None:
    assert random_run(seed, 2000, FAIR if seed % 2 else CONFIG)
