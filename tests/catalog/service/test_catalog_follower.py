# SPDX-License-Identifier: Apache-2.0
"""The follower: a thread that keeps a service's view up to date, and gets over a store that fails."""

from __future__ import annotations

import threading

import pytest

from compactlib.catalog import CatalogService, CreateSchema, LogFollower
from compactlib.errors import Busy, Closed, InvalidInput
from compactlib.kv import MemoryStore
from compactlib.outcome import Done, Failed, Skipped
from compactlib.runtime import RecordingObserver
from tests.catalog.services import cut, service_in
from tests.harness.catalog_logs import INITIAL
from tests.harness.faulty_store import FaultyStore, KVFault


def test_what_others_append_is_taken_in() -> None:
    store = MemoryStore()
    writer, reader = service_in(store, seed=1), service_in(store, seed=2)
    with LogFollower(reader, interval_seconds=3600) as follower:
        for number in range(3):
            writer.execute([CreateSchema(f"S{number}")], wait=False)
            follower.nudge()
            assert reader.wait_ready(number + 1, 30).version == number + 1
        cut(writer, 3)
    assert isinstance(follower.stop(), Done)


def test_it_looks_by_itself_too() -> None:
    store = MemoryStore()
    writer, reader = service_in(store, seed=1), service_in(store, seed=2)
    with LogFollower(reader, interval_seconds=0.001):
        writer.execute(INITIAL, wait=False)
        assert reader.wait_ready(1, 30).version == 1


def test_a_store_that_fails_ends_nothing() -> None:
    store = MemoryStore()
    failing = threading.Event()
    looked = threading.Event()

    class Told(RecordingObserver):
        def event(self, name: str, fields: object) -> None:
            looked.set()

    faulty = FaultyStore(store, lambda _: KVFault.FAIL if failing.is_set() else None)
    reader, writer = service_in(faulty, seed=1), service_in(store, seed=2)
    failing.set()
    with LogFollower(reader, interval_seconds=0.001, observer=Told()) as follower:
        writer.execute(INITIAL, wait=False)
        assert looked.wait(30)
        assert follower.last_error is not None
        failing.clear()
        assert reader.wait_ready(1, 30).version == 1


def test_whatever_a_look_raises_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also an error that nobody expects; `last_error` and the observer say so, and the next look is made."""
    store = MemoryStore()
    writer, reader = service_in(store, seed=1), service_in(store, seed=2)
    raised = [KeyError("a bug, once"), RecursionError("another one")]

    def poll() -> int:
        if raised:
            raise raised.pop()
        return CatalogService.poll(reader)

    monkeypatch.setattr(reader, "poll", poll)
    observer = RecordingObserver()
    with LogFollower(reader, interval_seconds=0.001, observer=observer) as follower:
        writer.execute(INITIAL, wait=False)
        assert reader.wait_ready(1, 30).version == 1
        assert isinstance(follower.last_error, KeyError)
        assert follower.failures == 2
    failed = [fields["message"] for name, fields in observer.events if name == "catalog_follow_failed"]
    assert ["RecursionError" in failed[0], "KeyError" in failed[1], len(failed)] == [True, True, 2]


def test_a_listener_may_stop_the_follower() -> None:
    store = MemoryStore()
    writer, reader = service_in(store, seed=1), service_in(store, seed=2)
    follower = LogFollower(reader, interval_seconds=0.001)
    told: list[BaseException] = []

    def listener(_: object) -> None:
        try:
            follower.stop()
        except Busy as error:
            told.append(error)

    reader.listen(listener)
    with follower:
        writer.execute(INITIAL, wait=False)
        assert reader.wait_ready(1, 30).version == 1
    assert len(told) == 1


def test_it_runs_once() -> None:
    follower = LogFollower(service_in())
    follower.start()
    follower.start()
    assert [type(follower.stop()) for _ in range(2)] == [Done, Done]
    with pytest.raises(Closed):
        follower.run_pending()
    for wrong in (0, -1, float("nan"), "often"):
        with pytest.raises(InvalidInput):
            LogFollower(service_in(), interval_seconds=wrong)  # type: ignore[arg-type]


def test_without_a_thread_it_looks_when_it_is_asked_to() -> None:
    store = MemoryStore()
    writer, reader = service_in(store, seed=1), service_in(store, seed=2)
    follower = LogFollower(reader, interval_seconds=3600)
    writer.execute(INITIAL, wait=False)
    assert follower.run_pending() == [Done(1)]
    assert follower.run_pending() == []
    follower.nudge()
    [outcome] = follower.run_pending()
    assert isinstance(outcome, Skipped)


def test_a_service_that_is_closed_is_looked_at_no_more() -> None:
    reader = service_in()
    follower = LogFollower(reader, interval_seconds=3600)
    reader.close()
    [outcome] = follower.run_pending()
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, Closed)
    assert follower.failures == 0
