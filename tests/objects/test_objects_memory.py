# SPDX-License-Identifier: Apache-2.0
"""The store in memory passes the conformance kit, and so do obstore's in memory and the kit without pytest."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import obstore
import pytest
from obstore import exceptions
from obstore.store import MemoryStore

from compactlib.clock import ManualClock
from compactlib.errors import InvalidInput
from compactlib.objects import (
    Digest,
    MemoryObjects,
    ObjectInfo,
    ObjectStore,
    ObjectStoreFailed,
    RemoteObjects,
)
from compactlib.objects.store import read_checked
from compactlib.testing.interrupts import interruptions


def test_age_is_by_the_clock_that_was_given() -> None:
    clock = ManualClock(1000.0)
    with MemoryObjects(clock=clock) as store:
        store.create("a", b"1")
        clock.advance(50)
        store.create("b", b"22")
        assert list(store.list()) == [ObjectInfo("a", 1, 1000.0), ObjectInfo("b", 2, 1050.0)]


def test_digests_are_known_again() -> None:
    # BLAKE2b-160 of "abc", by the standard library of another language.
    digest = Digest.of(b"abc")
    assert digest.hex == "384264f676f39536840523f284921cdc68b6846b"
    assert Digest.from_hex(digest.hex) == digest
    for text in ("", "zz", "00" * 19):
        with pytest.raises(InvalidInput):
            Digest.from_hex(text)


def test_an_object_is_the_bytes_of_its_buffer() -> None:
    """A number of NumPy is a buffer, and also a number, of which `bytes` makes so many zeros."""
    store = MemoryObjects()
    ref = store.create("a", cast("memoryview", np.int64(3)))
    assert read_checked(store, ref) == np.int64(3).tobytes()
    released = memoryview(b"b")
    released.release()
    with pytest.raises(InvalidInput, match="released"):
        store.create("b", released)


@pytest.mark.parametrize("refused", [exceptions.AlreadyExistsError, exceptions.PreconditionError])
def test_what_a_store_refuses_to_delete_is_not_taken_for_an_object_in_the_way(
        refused: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """It was `ObjectExists`, which a store says of a lease, too."""
    store = RemoteObjects(MemoryStore())
    store.create("key", b"value")

    def refuses(*_: object) -> None:
        raise refused("there is a lease on it")

    monkeypatch.setattr(obstore, "delete", refuses)
    with pytest.raises(ObjectStoreFailed, match="a lease on it"):
        store.delete(["key"])
    with pytest.raises(ObjectStoreFailed, match="a lease on it"):
        store.delete(["key", "other"])


@pytest.mark.parametrize("act", [lambda store: store.create("4", b"new"), lambda store: store.delete(["3"]),
                                 lambda store: store.delete(["1", "5"])])
def test_a_change_that_is_interrupted_anywhere_leaves_a_store_that_can_be_listed(
        act: Callable[[ObjectStore], object]) -> None:
    def store_with_keys() -> MemoryObjects:
        store = MemoryObjects()
        for key in "135":
            store.create(key, b"old")
        return store

    def keys(store: ObjectStore) -> list[str]:
        return [info.key for info in store.list()]

    whole = store_with_keys()
    act(whole)
    possible = {"".join(keys(store_with_keys())), "".join(keys(whole)), "35"}
    for interrupted in interruptions(lambda: act(store_with_keys()), 1_000):
        store = store_with_keys()
        with contextlib.suppress(KeyboardInterrupt), interrupted:
            act(store)
        assert "".join(keys(store)) in possible, interrupted.where
        assert len(store.get(keys(store)[0])) == 3


def test_a_listing_of_a_prefix_asks_for_no_pages_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    store, pages = RemoteObjects(MemoryStore()), []
    for key in ("runs/a", "runs/a1", "runs/a2", *(f"runs/b{number:04}" for number in range(2000))):
        store.create(key, b"")
    given = obstore.list

    def counted(*args: Any, **kwargs: Any) -> Iterator[Any]:
        for page in given(*args, **kwargs):
            pages.append(page)
            yield page

    monkeypatch.setattr(obstore, "list", counted)
    assert [info.key for info in store.list("runs/a")] == ["runs/a", "runs/a1", "runs/a2"]
    assert [info.key for info in store.list("runs/b1", after="runs/b1998")] == ["runs/b1999"]
    assert len(pages) == 2
