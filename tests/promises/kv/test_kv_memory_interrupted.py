# SPDX-License-Identifier: Apache-2.0
"""An interrupt at any place leaves a transaction of a store in memory whole or undone, and an object there or not."""

from __future__ import annotations

from contextlib import suppress

from compactlib.kv import MemoryStore
from compactlib.objects import MemoryObjects, ObjectExists
from compactlib.testing import Interrupted

PARTITION = b"partition"
OLD = {b"%02d" % number: b"old" for number in range(0, 40, 2)}
NEW = {**{key: value for key, value in OLD.items() if key != b"10"}, b"07": b"new", b"12": b"new", b"31": b"new"}


def filled() -> MemoryStore:
    store = MemoryStore()
    for key, value in OLD.items():
        store.set(PARTITION, key, value)
    return store


def change(store: MemoryStore) -> None:
    store.transact({}, {(PARTITION, key): None if key == b"10" else b"new" for key in (b"07", b"12", b"31", b"10")})


def scanned(store: MemoryStore) -> dict[bytes, bytes]:
    with store.scan(PARTITION) as entries:
        return {entry.key: entry.value for entry in entries}


def test_interrupted_transaction_is_whole_or_undone() -> None:
    with Interrupted() as whole:
        change(filled())
    outcomes = set()
    for place in range(1, whole.places + 1):
        store, interrupted = filled(), Interrupted(place)
        with suppress(KeyboardInterrupt), interrupted:
            change(store)
        found = scanned(store)
        assert found in (OLD, NEW), interrupted.where
        assert list(found) == sorted(found), interrupted.where
        read = store.get_many([(PARTITION, key) for key in sorted({*OLD, *NEW})])
        assert {key: entry.value for (_, key), entry in read.items()} == found, interrupted.where
        change(store)
        assert scanned(store) == NEW, interrupted.where
        outcomes.add(found == NEW)
    assert outcomes == {False, True}


def test_interrupted_object_is_there_or_not() -> None:
    with Interrupted() as whole:
        MemoryObjects().create("b", b"content")
    for place in range(1, whole.places + 1):
        objects, interrupted = MemoryObjects(), Interrupted(place)
        objects.create("a", b"another")
        with suppress(KeyboardInterrupt), interrupted:
            objects.create("b", b"content")
        with suppress(ObjectExists):
            objects.create("b", b"content")
        assert [info.key for info in objects.list()] == ["a", "b"], interrupted.where
        assert objects.get("b") == b"content"
