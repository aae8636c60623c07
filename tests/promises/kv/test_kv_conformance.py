# SPDX-License-Identifier: Apache-2.0
"""The stores in memory and in an SQLite file keep what every key-value store promises."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.kv import Cell, Entries, KVEntry, KVStore, MemoryStore, SqliteStore
from compactlib.kv.errors import TooLarge
from compactlib.testing import KVStoreConformance
from tests.harness.kv.sqlite_file import locked


class TestMemoryStore(KVStoreConformance):
    def make_store(self, folder: Path) -> KVStore:
        return MemoryStore()


class TestMemoryStoreThatComparesValues(KVStoreConformance):
    def make_store(self, folder: Path) -> KVStore:
        return MemoryStore(predicates="value")


class TestSqliteStore(KVStoreConformance):
    shared = True

    def make_store(self, folder: Path) -> KVStore:
        folder.mkdir(exist_ok=True)
        self.path = folder / "kv.sqlite"
        return SqliteStore(self.path, synchronous="normal", busy_seconds=0.0)

    @contextlib.contextmanager
    def throttled(self, store: KVStore) -> Iterator[bool]:
        with locked(self.path):
            yield True


def test_pages_of_a_scan_double_and_a_seek_inside_one_loads_nothing() -> None:
    store, keys = MemoryStore(), [b"%04d" % number for number in range(100)]
    for key in keys:
        store.set(b"p", key, b"v")
    with store.scan(b"p", page_size=1) as entries:
        assert [entry.key for entry in entries] == keys
        assert entries.page_loads == 7  # 1 + 2 + 4 + ... + 64 are more than 100
    with store.scan(b"p") as entries:
        for key in (keys[1], keys[3], keys[4], keys[1]):
            entries.seek(key)
            assert next(entries).key == key
        assert entries.page_loads == 1


def test_scan_takes_no_number_for_a_key() -> None:
    """`bytes(3)` would be three zeros."""
    number: Any = 3
    store = MemoryStore()
    for bound in ("start", "prefix", "after"):
        with pytest.raises(TypeError):
            store.scan(b"p", **{bound: number})
    with store.scan(b"p") as entries, pytest.raises(TypeError):
        entries.seek(number)


def test_scan_seeks_either_way_within_its_prefix() -> None:
    rng, store = random.Random(23), MemoryStore(page_size=10)
    keys = sorted({bytes(rng.choices(b"\x00ab\xff", k=rng.randint(1, 4))) for _ in range(150)})
    for key in keys:
        store.set(b"p", key, b"v")
    for prefix, page_size in ((b"", 1), (b"a", 2), (b"\xff", 7), (b"", 1000)):
        inside = [key for key in keys if key.startswith(prefix)]
        with store.scan(b"p", prefix=prefix, page_size=page_size) as entries:
            for _ in range(50):
                wanted = bytes(rng.choices(b"\x00ab\xff", k=rng.randint(1, 4)))
                entries.seek(wanted)
                found = next(entries, None)
                assert (found and found.key) == next((key for key in inside if key >= wanted), None)


def test_scan_that_is_interrupted_gives_each_key_once() -> None:
    """Ctrl-C while a page is taken in."""
    class Interrupted(list[KVEntry]):
        def __getitem__(self, at: Any) -> Any:
            if at == -1 and interrupts:
                raise interrupts.pop()
            return super().__getitem__(at)

    def load(start: bytes, limit: int) -> tuple[list[KVEntry], bool]:
        found = [key for key in keys if key >= start][:limit]
        return Interrupted(KVEntry(key, b"", None) for key in found), len(found) < limit

    keys, interrupts = [b"a", b"b", b"c"], [KeyboardInterrupt()]
    entries = Entries(load, page_size=2)
    with pytest.raises(KeyboardInterrupt):
        next(entries)
    assert [entry.key for entry in entries] == keys


def test_store_of_single_writes_takes_conditional_writes() -> None:
    """A store without transactions of several keys compares and sets one key, also for a `Cell`."""
    store = MemoryStore(limits=attrs.evolve(MemoryStore().limits, max_transact=1))
    store.set_if(b"p", b"k", b"v", None)
    cell: Cell[int] = Cell(store, b"p", b"c", int)
    assert cell.update(lambda _: 1).after == 1
    store.delete_if(b"p", b"k", store.get(b"p", b"k").predicate)
    assert [entry.key for entry in store.scan(b"p")] == [b"c"]
    for conditions, puts in (((), (b"a", b"b")), ((b"a",), (b"b",)), ((b"a", b"b"), ()), ((b"a", b"b"), (b"a",))):
        with pytest.raises(TooLarge):
            store.transact({(b"p", key): None for key in conditions}, {(b"p", key): b"v" for key in puts})
    assert [entry.key for entry in store.scan(b"p")] == [b"c"]
