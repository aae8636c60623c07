# SPDX-License-Identifier: Apache-2.0
"""Peers that hold tombstones back, and containers whose records go."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from compactlib.blobstore import BlobStore, Missing, Questions, RecordKind, ReplicationToken
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.model.values import NO_EXPIRY, IndexEntry
from compactlib.blobstore.store.peers import ContainerStates, PeerTokens
from compactlib.clock import ManualClock
from compactlib.errors import InvalidInput, NotFound
from tests.blobstore.compaction_stores import RETENTION, START, answers, done, fill, open_store, plan_of

HERE = b"an incarnation.."
DAY = 86_400.0


def delete_at(sequence: int) -> IndexEntry:
    return IndexEntry(b"k", RecordKind.DELETE, 0, 0, sequence, 5, NO_EXPIRY, 1, 2, SegmentName(0, 0), 80, 61)


def test_one_peer_is_no_list_of_peers() -> None:
    """Of a name in its place each letter would hold tombstones back for ever."""
    with pytest.raises(InvalidInput, match="peers is 'node'; give a list"):
        PeerTokens(HERE, "node")


def test_no_peers_hold_nothing_back() -> None:
    assert PeerTokens(HERE, []).have_seen(delete_at(9))


@pytest.mark.parametrize(("case", "token", "seen"), [
    ("uninitialized", None, False), ("another store's", ReplicationToken(b"sixteen others..", 99), False),
    ("at the delete", ReplicationToken(HERE, 9), True), ("behind", ReplicationToken(HERE, 8), False),
])
def test_every_peer_has_to_have_seen_it(case: str, token: ReplicationToken | None, seen: bool) -> None:
    peers = PeerTokens(HERE, ["a", "b"])
    peers.heard("a", ReplicationToken(HERE, 100))
    assert not peers.have_seen(delete_at(9))
    peers.heard("b", token)
    assert peers.have_seen(delete_at(9)) == seen, case
    peers.audit()


@pytest.mark.parametrize(("days", "idle", "seen"), [(7, 7 * DAY, False), (7, 7 * DAY + 1, True), (0, 900 * DAY, False)])
def test_a_peer_that_was_idle_for_longer_is_ignored(days: int, idle: float, seen: bool) -> None:
    clock = ManualClock(START)
    peers = PeerTokens(HERE, ["a", "gone"], ignore_idle_seconds=days * DAY, clock=clock)
    clock.advance(idle)
    peers.heard("a", ReplicationToken(HERE, 9))
    assert peers.have_seen(delete_at(9)) == seen
    assert [row["counts"] for row in peers.to_dicts()] == [True, not seen]


def test_peers_come_and_go() -> None:
    peers = PeerTokens(HERE, ["a"])
    peers.heard("a", ReplicationToken(HERE, 9))
    peers.add("b")
    peers.add("a")
    assert not peers.have_seen(delete_at(9))
    peers.remove("b")
    peers.remove("b")
    assert peers.have_seen(delete_at(9))
    with pytest.raises(NotFound, match="none of the peers a"):
        peers.heard("b", None)
    assert "a" in str(peers)
    assert repr(peers) == "PeerTokens(1 peers)"


@pytest.mark.parametrize(("days", "gone"), [(15, True), (14, True), (13, False)])
def test_a_container_is_gone_after_its_retention(days: int, gone: bool) -> None:
    clock = ManualClock(START + 20 * DAY)
    states = ContainerStates(14 * DAY, clock=clock)
    assert not states.is_gone(delete_at(1))
    states.delete(1, 2, clock.now() - days * DAY)
    assert states.is_gone(delete_at(1)) == gone
    states.restore(1, 2)
    assert not states.is_gone(delete_at(1))
    states.deactivate(1, 2)
    assert states.is_gone(delete_at(1))
    states.audit()
    assert repr(states) == "ContainerStates(1 containers not active)"


def test_what_makes_no_sense() -> None:
    with pytest.raises(InvalidInput):
        PeerTokens(HERE, [], ignore_idle_seconds=-1)
    with pytest.raises(InvalidInput):
        ContainerStates(-1)


def compacted_twice(store: BlobStore) -> None:
    for turn in range(2):
        fill(store, 20, random.Random(turn), first=1000 * (turn + 1))
        done(store.compact(plan_of(store)))


def test_tombstones_go_when_the_last_peer_has_read_them(tmp_path: Path) -> None:
    clock = ManualClock(START)
    with open_store(tmp_path / "store", clock, purge_tombstones=True) as store:
        store.put("b0", b"x")
        store.delete("b0")
        clock.advance(RETENTION + 1)
        peers = PeerTokens(store.incarnation, ["a", "b"], clock=clock)
        peers.heard("a", store.entries_since().token)
        store.questions = Questions(seen_by_all_peers=peers.have_seen)
        compacted_twice(store)
        assert answers(store, 1) == ["Deleted"]
        peers.heard("b", store.entries_since().token)
        store.close_active_segment()
        fill(store, 1, random.Random(9), first=5000)
        done(store.compact(plan_of(store)))
        assert answers(store, 1) == ["Missing"]


def test_records_of_a_container_that_is_gone_go(tmp_path: Path) -> None:
    clock = ManualClock(START)
    with open_store(tmp_path / "store", clock, drop_dead_containers=True) as store:
        store.put("mine", b"x", account=1, container=1)
        store.put("theirs", b"x", account=1, container=2)
        fill(store, 20, random.Random(0))
        states = ContainerStates(0, clock=clock)
        states.deactivate(1, 2)
        store.questions = Questions(is_container_gone=states.is_gone)
        done(store.compact(plan_of(store)))
        assert store.get("theirs") == Missing(b"theirs")
        assert store.get("mine") != Missing(b"mine")
