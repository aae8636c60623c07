# SPDX-License-Identifier: Apache-2.0
"""Transfers of snapshots over a network that drops, repeats and reorders, between sides that restart and compact."""

from __future__ import annotations

import random

import attrs
import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from compactlib.outcome import Done, Failed
from compactlib.raftlog.replication.errors import AbortReason, TransferAborted
from tests.raftlog.replication.transfer_world import LIMITS, World


class BadNetwork(RuleBasedStateMachine):
    """Hypothesis chooses what happens; at the end all is well and the transfer has to end."""

    world: World

    @initialize(seed=st.integers(0, 1 << 32), commands=st.integers(0, 60))
    def begin(self, seed: int, commands: int) -> None:
        self.world = World(random.Random(seed), commands)
        self.world.start_sender()

    @precondition(lambda self: self.world.network)
    @rule(data=st.data(), repeat=st.booleans())
    def deliver_any(self, data: st.DataObject, repeat: bool) -> None:
        place = data.draw(st.integers(0, len(self.world.network) - 1), label="letter")
        self.world.deliver(place, keep=repeat)

    @precondition(lambda self: self.world.network)
    @rule()
    def deliver_some_in_order(self) -> None:
        for _ in range(min(8, len(self.world.network))):
            self.world.deliver(0)

    @precondition(lambda self: self.world.network)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.world.network.pop(data.draw(st.integers(0, len(self.world.network) - 1), label="letter"))

    @rule()
    def cut_the_line(self) -> None:
        self.world.network.clear()

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0, 25.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(commands=st.integers(0, 30))
    def both_compact(self, commands: int) -> None:
        self.world.compact_both(commands)

    @rule(keep=st.booleans(), tear=st.booleans())
    def receiver_restarts(self, keep: bool, tear: bool) -> None:
        self.world.restart_receiver(keep_staged=keep, tear_staged=tear)

    @rule(commands=st.integers(0, 5))
    def sender_restarts(self, commands: int) -> None:
        self.world.leader.apply(commands)
        self.world.start_sender()

    @rule()
    def a_term_begins(self) -> None:
        self.world.new_term()

    @rule()
    def the_leader_wins_it(self) -> None:
        self.world.leader.term = max(self.world.leader.term, self.world.follower.term)

    @rule(slow=st.booleans())
    def reads_are_slow(self, slow: bool) -> None:
        self.world.reads_are_slow = slow

    @rule()
    def reads_are_answered(self) -> None:
        self.world.answer_reads()

    @rule(slow=st.booleans())
    def the_disk_is_slow(self, slow: bool) -> None:
        self.world.disk_is_slow = slow

    @rule()
    def the_disk_catches_up(self) -> None:
        self.world.let_disk_catch_up()

    @invariant()
    def all_is_sound(self) -> None:
        self.world.judge_follower()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.settle()


TestBadNetwork = BadNetwork.TestCase
TestBadNetwork.settings = settings(max_examples=30, stateful_step_count=40, deadline=None,
                                   suppress_health_check=[HealthCheck.too_slow])


def history(seed: int, *, steps: int = 300, loss: float = 0.1) -> World:
    """One random history; the world after it has settled."""
    rng = random.Random(seed)
    # Ten times the patience: silence is tried elsewhere.
    world = World(rng, commands=rng.randrange(80), limits=attrs.evolve(LIMITS, sender_seconds=300.0))
    world.start_sender()
    for _ in range(steps):
        chance = rng.random()
        if world.reads and rng.random() < 0.2:
            world.answer_reads()
        if world.network and chance < 0.8:
            place = rng.randrange(min(len(world.network), 4))
            if rng.random() < loss:
                world.network.pop(place)
            else:
                world.deliver(place, keep=rng.random() < loss)
        elif chance < 0.9:
            world.pass_time(rng.choice((0.2, 1.0, 2.5)))
        elif chance < 0.92:
            world.compact_both(rng.randrange(20))
        elif chance < 0.93:
            world.restart_receiver(keep_staged=rng.random() < 0.7, tear_staged=rng.random() < 0.3)
        elif chance < 0.94:
            world.network.clear()
        elif chance < 0.945:
            world.start_sender()
        elif chance < 0.96:
            world.reads_are_slow = rng.random() < 0.6
        elif chance < 0.97:
            world.disk_is_slow = rng.random() < 0.5
        else:
            world.let_disk_catch_up()
            world.answer_reads()
    world.settle()
    return world


@pytest.mark.parametrize("block", range(2))
def test_random_histories_end_with_equal_state(block: int) -> None:
    """Without a change of term nothing is a reason to give up: each ends with the snapshot installed."""
    for seed in range(block * 50, block * 50 + 50):
        world = history(seed)
        assert not isinstance(world.sender_outcome, Failed), (seed, world.sender_outcome)
        assert world.follower.last_applied >= world.sent.manifest.index


def test_the_same_seed_gives_the_same_history() -> None:
    traces = {tuple(history(7).trace) for _ in range(10)}
    assert len(traces) == 1


def test_a_sender_that_hears_nothing_ends_by_name() -> None:
    world = World(random.Random(1))
    world.start_sender()
    while world.sender_outcome is None:
        world.network.clear()
        world.pass_time(1.0)
    assert isinstance(world.sender_outcome, Failed)
    error = world.sender_outcome.error
    assert isinstance(error, TransferAborted)
    assert error.reason is AbortReason.TIMED_OUT
    assert world.now == world.limits.sender_seconds


def test_a_clean_network_sends_everything_once() -> None:
    world = World(random.Random(2), commands=200)
    world.start_sender()
    world.settle()
    assert isinstance(world.sender_outcome, Done)
    stats = world.sender_outcome.stats
    assert (stats.attempts, stats.resends, stats.entries) == (1, 0, world.sent.live.count)
    received = world.receiver_outcomes[-1]
    assert isinstance(received, Done)
    assert (received.stats.payload_bytes, received.stats.ignored) == (stats.payload_bytes, 0)


@pytest.mark.soak
@pytest.mark.parametrize("block", range(1000, 1100))
def test_soak_random_histories(block: int) -> None:
    for seed in range(block * 200, block * 200 + 200):
        history(seed, loss=0.25)
