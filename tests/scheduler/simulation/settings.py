# SPDX-License-Identifier: Apache-2.0
"""The worlds of the scheduler's simulation: what can be set, and what a seed draws."""

from __future__ import annotations

import random

import attrs

from compactlib.scheduler.config import LevelConfig, SchedulerConfig
from compactlib.scheduler.plan.policies.by_priority import ByPriority
from compactlib.scheduler.plan.policies.fair_tenants import FairTenants
from compactlib.scheduler.plan.policies.smallest_first import SmallestFirst
from compactlib.scheduler.plan.policy import AssignmentPolicy


@attrs.frozen(kw_only=True)
class SimulationSettings:
    """One world. Times are in seconds, rates are probabilities.

    Attributes:
        nodes: replicas of the service.
        workers: workers, each with its own core.
        capacity: jobs at a time, for each worker.
        blocks: rows that are written, each as a block of its own.
        shards: shards that they are spread over.
        anonymous: whether the blocks of level 0 hold several tenants' data.
        rough_seconds: how long things go wrong.
        calm_seconds: how long everything may take to get done after that, at most.
        lease_seconds: length of a lease.
        clock_skew: how far the nodes' clocks differ from true time, at most, either way.
        delay_seconds: how long a message takes, at most.
        loss_rate: messages that never arrive.
        repeat_rate: messages that arrive twice.
        crash_rate: crashes of a node, and of a worker, in 10 seconds.
        election_rate: changes of the leader without need, in 10 seconds.
        poll_seconds: time between a worker's polls.
        tick_seconds: time between the operator's rounds.
        job_seconds: how long a job takes, at most.
        hang_rate: jobs that take four times as long.
        failure_rate: jobs and deletions that fail.
        obedience: workers' jobs that end when they are asked to.
        cleanup_seconds: how long a deletion takes, at most.
        writer_patience: how long a block that was not acknowledged is sent again. Must be less than the scheduler's
            cleanup delay by the clock skew and the delay of messages: a block that is sent again after it was
            compacted and deleted would be added once more.
        cut_off_rate: workers cut off for up to 40 seconds, in 10 seconds.
        fenced: whether jobs commit through a fence.
        in_place: whether they replace what was published, under a guard of the fence, instead of committing a value.
        reuses_results: whether a worker that finds an earlier holder's results at the fence reports those. Wrong: they
            may have been refused, and deleted, before.
        retention: whether old data is dropped.
        prepare_in_the_log: whether polls are prepared by an entry of their own, as in Pyroscope.
        careless_leaders: whether a leader may propose what was prepared in an earlier term of its own.
        over_the_wire: whether polls, answers and what followers apply were encoded and decoded.
        trouble: whether a faulty client polls that says what no worker should.
        raised_limits: whether the operator raises limits now and then.
        retried_jobs: whether the operator has jobs that are queued tried again once they have failed.
        check_every: after so many entries everything is checked.
        start: the time at the beginning, seconds since the epoch.
        age_hours: how old old data is.
        config: the scheduler's.
        policies: the replicas', each time one is started the next of them: what leaders decide by differs.
    """

    nodes: int = 3
    workers: int = 3
    capacity: int = 2
    blocks: int = 12
    shards: int = 1
    anonymous: bool = False
    rough_seconds: float = 40.0
    calm_seconds: float = 600.0
    lease_seconds: float = 5.0
    clock_skew: float = 3.0
    delay_seconds: float = 0.5
    loss_rate: float = 0.1
    repeat_rate: float = 0.1
    crash_rate: float = 0.1
    election_rate: float = 0.2
    poll_seconds: float = 2.0
    tick_seconds: float = 8.0
    job_seconds: float = 6.0
    hang_rate: float = 0.05
    failure_rate: float = 0.1
    obedience: float = 0.5
    cleanup_seconds: float = 3.0
    writer_patience: float = 8.0
    cut_off_rate: float = 0.0
    fenced: bool = True
    in_place: bool = False
    reuses_results: bool = False
    retention: bool = False
    prepare_in_the_log: bool = False
    careless_leaders: bool = True
    over_the_wire: bool = False
    trouble: bool = False
    raised_limits: bool = False
    retried_jobs: bool = False
    check_every: int = 32
    start: float = 1_000_000.0
    age_hours: float = 48.0
    config: SchedulerConfig = attrs.field(factory=SchedulerConfig)
    policies: tuple[AssignmentPolicy, ...] = (ByPriority(),)

    @classmethod
    def from_seed(cls, seed: int) -> SimulationSettings:
        """The world of a seed: of all kinds, mild and rough."""
        rng = random.Random(seed)
        lease = 5.0
        skew = rng.choice([0.0, 1.0, 4.0, 4.9, 8.0])
        delay = rng.choice([0.05, 0.5, 3.0])
        patience = 8.0
        rules = rng.choice(["one", "one", "several"])
        share = rng.choice([0.0, 0.0, 0.3])
        config = SchedulerConfig(
            levels=(LevelConfig(max_blocks=3, max_age_seconds=6), LevelConfig(max_blocks=2, max_age_seconds=12)),
            max_failures=rng.choice([0, 1, 2, 3]), lease_seconds=lease, max_queue_size=rng.choice([0, 1, 2, 4]),
            backoff_seconds=rng.choice([0.0, 2.0]), max_backoff_seconds=8.0,
            cleanup_delay_seconds=patience + 2 * skew + 2 * delay + 1, cleanup_lease_seconds=rng.choice([2.0, 20.0]),
            cleanup_batch_size=rng.choice([1, 2, 5]))
        return cls(
            nodes=rng.choice([1, 3, 3, 3, 5]), workers=rng.choice([1, 2, 3, 4]), capacity=rng.choice([1, 2, 3]),
            blocks=rng.choice([4, 8, 14]), shards=rng.choice([1, 1, 2]), anonymous=rng.random() < 0.3,
            lease_seconds=lease, clock_skew=skew, delay_seconds=delay, loss_rate=rng.choice([0.0, 0.1, 0.3]),
            repeat_rate=rng.choice([0.0, 0.1, 0.3]), crash_rate=rng.choice([0.0, 0.1, 0.3]),
            election_rate=rng.choice([0.0, 0.2, 0.5]), job_seconds=rng.choice([1.0, 6.0, 12.0]),
            hang_rate=rng.choice([0.0, 0.1]), failure_rate=rng.choice([0.0, 0.1, 0.4]),
            obedience=rng.choice([0.0, 0.5, 1.0]), cleanup_seconds=rng.choice([1.0, 10.0]), writer_patience=patience,
            fenced=rng.random() < 0.5, retention=rng.random() < 0.3, prepare_in_the_log=rng.random() < 0.3,
            careless_leaders=rng.random() < 0.5, over_the_wire=rng.random() < 0.1, trouble=rng.random() < 0.2,
            policies=(ByPriority(share),) if rules == "one" else (FairTenants({"A": 2}, higher_level_share=share),
                                                                  SmallestFirst(window=2), ByPriority()),
            config=config, cut_off_rate=rng.choice([0.0, 0.0, 0.5]), in_place=rng.random() < 0.5,
            raised_limits=rng.random() < 0.3, retried_jobs=rng.random() < 0.5)
