"""The K-vectors of `notes/staging.md` 3.1 as tests, each named by its number; `kv_conformance` adds what goes beyond.

Here are those of single keys, and K27; those of scans are in `kv_scan_vectors`. The numbering of the notes has gaps. D9
is a defect that another store once had (section 2.3).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from compactlib.kv import (
    EXISTS,
    KeyNotFound,
    KVStore,
    MissingKey,
    MissingPartitionKey,
    MissingValue,
    PredicateFailed,
    Put,
    SlowDown,
)
from compactlib.testing.kit.conformance import ConformanceKit, expect, same

P = b"test"
OTHER = b"other"


def in_threads(count: int, work: Callable[[int], object]) -> None:
    """Run `work(0)`, `work(1)`, ... each in a thread of its own, all begun together.

    Raises:
        BaseException: what the first thread that failed raised.
    """
    barrier = threading.Barrier(count)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def put_all(store: KVStore, keys: Iterable[bytes], partition: bytes = P) -> None:
    """Write each key with `v:` and itself as its value, many in one request where the store can."""
    puts = [Put(partition, key, b"v:" + key) for key in keys]
    at_once = store.limits.max_transact
    if len(puts) > 1 and at_once:
        for first in range(0, len(puts), at_once):
            store.transact(puts=puts[first:first + at_once])
        return
    for put in puts:
        store.set(put.partition, put.key, put.value)


def keys_of(store: KVStore, partition: bytes = P, **arguments: Any) -> list[bytes]:
    """The keys of one scan, having checked the values that `put_all` wrote."""
    with store.scan(partition, **arguments) as entries:
        found = list(entries)
    assert all(entry.value == b"v:" + entry.key for entry in found), found
    return [entry.key for entry in found]


class KVVectors(ConformanceKit):
    """K1 to K13, and K27. Attributes and methods that an inheriting class sets: see `KVStoreConformance`."""

    effort_percent: int = 100

    def times(self, count: int, at_least: int = 1) -> int:
        """How often to do what should be done `count` times, by `effort_percent`."""
        return max(min(at_least, count), count * self.effort_percent // 100)

    def make_store(self, folder: Path, page_size: int | None = None) -> KVStore:
        """The store to be tested; see `KVStoreConformance.make_store`."""
        raise NotImplementedError("say which store is to be tested")

    @contextlib.contextmanager
    def throttled(self, store: KVStore) -> Iterator[bool]:
        """Make the backend refuse requests within the block; `False` if it cannot be done, which skips K27."""
        yield False

    def test_k01_what_is_absent_is_not_found(self, tmp_path: Path) -> None:
        """An absent key and an absent partition answer the same.

        To do: raise KeyNotFound for a key and for a partition that are absent; a partition needs no creation.
        """
        store = self.make_store(tmp_path)
        with expect(KeyNotFound):
            store.get(b"no such partition", b"k")
        store.set(P, b"k", b"v")
        with expect(KeyNotFound):
            store.get(P, b"absent")
        store.close()

    def test_k02_missing_arguments(self, tmp_path: Path) -> None:
        """Empty and `None` are missing; the partition is looked at first, then the key, then the value.

        To do: check the arguments before anything else: `compactlib.kv.parts.arguments` has the checks in this order.
        """
        store = self.make_store(tmp_path)
        none: Any = None
        with expect(MissingPartitionKey):
            store.scan(b"")
        calls: list[Callable[[bytes, bytes], object]] = [
            store.get, store.delete, lambda p, k: store.set(p, k, b"v"), lambda p, k: store.set_if(p, k, b"v", None),
            lambda p, k: store.delete_if(p, k, EXISTS),
        ]
        writes: list[Callable[[bytes, bytes], object]] = [
            lambda p, k: store.set(p, k, none), lambda p, k: store.set_if(p, k, none, None),
        ]
        for missing in (b"", none):
            for call in calls:
                with expect(MissingPartitionKey):
                    call(missing, b"k")
                with expect(MissingKey):
                    call(P, missing)
                with expect(MissingPartitionKey):
                    call(missing, missing)
        for write in writes:
            with expect(MissingValue):
                write(P, b"k")
            with expect(MissingKey):
                write(P, b"")
            with expect(MissingPartitionKey):
                write(none, none)
        store.close()

    def test_k03_an_empty_value_is_a_value(self, tmp_path: Path) -> None:
        """It is found, and it is scanned.

        To do: tell absent from empty with a separate flag or column; `if not value` takes the one for the
        other.
        """
        store = self.make_store(tmp_path)
        store.set(P, b"k", b"")
        same(store.get(P, b"k").value, b"")
        same([(entry.key, entry.value) for entry in store.scan(P)], [(b"k", b"")])
        store.close()

    def test_k04_set_and_get(self, tmp_path: Path) -> None:
        """Keys are equal by their bytes; what the caller does to its buffer later does not matter.

        To do: copy what you are given with bytes(...) before `set` returns.
        """
        store = self.make_store(tmp_path)
        store.set(P, b"k", b"v1")
        same(store.get(bytes(bytearray(P)), bytes(bytearray(b"k"))).value, b"v1")
        store.set(P, b"k", b"v2")
        same(store.get(P, b"k").value, b"v2")
        buffer = bytearray(b"v3")
        store.set(P, b"k", buffer)
        store.set(P, b"view", memoryview(buffer)[1:])
        buffer[:] = b"xx"
        same([store.get(P, key).value for key in (b"k", b"view")], [b"v3", b"3"])
        store.close()

    def test_k05_delete(self, tmp_path: Path) -> None:
        """Once, twice, and where nothing ever was.

        To do: a delete of what is absent succeeds: do not look first, or do not mind that nothing was there.
        """
        store = self.make_store(tmp_path)
        store.set(P, b"k", b"v")
        store.delete(P, b"k")
        with expect(KeyNotFound):
            store.get(P, b"k")
        store.delete(P, b"k")
        store.delete(b"no such partition", b"k")
        store.close()

    def test_k06_create_only(self, tmp_path: Path) -> None:
        """The predicate `None` holds once.

        To do: insert and fail if the key exists, in one request of the backend; a look before the write is a
        race.
        """
        store = self.make_store(tmp_path)
        store.set_if(P, b"k", b"v", None)
        with expect(PredicateFailed):
            store.set_if(P, b"k", b"other", None)
        same(store.get(P, b"k").value, b"v")
        store.close()

    def test_k07_compare_and_set(self, tmp_path: Path) -> None:
        """A predicate is good for one write.

        To do: compare and write in one request of the backend, and change the predicate (a version, an etag)
        with each write.
        """
        store = self.make_store(tmp_path)
        store.set(P, b"k", b"v1")
        predicate = store.get(P, b"k").predicate
        store.set_if(P, b"k", b"v2", predicate)
        with expect(PredicateFailed):
            store.set_if(P, b"k", b"v3", predicate)
        same(store.get(P, b"k").value, b"v2")
        store.close()

    def test_k08_a_predicate_out_of_the_air(self, tmp_path: Path) -> None:
        """It fails, whatever its type, and whether the key is there or not.

        To do: compare predicates by type and value and answer PredicateFailed for any other; never let a
        comparison raise.
        """
        store = self.make_store(tmp_path)
        store.set(P, b"k", b"v1")
        for bogus in (b"bogus", b"", "text", 4711, -1, True, 1.0, (1, 2)):
            for key in (b"k", b"absent"):
                with expect(PredicateFailed):
                    store.set_if(P, key, b"v2", bogus)
        same(store.get(P, b"k").value, b"v1")
        with expect(KeyNotFound):
            store.get(P, b"absent")
        store.close()

    def test_k09_compare_and_set_of_an_empty_value(self, tmp_path: Path) -> None:
        """`None` is not the predicate of an empty value.

        To do: the predicate None means absent; an empty value is there, and has a predicate of its own.
        """
        store = self.make_store(tmp_path)
        store.set(P, b"k", b"")
        with expect(PredicateFailed):
            store.set_if(P, b"k", b"v", None)
        store.set_if(P, b"k", b"v", store.get(P, b"k").predicate)
        same(store.get(P, b"k").value, b"v")
        store.close()

    def test_k10_exists(self, tmp_path: Path) -> None:
        """Any value will do, none will not.

        To do: EXISTS is an update that must find the key; an upsert would create it.
        """
        store = self.make_store(tmp_path)
        with expect(PredicateFailed):
            store.set_if(P, b"k", b"v", EXISTS)
        with expect(KeyNotFound):
            store.get(P, b"k")
        for value in (b"", b"v"):
            store.set(P, b"k", value)
            store.set_if(P, b"k", b"new", EXISTS)
            same(store.get(P, b"k").value, b"new")
        store.close()

    def test_d09_a_predicate_of_a_key_that_is_gone(self, tmp_path: Path) -> None:
        """It fails and writes nothing, deletes nothing, and is no crash (D9: a memory store fell over here).

        To do: compare and write as an update that must find the key with this predicate; one that finds nothing
        has failed.
        """
        store = self.make_store(tmp_path)
        store.set(P, b"k", b"v")
        predicate = store.get(P, b"k").predicate
        store.delete(P, b"k")
        with expect(PredicateFailed):
            store.set_if(P, b"k", b"v2", predicate)
        with expect(PredicateFailed):
            store.delete_if(P, b"k", predicate)
        with expect(KeyNotFound):
            store.get(P, b"k")
        store.close()

    def test_k12_the_same_bytes_again(self, tmp_path: Path) -> None:
        """A predicate may hold again or not (ABA); nothing else may happen.

        To do: a predicate that compares values may hold again, one that counts versions may not: anything
        between loses a write.
        """
        store = self.make_store(tmp_path)
        store.set(P, b"k", b"v1")
        predicate = store.get(P, b"k").predicate
        store.set(P, b"k", b"v2")
        store.set(P, b"k", b"v1")
        try:
            store.set_if(P, b"k", b"v3", predicate)
        except PredicateFailed:
            same(store.get(P, b"k").value, b"v1")
        else:
            same(store.get(P, b"k").value, b"v3")
        store.close()

    def test_k13_one_of_fifty_threads_creates(self, tmp_path: Path) -> None:
        """All create the same key; one of them did.

        To do: let the backend decide who creates (insert if absent); if it cannot, hold one lock over look and
        write.
        """
        store = self.make_store(tmp_path)
        winners: list[int] = []

        def create(number: int) -> None:
            with contextlib.suppress(PredicateFailed):
                store.set_if(P, b"k", b"%d" % number, None)
                winners.append(number)

        in_threads(50, create)
        same(len(winners), 1)
        same(store.get(P, b"k").value, b"%d" % winners[0])
        store.close()

    def test_k13_eight_threads_count(self, tmp_path: Path) -> None:
        """Each adds one a hundred times by compare-and-set; no step is lost.

        To do: compare and write in one request or under one lock; two that both read the old value lose a step.
        """
        store = self.make_store(tmp_path)
        times = self.times(100)
        store.set(P, b"k", b"0")

        def count(_: int) -> None:
            for _ in range(times):
                while True:
                    found = store.get(P, b"k")
                    try:
                        store.set_if(P, b"k", b"%d" % (int(found.value) + 1), found.predicate)
                        break
                    except PredicateFailed:
                        pass

        in_threads(8, count)
        same(store.get(P, b"k").value, b"%d" % (8 * times))
        store.close()

    def test_k27_throttled(self, tmp_path: Path) -> None:
        """`SlowDown`, which is neither "not found" nor "predicate failed", and nothing was written.

        To do: turn the backend's throttling into SlowDown, before or instead of the write; callers wait and try
        again.
        """
        store = self.make_store(tmp_path)
        store.set(P, b"k", b"v")
        predicate = store.get(P, b"k").predicate
        with self.throttled(store) as possible:
            if possible:
                with expect(SlowDown):
                    store.set(P, b"new", b"v")
                with expect(SlowDown):
                    store.set_if(P, b"k", b"w", predicate)
                with expect(SlowDown):
                    store.delete(P, b"k")
        store.set_if(P, b"k", b"w", predicate)
        with expect(KeyNotFound):
            store.get(P, b"new")
        store.close()
