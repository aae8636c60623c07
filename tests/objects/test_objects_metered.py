# SPDX-License-Identifier: Apache-2.0
"""A metered object store is the store behind it, and tells what each request came to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import InvalidInput
from compactlib.objects import MemoryObjects, MeteredObjects, ObjectExists, ObjectInfo, ObjectNotFound
from compactlib.objects.in_front import ObjectsInFront
from tests.harness.recording import RecordingObserver


def told(observer: RecordingObserver, name: str) -> dict[tuple[str, ...], int]:
    """A counter's sums by operation, and outcome if it has one."""
    return {tuple(value for label, value in labels if label != "store"): count
            for (counter, labels), count in observer.counters.items() if counter == name}


def test_requests_outcomes_and_bytes_are_told() -> None:
    seen = RecordingObserver()
    with MeteredObjects(MemoryObjects(), seen, name="a") as store:
        store.create("x", b"12345")
        with pytest.raises(ObjectExists):
            store.create("x", b"9")
        store.get("x")
        store.get_range("x", 1, 2)
        store.info("x")
        store.delete("x")
        with pytest.raises(ObjectNotFound):
            store.get("x")
    assert told(seen, "objects_requests") == {
        ("create", "ok"): 1, ("create", "ObjectExists"): 1, ("get", "ok"): 1, ("get_range", "ok"): 1, ("info", "ok"): 1,
        ("delete", "ok"): 1, ("get", "ObjectNotFound"): 1}
    assert told(seen, "objects_written_bytes") == {("create",): 5}
    assert told(seen, "objects_read_bytes") == {("get",): 5, ("get_range",): 2}


class _SlowListing(MemoryObjects):
    """Each object of a listing takes a second, and the third fails."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._moved = clock

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ObjectInfo]:
        for number, info in enumerate(super().list(prefix, after=after)):
            self._moved.advance(1)
            if number == 2:
                raise OSError("unplugged")
            yield info


def test_one_key_is_no_list_of_keys() -> None:
    """Also where the store behind removes one object at a time."""
    store = MeteredObjects(ObjectsInFront(MemoryObjects()), RecordingObserver(), name="s")
    store.create("a", b"")
    with pytest.raises(InvalidInput, match="give a list"):
        store.delete_many("a")
    assert [info.key for info in store.list()] == ["a"]


def test_a_listing_is_one_request_whose_time_is_the_stores() -> None:
    seen, clock = RecordingObserver(), ManualClock()
    store = MeteredObjects(_SlowListing(clock), seen, name="a", clock=clock)
    for key in "ab":
        store.create(key, b"")
    for _ in store.list():
        clock.advance(100)
    for _ in store.list():
        break
    store.create("c", b"")
    with pytest.raises(OSError, match="unplugged"):
        list(store.list())
    assert told(seen, "objects_requests") == {("create", "ok"): 3, ("list", "ok"): 2, ("list", "error"): 1}
    assert seen.measured["objects_request_seconds", (("operation", "list"), ("store", "a"))] == [2.0, 1.0, 3.0]
