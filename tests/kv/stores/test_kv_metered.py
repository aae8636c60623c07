# SPDX-License-Identifier: Apache-2.0
"""A metered store is the store behind it, and tells what each request came to."""

from __future__ import annotations

from array import array

import pytest

from compactlib.clock import ManualClock
from compactlib.kv import Condition, KeyNotFound, MemoryStore, MeteredStore, PredicateFailed, Put, SlowDown
from compactlib.kv.store import Versioned
from tests.harness.faulty_store import FaultyStore, KVFault, fault_at
from tests.harness.recording import RecordingObserver


def told(observer: RecordingObserver, name: str) -> dict[tuple[str, ...], int]:
    """A counter's sums by operation, and outcome if it has one."""
    return {tuple(value for label, value in labels if label != "store"): count
            for (counter, labels), count in observer.counters.items() if counter == name}


def test_requests_outcomes_and_bytes_are_told() -> None:
    seen = RecordingObserver()
    store = MeteredStore(MemoryStore(), seen, name="a")
    store.set(b"p", b"k", memoryview(b"12345"))
    predicate = store.get(b"p", b"k").predicate
    store.set_if(b"p", b"k", b"12", predicate)
    with pytest.raises(PredicateFailed):
        store.set_if(b"p", b"k", b"9", predicate)
    with pytest.raises(PredicateFailed):
        store.delete_if(b"p", b"k", predicate)
    store.transact([Condition(b"p", b"new", None)], [Put(b"p", b"new", b"123"), Put(b"q", b"x", b"1")])
    store.delete(b"p", b"k")
    with pytest.raises(KeyNotFound):
        store.get(b"p", b"k")
    assert told(seen, "kv_requests") == {
        ("set", "ok"): 1, ("get", "ok"): 1, ("set_if", "ok"): 1, ("set_if", "PredicateFailed"): 1,
        ("delete_if", "PredicateFailed"): 1, ("transact", "ok"): 1, ("delete", "ok"): 1, ("get", "KeyNotFound"): 1}
    assert told(seen, "kv_written_bytes") == {("set",): 5, ("set_if",): 2, ("transact",): 4}
    assert told(seen, "kv_read_bytes") == {("get",): 5}
    assert {labels for _, labels in seen.measured} == {
        (("operation", each), ("store", "a")) for each in ("set", "get", "set_if", "delete_if", "transact", "delete")}


def test_a_transaction_of_any_buffer_is_counted_in_bytes_and_not_in_elements() -> None:
    seen, store = RecordingObserver(), MemoryStore()
    values = memoryview(array("Q", [1, 2])), memoryview(b"1").cast("B", shape=[])
    MeteredStore(store, seen, name="s").transact(puts=[Put(b"p", b"%d" % number, value)  # type: ignore[arg-type]
                                                       for number, value in enumerate(values)])
    assert told(seen, "kv_written_bytes") == {("transact",): 17}
    assert [len(store.get(b"p", b"%d" % number).value) for number in range(2)] == [16, 1]


def test_each_page_of_a_scan_is_a_request() -> None:
    seen = RecordingObserver()
    store = MeteredStore(MemoryStore(page_size=4), seen, name="a")
    for number in range(10):
        store.set(b"p", b"%d" % number, b"xy")
    with store.scan(b"p") as entries:
        assert len(list(entries)) == 10
        loads = entries.page_loads
    assert loads >= 3
    assert told(seen, "kv_requests")["scan", "ok"] == loads
    assert told(seen, "kv_read_bytes") == {("scan",): 20}
    with store.scan(b"p") as entries:
        next(entries)
    assert told(seen, "kv_read_bytes") == {("scan",): 22}


def test_a_page_that_fails_is_told_and_the_scan_goes_on() -> None:
    seen = RecordingObserver()
    behind = MemoryStore()
    behind.set(b"p", b"k", b"v")
    store = MeteredStore(FaultyStore(behind, fault_at(1, KVFault.SLOW_DOWN)), seen, name="a")
    entries = store.scan(b"p")
    with pytest.raises(SlowDown):
        next(entries)
    assert next(entries).value == b"v"
    assert told(seen, "kv_requests") == {("scan", "SlowDown"): 1, ("scan", "ok"): 1}


class _Slow(MemoryStore):
    """Each `get` takes two seconds."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def get(self, partition: bytes, key: bytes) -> Versioned:
        self._clock.advance(2)
        return super().get(partition, key)


def test_time_is_that_of_the_clock_that_was_given() -> None:
    seen, clock = RecordingObserver(), ManualClock()
    store = MeteredStore(_Slow(clock), seen, name="a", clock=clock)
    store.set(b"p", b"k", b"v")
    store.get(b"p", b"k")
    assert seen.measured == {("kv_request_seconds", (("operation", "set"), ("store", "a"))): [0.0],
                             ("kv_request_seconds", (("operation", "get"), ("store", "a"))): [2.0]}


def test_an_observer_that_raises_fails_no_request() -> None:
    class Raising:
        def event(self, name: str, /, **fields: object) -> None:
            raise ZeroDivisionError(name)

    store = MeteredStore(MemoryStore(), Raising(), name="a")
    store.set(b"p", b"k", b"v")
    assert store.get(b"p", b"k").value == b"v"
    with pytest.raises(KeyNotFound):
        store.get(b"p", b"none")
    assert [entry.key for entry in store.scan(b"p")] == [b"k"]
