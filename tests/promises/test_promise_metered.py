# SPDX-License-Identifier: Apache-2.0
"""A metered store is the store behind it, and reports what became of each request."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from compactlib.clock import ManualClock
from compactlib.kv import KeyNotFound, MemoryStore, PredicateFailed
from compactlib.metered import metered
from compactlib.objects import MemoryObjects, ObjectExists, ObjectInfo, ObjectNotFound
from compactlib.observer import EventRecorder
from compactlib.testing import StoreInFront


def counted(seen: EventRecorder, name: str) -> Counter[tuple[str, ...]]:
    """Return a counter by operation, and outcome if it has one."""
    found = Counter[tuple[str, ...]]()
    for fields in map(dict, seen.named(name)):
        assert fields.pop("store") == "a"
        add = fields.pop("add")
        found[tuple(fields.values())] += add
    return found


def test_kv_requests_are_reported_with_outcome_and_bytes() -> None:
    seen = EventRecorder()
    store = metered(MemoryStore(), seen, name="a")
    store.set(b"p", b"k", b"12345")
    predicate = store.get(b"p", b"k").predicate
    store.set_if(b"p", b"k", b"12", predicate)
    with pytest.raises(PredicateFailed):
        store.set_if(b"p", b"k", b"9", predicate)
    with pytest.raises(PredicateFailed):
        store.delete_if(b"p", b"k", predicate)
    store.transact({(b"p", b"new"): None}, {(b"p", b"new"): b"123", (b"q", b"x"): b"1", (b"q", b"y"): None})
    assert [entry.value for entry in store.get_many([(b"p", b"new"), (b"p", b"no")]).values()] == [b"123"]
    store.delete(b"p", b"k")
    with pytest.raises(KeyNotFound):
        store.get(b"p", b"k")
    assert counted(seen, "kv_requests") == {
        ("set", "ok"): 1, ("get", "ok"): 1, ("set_if", "ok"): 1, ("set_if", "PredicateFailed"): 1,
        ("delete_if", "PredicateFailed"): 1, ("transact", "ok"): 1, ("get_many", "ok"): 1, ("delete", "ok"): 1,
        ("get", "KeyNotFound"): 1}
    assert counted(seen, "kv_written_bytes") == {("set",): 5, ("set_if",): 2, ("transact",): 4}
    assert counted(seen, "kv_read_bytes") == {("get",): 5, ("get_many",): 3}


def test_transacted_buffers_are_counted_in_bytes() -> None:
    seen = EventRecorder()
    values: Any = memoryview(array("Q", [1, 2])), memoryview(b"1").cast("B", shape=[])
    metered(MemoryStore(), seen, name="a").transact(changes={(b"p", b"%d" % number): value
                                                             for number, value in enumerate(values)})
    assert counted(seen, "kv_written_bytes") == {("transact",): 17}


def test_each_page_of_a_scan_is_a_request() -> None:
    seen, fails = EventRecorder(), [False]

    def step(request: Any, act: Any) -> Any:
        if fails[0]:
            raise OSError("unplugged")
        return act()

    store = metered(StoreInFront(MemoryStore(), step, page_size=4), seen, name="a")
    for number in range(10):
        store.set(b"p", b"%d" % number, b"xy")
    with store.scan(b"p") as entries:
        assert len(list(entries)) == 10
        loads = entries.page_loads
    assert loads >= 3
    assert counted(seen, "kv_requests")["scan", "ok"] == loads
    assert counted(seen, "kv_read_bytes") == {("scan",): 20}
    fails[0] = True
    with store.scan(b"p") as entries, pytest.raises(OSError, match="unplugged"):
        next(entries)
    assert counted(seen, "kv_requests")["scan", "error"] == 1
    fails[0] = False
    with store.scan(b"p") as entries:
        next(entries)
    assert counted(seen, "kv_read_bytes") == {("scan",): 28}, "the whole page"


def test_object_requests_are_reported_with_outcome_and_bytes() -> None:
    seen = EventRecorder()
    with metered(MemoryObjects(), seen, name="a") as store:
        store.create("x", b"12345")
        with pytest.raises(ObjectExists):
            store.create("x", b"9")
        store.get("x")
        store.get_range("x", 1, 2)
        store.info("x")
        store.delete(["x", "y"])
        with pytest.raises(ObjectNotFound):
            store.get("x")
    assert counted(seen, "objects_requests") == {
        ("create", "ok"): 1, ("create", "ObjectExists"): 1, ("get", "ok"): 1, ("get_range", "ok"): 1, ("info", "ok"): 1,
        ("delete", "ok"): 1, ("get", "ObjectNotFound"): 1}
    assert counted(seen, "objects_written_bytes") == {("create",): 5}
    assert counted(seen, "objects_read_bytes") == {("get",): 5, ("get_range",): 2}


class SlowListing(MemoryObjects):
    """Each object of a listing takes a second, and the third fails."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.moved = clock

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        for number, info in enumerate(super().list(prefix)):
            self.moved.advance(1)
            if number == 2:
                raise OSError("unplugged")
            yield info


def test_listing_is_one_request_that_takes_the_time_of_the_store() -> None:
    seen, clock = EventRecorder(), ManualClock()
    store = metered(SlowListing(clock), seen, name="a", clock=clock)
    for key in "ab":
        store.create(key, b"")
    for _ in store.list():
        clock.advance(100)
    for _ in store.list():
        break
    store.create("c", b"")
    with pytest.raises(OSError, match="unplugged"):
        list(store.list())
    assert [fields["sample"] for fields in seen.named("objects_request_seconds") if fields["operation"] == "list"] == [
        2.0, 1.0, 3.0]
    assert counted(seen, "objects_requests") == {("create", "ok"): 3, ("list", "ok"): 2, ("list", "error"): 1}


def test_meter_of_a_meter_reports_the_same_events() -> None:
    inner, outer = EventRecorder(), EventRecorder()
    metered(metered(MemoryStore(), inner, name="a"), outer, name="a").set(b"p", b"k", b"123")
    metered(metered(MemoryObjects(), inner, name="a"), outer, name="a").create("k", b"1")
    for seen in (inner, outer):
        assert counted(seen, "kv_written_bytes") == {("set",): 3}
        assert counted(seen, "objects_written_bytes") == {("create",): 1}
