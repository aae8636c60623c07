# SPDX-License-Identifier: Apache-2.0
"""Times of commands that lie far from each other: one wrong one freezes, expires and deletes nothing."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from compactlib.errors import CompactlibError
from compactlib.runtime import RecordingObserver
from compactlib.scheduler import (
    AddBlocks,
    BlockMeta,
    Command,
    JobStatus,
    LevelConfig,
    PollRequest,
    PollResponse,
    SchedulerConfig,
    SchedulerService,
    StatusUpdate,
    Tick,
)
from compactlib.scheduler.model.update import Applied
from compactlib.scheduler.model.values import JobPhase
from compactlib.scheduler.persistence.state_rows import dump_rows, load_rows
from compactlib.scheduler.queue.timeline import MAX_SILENCE_SECONDS, MAX_SKEW_SECONDS, Timeline
from tests.scheduler.build import Host, S, output, say
from tests.tools.faults.jumps import Jump, JumpingClock, explore_clock_jumps

PAIRS = SchedulerConfig(levels=(LevelConfig(max_blocks=2), LevelConfig(max_blocks=2, max_age_seconds=50)))
DAY = 86_400.0


def after(*times: float) -> Timeline:
    timeline = Timeline()
    for time in times:
        timeline = timeline.at(time).timeline
    return timeline


@pytest.mark.parametrize(("times", "now", "stamp", "expiry", "then"), [
    ((), 5.0, 5.0, 5.0, Timeline(5.0)),
    ((100.0,), 105.0, 105.0, 105.0, Timeline(105.0)),
    ((100.0,), 100.0 + MAX_SILENCE_SECONDS, 3700.0, 3700.0, Timeline(3700.0)),
    ((100.0,), 100.0 - MAX_SKEW_SECONDS, 40.0, 40.0, Timeline(40.0)),
    # Far ahead: stamped so, but nothing expires. Far back: stamped with what was known.
    ((100.0,), DAY, DAY, 100.0, Timeline(100.0, DAY)),
    ((DAY,), 100.0, DAY, 100.0, Timeline(DAY, 100.0)),
    # The next one agrees, at once or later: believed.
    ((100.0, DAY), DAY, DAY, DAY, Timeline(DAY)),
    ((100.0, DAY), 9 * DAY, 9 * DAY, 9 * DAY, Timeline(9 * DAY)),
    ((DAY, 100.0), 105.0, 105.0, 105.0, Timeline(105.0, None, True)),
    # The next one does not: what was stamped far ahead is to be cut.
    ((100.0, DAY), 105.0, 105.0, 105.0, Timeline(105.0, None, True)),
    ((100.0, DAY), 100.0 + DAY / 2, 100.0 + DAY / 2, 100.0, Timeline(100.0, 100.0 + DAY / 2, True)),
])
def test_what_a_time_is_taken_for(times: tuple[float, ...], now: float, stamp: float, expiry: float,
                                  then: Timeline) -> None:
    moment = after(*times).at(now)
    assert (moment.stamp, moment.expiry, moment.timeline) == (stamp, expiry, then)


class Worked:
    """A scheduler whose commands are stamped by a clock that nobody checks; true time is the monotonic clock's."""

    def __init__(self, clock: JumpingClock) -> None:
        self.clock = clock
        self.service = SchedulerService(PAIRS)
        self.given: dict[str, list[float]] = {}
        self.deletions: dict[str, float] = {}
        self.completed: dict[str, float] = {}
        self._index = 0

    def apply(self, operation: AddBlocks | Tick) -> None:
        self.service.apply(self._command(), operation)

    def poll(self, *updates: StatusUpdate, capacity: int = 4) -> PollResponse:
        """As a host does it: what changes nothing is not carried out."""
        command = self._command()
        update = self.service.prepare(command, PollRequest(updates, capacity))
        if update.changes_nothing:
            self._index -= 1
            return PollResponse(answers=update.answers, now=update.now)
        applied = self.service.apply(command, update)
        assert isinstance(applied, Applied)
        response, now = applied.response, self.clock.monotonic()
        for plan in response.compaction_jobs:
            self.given.setdefault(",".join(plan.source_blocks), []).append(now)
        for tombstone in (*response.tombstones, *(each for plan in response.compaction_jobs
                                                  for each in plan.tombstones)):
            self.deletions.setdefault(tombstone.name, now)
        self.service.audit()
        return response

    def _command(self) -> Command:
        self._index += 1
        return Command(self._index, 1, self.clock.now())


