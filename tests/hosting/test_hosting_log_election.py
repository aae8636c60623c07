# SPDX-License-Identifier: Apache-2.0
"""The leader of a replicated log coordinates the catalog: the index of its claim is the term, on every node."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from compactlib.catalog.log.replicated import Claim, LowestTime, encode_command
from compactlib.clock import ManualClock
from compactlib.commandlog import Command, NotLeader
from compactlib.errors import Closed, InvalidInput
from compactlib.hosting.log_election import LogElection
from compactlib.outcome import Done, Failed, Skipped
from compactlib.runtime import RecordingObserver
from tests.harness.addresses import free_addresses


class Group:
    """A log of two nodes, whose commands every node applies at once."""

    def __init__(self) -> None:
        self.leader = ""
        self.index = 0
        self.members: dict[str, Member] = {}

    def append(self, payload: bytes) -> None:
        self.index += 1
        for member in self.members.values():
            member.election.applied(Command(self.index, 1, 1000.0), payload)


class Member:
    def __init__(self, group: Group, name: str) -> None:
        self.group = group
        self.name = name
        self.told: list[tuple[int, str]] = []
        self.clock = ManualClock(1000.0)
        self.observer = RecordingObserver()
        self.loses_the_lead = False
        self.election = LogElection(self, name, lambda *elected: self.told.append(elected), clock=self.clock,
                                    observer=self.observer)
        group.members[name] = self

    @property
    def is_leader(self) -> bool:
        return self.group.leader == self.name

    def propose(self, payload: bytes) -> None:
        if self.loses_the_lead:
            raise NotLeader(leader="")
        self.group.append(payload)

    def look(self) -> object:
        self.clock.advance(1.0)
        [outcome] = self.election.run_pending()
        return outcome


def test_each_leader_claims_once_and_the_index_of_its_claim_is_the_term() -> None:
    group = Group()
    a, b = Member(group, "a"), Member(group, "b")
    assert isinstance(a.look(), Skipped)
    group.leader = "a"
    group.append(b"a command of the host's")
    group.append(encode_command(LowestTime(5)))
    assert a.look() == Done((3, "a"))
    for member in (a, b, a):
        assert isinstance(member.look(), Skipped)
    group.leader = "b"
    assert b.look() == Done((4, "b"))
    group.leader = "a"
    assert a.look() == Done((5, "a"))
    assert list(dict.fromkeys(a.told)) == list(dict.fromkeys(b.told)) == [(3, "a"), (4, "b"), (5, "a")]
    assert a.told[-1] == (5, "a")
    again = Member(group, "a")  # another life, which replays what is in the log
    again.election.applied(Command(5, 1, 1000.0), encode_command(Claim("a")))
    assert again.look() == Done((6, "a"))


def test_who_begins_to_listen_late_or_becomes_a_snapshot_is_told_of_the_last_claim() -> None:
    group = Group()
    a, b = Member(group, "a"), Member(group, "b")
    group.leader = "a"
    a.look()
    b.told.clear()
    b.look()
    assert b.told == [(1, "a")]
    late = Member(Group(), "c")
    late.election.restored(None)
    assert late.told == []
    late.election.restored(b.election.elected)
    assert late.told == [(1, "a")]


def test_a_claim_that_finds_no_majority_is_made_again() -> None:
    group = Group()
    a = Member(group, "a")
    group.leader, a.loses_the_lead = "a", True
    assert isinstance(a.look(), Failed)
    assert a.told == []
    assert "catalog_election_failed" in [name for name, _ in a.observer.events]
    a.loses_the_lead = False
    assert a.look() == Done((1, "a"))


def test_what_is_no_claim_elects_nobody_and_a_listener_that_fails_harms_no_log() -> None:
    def listener(term: int, node: str) -> None:
        raise Closed("it does not run yet")

    group = Group()
    election = LogElection(Member(group, "a"), "a", listener)
    assert not election.applied(Command(1, 1, 1.0), b"a command of the host's")
    assert not election.applied(Command(2, 1, 1.0), encode_command(LowestTime(5)))
    assert (election.failures, election.elected) == (0, None)
    assert not election.applied(Command(3, 1, 1.0), b"CLCT and then nonsense")
    assert election.failures == 1
    assert election.applied(Command(4, 1, 1.0), encode_command(Claim("a")))
    assert election.elected == (4, "a")
    for name, every in (("", 1.0), ("a", 0.0)):
        with pytest.raises(InvalidInput):
            LogElection(Member(group, "b"), name, listener, every_seconds=every)


@pytest.fixture
def _collected() -> Iterator[None]:
    """What pysyncobj leaves is collected while that is ignored, and not in a test of somebody else."""
    yield
    gc.collect()


@pytest.mark.cluster
@pytest.mark.usefixtures("_collected")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_a_time_goes_through_a_replicated_log_and_the_history_is_cut() -> None:
    """Three members of a real Raft group; before the time is applied and flushed, the table's creation is needed."""
    from examples.catalog_raft import run

    nodes = asyncio.run(asyncio.wait_for(run(dict(zip("abc", free_addresses(3), strict=True))), 60))
    assert any(node.compaction.last_round and node.election.elected for node in nodes)
    assert nodes[0].catalog.history.earliest == 7
    applied = [node.partition.times for node in nodes]
    shortest = min(map(len, applied))
    assert shortest > 0
    assert applied[0][:shortest] == applied[1][:shortest] == applied[2][:shortest]
