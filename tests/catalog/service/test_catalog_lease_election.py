# SPDX-License-Identifier: Apache-2.0
"""An election by a lease in a store: one coordinator a term, another one when it gives no sign, and no wall clock."""

from __future__ import annotations

import random

import pytest

from compactlib.catalog import LeaseElection
from compactlib.catalog.log import keys
from compactlib.clock import ManualClock
from compactlib.errors import Closed, CorruptData, InvalidInput
from compactlib.kv import KVStore, MemoryStore
from compactlib.outcome import Done, Failed, Skipped
from compactlib.runtime import RecordingObserver
from tests.catalog.services import cut, grown, service_in
from tests.harness.catalog_logs import sound
from tests.harness.faulty_store import FaultyStore, KVFault, KVOperation


class Voter:
    """One node's election, looked at by hand, and what its listener was told."""

    def __init__(self, name: str, store: KVStore, seed: int = 1) -> None:
        self.told: list[tuple[int, str]] = []
        self.clock = ManualClock(1000.0 * seed)  # nobody's clock is another's
        self.observer = RecordingObserver()
        self.election = LeaseElection(store, name, lambda *elected: self.told.append(elected), lease_seconds=9.0,
                                      clock=self.clock, observer=self.observer, rng=random.Random(seed))

    def look(self, after: float = 3.0) -> tuple[int, str]:
        """What the listener was told at the next look."""
        self.clock.advance(after)
        [outcome] = self.election.run_pending()
        assert isinstance(outcome, Done), outcome
        return self.told[-1]


def test_the_first_node_is_elected_and_stays_it_while_it_gives_a_sign() -> None:
    store = MemoryStore()
    a, b, c = (Voter(name, store, seed) for seed, name in enumerate("abc", 1))
    for _ in range(20):
        assert {voter.look() for voter in (a, b, c)} == {(1, "a")}


def test_a_coordinator_that_gives_no_sign_is_replaced_in_the_next_term() -> None:
    store = MemoryStore()
    a, b, c = (Voter(name, store, seed) for seed, name in enumerate("abc", 1))
    for voter in (a, b, c):
        voter.look()
    assert [b.look(), b.look(), b.look()] == [(1, "a"), (1, "a"), (2, "b")]
    assert c.look(100.0) == (2, "b")  # it has seen no sign of a for long, but one of b just now
    assert a.look() == (2, "b")       # a was paused, not gone
    assert [b.look(), a.look(), c.look()] == [(2, "b")] * 3


def test_a_node_that_was_paused_for_long_believes_a_record_that_has_changed() -> None:
    store = MemoryStore()
    a, b = Voter("a", store, 1), Voter("b", store, 2)
    a.look()
    b.look()
    a.look()
    assert b.look(1000.0) == (1, "a")


def test_a_node_that_was_paused_within_a_look_takes_no_sign_for_older_than_its_answer() -> None:
    store = MemoryStore()
    pauses: list[float] = []

    def paused(operation: KVOperation) -> None:
        if operation.name == "get" and pauses:
            b.clock.advance(pauses.pop())

    a, b = Voter("a", store, 1), Voter("b", FaultyStore(store, paused), 2)
    a.look()
    pauses.append(100.0)
    b.clock.advance(3.0)
    # The second look comes right behind the first one's answer: no lease has gone by since.
    assert len(b.election.run_pending()) == 2
    assert set(b.told) == {(1, "a")}
    assert [b.look(), b.look(), b.look()] == [(1, "a"), (1, "a"), (2, "b")]


def test_a_node_that_restarts_coordinates_in_a_new_term() -> None:
    store = MemoryStore()
    before, b = Voter("a", store, 1), Voter("b", store, 2)
    assert before.look() == b.look() == (1, "a")
    again = Voter("a", store, 3)
    assert again.look() == (2, "a")
    assert before.look() == (3, "a")  # two nodes of one name: each term has one coordinator all the same


def test_a_record_that_is_lost_or_older_than_before_brings_no_term_back() -> None:
    store = MemoryStore()
    a, b = Voter("a", store, 1), Voter("b", store, 2)
    a.look()
    first = store.get(b"catalog", keys.COORDINATOR).value
    assert b.look() == (1, "a")
    store.delete(b"catalog", keys.COORDINATOR)
    assert b.look() == (2, "b")
    assert a.look() == (2, "b")
    store.set(b"catalog", keys.COORDINATOR, first)  # a's own, from a backup
    assert a.look() == (3, "a")
    assert b.look() == (3, "a")
    store.set(b"catalog", keys.COORDINATOR, first)
    b.look()
    assert [b.look(), b.look(), b.look()][-1] == (4, "b")
    assert a.look() == (4, "b")


def test_terms_begin_above_that_of_the_last_cut() -> None:
    service = grown(service_in(), 5)
    assert isinstance(cut(service, 4, term=7), Done)
    voter = Voter("a", service.log.store)
    assert voter.look() == (8, "a")
    sound(service)


def test_of_two_that_take_over_at_once_one_does() -> None:
    store = MemoryStore()
    taken = [False]

    def meanwhile(one: object) -> None:
        if not taken[0] and getattr(one, "name", "") == "set_if":
            taken[0] = True
            assert b.look() == (1, "b")

    a, b = Voter("a", FaultyStore(store, meanwhile)), Voter("b", store, 2)
    a.clock.advance(3.0)
    [outcome] = a.election.run_pending()
    assert isinstance(outcome, Skipped)
    assert a.told == []
    assert a.look() == (1, "b")


@pytest.mark.parametrize("fault", [KVFault.FAIL, KVFault.UNKNOWN_LOST, KVFault.UNKNOWN_DONE])
def test_a_write_without_an_answer_is_seen_at_the_next_look(fault: KVFault) -> None:
    failing = [True]
    a = Voter("a", FaultyStore(MemoryStore(), lambda one: fault if one.changes and failing[0] else None))
    [outcome] = a.election.run_pending()
    assert isinstance(outcome, Failed)
    assert a.told == []
    assert "catalog_election_failed" in [name for name, _ in a.observer.events]
    failing[0] = False
    assert a.look() == (1, "a")
    assert a.look() == (1, "a")


def test_a_record_that_is_damaged_elects_nobody() -> None:
    service = grown(service_in(), 3)
    voter = Voter("a", service.log.store)
    voter.look()
    sound(service)
    service.log.store.set(service.log.partition, keys.COORDINATOR, b"nonsense, but of some length")
    voter.clock.advance(3.0)
    [outcome] = voter.election.run_pending()
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, CorruptData)
    assert not service.verify().is_sound


def test_a_listener_that_is_closed_or_fails_harms_no_election(caplog: pytest.LogCaptureFixture) -> None:
    def closed(term: int, node: str) -> None:
        raise Closed("it does not run yet")

    def failing(term: int, node: str) -> None:
        raise ZeroDivisionError(node)

    for listener, logged in ((closed, 0), (failing, 1)):
        election = LeaseElection(MemoryStore(), "a", listener)
        assert isinstance(election.run_pending()[0], Done)
        assert election.failures == logged
        assert len(caplog.messages) == logged


def test_it_elects_from_a_thread_too() -> None:
    election = LeaseElection(MemoryStore(), "a", lambda *_: None)
    with election:
        election.nudge()
    for wrong in (0, -1, float("nan"), "long"):
        with pytest.raises(InvalidInput):
            LeaseElection(MemoryStore(), "a", lambda *_: None, lease_seconds=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        LeaseElection(MemoryStore(), "", lambda *_: None)