def work(clock: JumpingClock) -> Worked:
    """One worker takes a job and dies, another one does one, renews one, and polls every five seconds."""
    world = Worked(clock)
    world.apply(AddBlocks(tuple(BlockMeta(id=name, tenant="A", shard=1, level=0) for name in "abcdef")))
    world.poll()
    clock.advance(1)
    first = world.poll(capacity=1)  # a,b: the worker dies
    clock.advance(1)
    mine = world.poll(capacity=2)
    clock.advance(1)
    done, renewed = (say(mine, S, results=output(mine.compaction_jobs[0], "x")),
                     say(mine, JobStatus.IN_PROGRESS, which=1))
    assert len(first.compaction_jobs) == 1
    assert world.poll(done, renewed, capacity=0).answers
    world.completed[done.name] = clock.monotonic()
    for _ in range(30):
        clock.advance(5)
        world.poll(renewed, capacity=1)
    return world


def check(world: Worked | CompactlibError, jump: Jump) -> None:
    assert isinstance(world, Worked)
    dead, lives = world.given["a,b"], world.given["e,f"]
    assert len(dead) > 1, "a dead worker's job is given to nobody"
    if jump.readings is None:
        return
    if jump.readings == 1:
        # A lease of 15 seconds, and a poll every 5; a command or two for what is in doubt.
        assert 15 <= dead[1] - dead[0] <= 45, "a lease that ends early, or late"
        assert len(lives) == 1, "a job was taken away from a worker that renews its lease in time"
        assert not world.deletions, "objects are deleted before their delay is over"
    else:
        assert dead[1] - dead[0] <= 45


def test_one_wrong_time_expires_nothing_and_freezes_nothing() -> None:
    report = explore_clock_jumps(work, check)
    assert report.runs > 300


def test_after_a_long_silence_the_second_poll_goes_by_the_new_time() -> None:
    told = RecordingObserver()
    host = Host(service=SchedulerService(PAIRS, observer=told))
    host.add("a", "b")
    lost = host.assigned()
    host.now += 30 * DAY
    assert host.poll(1).compaction_jobs == ()
    assert host.poll(1).compaction_jobs == lost.compaction_jobs
    assert [name for name, _ in told.events] == ["scheduler_time_in_doubt", "scheduler_time_settled",
                                                 "scheduler_job_reassigned"]


@pytest.mark.parametrize("ahead", [5.0, 20.0, MAX_SKEW_SECONDS])
def test_a_lease_that_a_leader_ahead_has_given_ends_in_time_under_the_next_leader(ahead: float) -> None:
    host = Host(PAIRS)
    host.add("a", "b")
    host.poll(1)
    host.now += ahead
    lost = host.poll(1)                      # by the clock that is ahead; the worker dies
    host.now, host.term = host.now - ahead + 1, 2
    assert host.poll(1).compaction_jobs == ()
    host.now += 14.5                         # no sooner than it was promised: it was given 15.5 seconds ago
    assert host.poll(1).compaction_jobs == ()
    host.now += 1
    assert host.poll(1).compaction_jobs == lost.compaction_jobs


def test_what_waits_under_the_next_leader_waits_no_longer_than_if_it_began_now() -> None:
    config = attrs.evolve(PAIRS, cleanup_delay_seconds=0.0, cleanup_lease_seconds=20.0, backoff_seconds=9.0)
    host = Host(config)
    host.add("a", "b", "c", "d")
    given = host.assigned(2)
    host.now += 50                           # a leader ahead
    host.poll(0, say(given, S, results=output(given.compaction_jobs[0], "x")), say(given, JobStatus.FAILED, which=1))
    host.now += 1
    assert len(host.poll(9).tombstones) == 1
    host.now, host.term = host.now - 50, 2
    host.poll(0)
    [(_, waiting)] = host.service.jobs(host.now)
    [entry] = host.service.state.tombstones
    longest = host.now + config.max_backoff_seconds
    assert (waiting.not_before <= longest, entry.leased_until) == (True, host.now + 20)
    update = host.service.prepare(host.command(), PollRequest((), 1))
    assert update.changes_nothing


