# SPDX-License-Identifier: Apache-2.0
"""Random worlds of nodes that claim the coordination in a log: leaders that change before they know it, claims that are
lost, late, or answered by nobody, nodes that die, lag behind, replay the log or become a snapshot, listeners that
raise, clocks that jump.

At any time each node has the last claim of what it has applied, and has told its listener of no other; a term is one
node's; and a leader that stays claims once.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from compactlib.catalog.log.replicated import Claim, LowestTime, decode_command, encode_command
from compactlib.clock import ManualClock
from compactlib.commandlog import Command, NoAnswer, NotLeader
from compactlib.errors import Closed
from compactlib.hosting.log_election import LogElection
from compactlib.outcome import Done, Failed, Skipped
from tests.harness.effort import Effort

NAMES = "abc"


class Node:
    """A member of the group: the log as it knows it, its election, and what the election has told."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.leads = False
        self.told: list[tuple[int, str]] = []
        self.applied = 0
        self.born = len(world.entries)
        self.clock = ManualClock(1e6 + world.rng.choice([0.0, 90_000.0, -90_000.0]))
        self.election = LogElection(self, name, self.listen, clock=self.clock)

    def listen(self, term: int, node: str) -> None:
        if not self.world.is_calm and self.world.rng.random() < 0.2:
            raise Closed("it does not run yet")
        self.told.append((term, node))

    @property
    def is_leader(self) -> bool:
        return self.leads

    def propose(self, payload: bytes) -> None:
        self.world.propose(self, payload)

    def catch_up(self, until: int) -> None:
        for payload in self.world.entries[self.applied:until]:
            self.applied += 1
            self.election.applied(Command(self.applied, 1, 1e6), payload)

    def last_claim(self) -> tuple[int, str] | None:
        return next((claim for claim in reversed(self.world.claims) if claim[0] <= self.applied), None)

    def check(self) -> None:
        assert self.election.elected == self.last_claim(), "not the last claim of the log"
        assert set(self.told) <= set(self.world.claims), "a claim that is none"
        assert self.told == sorted(self.told), "told of an earlier claim again"


class World:
    """One life, drawn from a seed.

    Attributes:
        entries: the log.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.entries: list[bytes] = []
        self.leader = ""
        self.late: list[bytes] = []
        self.is_calm = False
        self.nodes = {name: Node(self, name) for name in NAMES}

    @property
    def claims(self) -> list[tuple[int, str]]:
        found = enumerate(map(decode_command, filter(None, self.entries)), 1)
        return [(index, command.node) for index, command in found if isinstance(command, Claim)]

    def propose(self, node: Node, payload: bytes) -> None:
        luck = 1.0 if self.is_calm else self.rng.random()
        if self.leader != node.name or luck < 0.1:
            raise NotLeader(leader=self.leader)
        if luck < 0.2:
            raise NoAnswer(waited_seconds=1.0, reason="it is lost")
        if luck < 0.3:
            self.late.append(payload)
            raise NoAnswer(waited_seconds=1.0, reason="it comes later")
        if luck < 0.4:
            self.elect()
        self.entries.append(payload)
        if luck < 0.5:
            raise NoAnswer(waited_seconds=1.0, reason="it was carried out")
        node.catch_up(len(self.entries))

    def elect(self) -> None:
        self.leader = self.rng.choice(["", *NAMES])
        if self.rng.random() < 0.7:
            self.notice()

    def notice(self) -> None:
        for node in self.nodes.values():
            node.leads = node.name == self.leader

    def step(self) -> None:
        node = self.rng.choice([*self.nodes.values()])
        steps: list[Callable[[Node], object]] = [
            self.look, self.look, self.look, self.catch_up, self.catch_up, self.write, self.arrive,
            lambda node: self.elect(), lambda node: self.notice(), self.jump, self.replace]
        self.rng.choice(steps)(node)

    def look(self, node: Node) -> None:
        if self.rng.random() < 0.2:
            node.election.nudge()
        node.clock.advance(1.0)
        for outcome in node.election.run_pending():
            assert isinstance(outcome, Done | Skipped | Failed)
            if isinstance(outcome, Done):
                assert outcome.stats == node.election.elected

    def catch_up(self, node: Node) -> None:
        node.catch_up(self.rng.randint(node.applied, len(self.entries)))

    def write(self, node: Node) -> None:
        self.entries.append(encode_command(LowestTime(5)))

    def arrive(self, node: Node) -> None:
        self.entries += self.late
        self.late.clear()

    def jump(self, node: Node) -> None:
        node.clock.set_now(node.clock.now() + self.rng.choice([-90_000.0, 90_000.0]))

    def replace(self, node: Node) -> None:
        """It dies; the next one has the log, or another node's snapshot; or it becomes a snapshot as it is."""
        other = self.rng.choice([*self.nodes.values()])
        if self.rng.random() < 0.6:
            node.election.stop()
            node = self.nodes[node.name] = Node(self, node.name)
            node.leads = self.leader == node.name
        if other.applied > node.applied and self.rng.random() < 0.6:
            node.applied = other.applied
            node.election.restored(other.election.elected)

    def check(self) -> None:
        for node in self.nodes.values():
            node.check()

    def end(self) -> None:
        """A leader that stays."""
        self.arrive(self.nodes["a"])
        self.is_calm, self.leader = True, self.rng.choice(NAMES)
        self.notice()
        for _ in range(2):
            for node in self.nodes.values():
                node.catch_up(len(self.entries))
                self.look(node)
        claims = len(self.claims)
        for node in self.nodes.values():
            node.catch_up(len(self.entries))
            self.look(node)
            assert node.election.elected == node.told[-1] == self.claims[-1]
            assert isinstance(node.election.stop(), Done)
        assert len(self.claims) == claims, "a leader claims again and again"
        assert self.claims[-1][1] == self.leader
        assert self.claims[-1][0] > self.nodes[self.leader].born, "a claim of an earlier life"
        self.check()


def live_through(seed: int) -> int:
    world = World(seed)
    for _ in range(150):
        world.step()
        world.check()
    world.end()
    return len(world.claims)


def test_each_node_has_the_last_claim_of_what_it_has_applied_and_a_leader_that_stays_coordinates(
        effort: Effort) -> None:
    claims = 0
    for seed in range(effort(20, 5_000)):
        try:
            claims += live_through(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    assert claims > 60