def test_a_first_command_in_doubt_leaves_it_to_the_second_to_cut_leases() -> None:
    host = Host(PAIRS)
    host.add("a", "b")
    host.poll(1)
    host.now += 3000
    host.poll(1)
    host.now, host.term = host.now - 2990, 2
    assert host.poll(1).compaction_jobs == ()
    [(_, job)] = host.service.jobs(host.now)
    assert job.lease_expires_at == host.now + 2990 + 15
    host.now += 1
    host.poll(1)
    [(_, job)] = host.service.jobs(host.now)
    assert job.lease_expires_at == host.now + 15


def test_an_idle_leader_is_told_once_that_what_another_one_stamped_is_worth_a_command() -> None:
    host = Host(PAIRS)
    host.add("a", "b")
    host.assigned()
    host.term = 2
    update = host.service.prepare(host.command(), PollRequest((), 1))
    assert not update.changes_nothing
    host.service.apply(host.command(), update)
    assert host.service.prepare(host.command(), PollRequest((), 1)).changes_nothing


def test_an_idle_host_is_told_that_the_time_is_worth_a_command() -> None:
    host = Host(PAIRS)
    host.add("a", "b")
    host.assigned()
    for step, worth in ((1.0, False), (DAY, True)):
        update = host.service.prepare(attrs.evolve(host.command(), appended_at=host.now + step), PollRequest((), 1))
        assert update.changes_nothing is not worth


def test_what_a_leader_whose_clock_was_ahead_gave_out_is_cut_under_a_right_one() -> None:
    config = attrs.evolve(PAIRS, cleanup_delay_seconds=100.0)
    host = Host(config)
    host.add("a", "b", "c", "d", "e")
    response = host.assigned(2)
    host.now += DAY
    for _ in range(2):  # it is believed
        host.poll(2, say(response, JobStatus.IN_PROGRESS), say(response, JobStatus.IN_PROGRESS, which=1))
    host.poll(0, say(response, S, results=output(response.compaction_jobs[0], "x")))
    host.poll(0, say(response, JobStatus.FAILED, which=1, reason="no"))
    host.now -= DAY - 10
    host.term += 1
    for _ in range(2):
        assert not host.poll(2).compaction_jobs
    state = host.service.state
    assert [entry.appended_at for entry in state.tombstones] == [host.now]
    [(phase, job)] = list(host.service.jobs(host.now))
    assert phase is JobPhase.UNASSIGNED
    assert job.not_before <= host.now + config.max_backoff_seconds
    host.now += config.max_backoff_seconds
    assert len(host.poll(2).compaction_jobs) == 1
    assert not host.service.state.timeline.has_late_stamps


def test_a_state_in_doubt_is_stored_and_goes_on_in_the_same_way() -> None:
    host = Host(PAIRS)
    host.add("a", "b")
    host.assigned()
    host.now += DAY
    host.apply(Tick())
    again = load_rows(dump_rows(host.service.state), PAIRS)
    assert again.timeline == host.service.state.timeline == Timeline(1000.0, 1000.0 + DAY)
    command, request = Command(9, 1, host.now), PollRequest((), 1)
    assert SchedulerService(state=again).prepare(command, request) == host.service.prepare(command, request)


@pytest.mark.parametrize(("expiry", "given"), [(None, 1), (1020.0, 1), (1014.0, 0)])
def test_a_leader_that_is_not_sure_of_its_clock_says_up_to_when_things_have_expired(expiry: float | None,
                                                                                    given: int) -> None:
    host = Host(PAIRS)
    host.add("a", "b")
    host.assigned()
    command: Any = Command(9, 1, 1020.0, expiry)
    assert len(host.service.poll(command, PollRequest((), 1)).compaction_jobs) == given
