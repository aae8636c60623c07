# SPDX-License-Identifier: Apache-2.0
"""What every `KVStore` has to do, as tests that any implementation can inherit.

    from compactlib.testing import KVStoreConformance

    class TestMyStore(KVStoreConformance):
        shared = True

        def make_store(self, folder: Path, page_size: int | None = None) -> KVStore:
            return MyStore(folder / "my.store")

pytest collects the inherited methods; without pytest, `check_kv_store` runs them one after the other. A Hypothesis
state machine against a plain dictionary is in `compactlib.testing.stores.kv_machine`, which needs the extra "testing".

The class is long because it is a list: each test is a promise of its own, and none calls another.
"""

from __future__ import annotations

import contextlib
import math
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import attrs

from compactlib.errors import Closed, CompactlibError, InvalidInput, Unsupported
from compactlib.kv import (
    EXISTS,
    Condition,
    Delete,
    KeyNotFound,
    KVStore,
    OutcomeUnknown,
    PredicateFailed,
    Put,
    SlowDown,
)
from compactlib.kv.batches import change_many, get_many
from compactlib.kv.errors import (
    BatchSizeTooBig,
    ClosedEntries,
    MissingKey,
    MissingPartitionKey,
    MissingValue,
    PartlyWritten,
    TooLarge,
)
from compactlib.kv.store import KVLimits, place_of
from compactlib.testing.faults.kv_faults import FaultyStore, KVCrash, KVRun, explore_kv_faults
from compactlib.testing.kit.fresh import drawing
from compactlib.testing.promises import ConformanceKit, expect, run_kit, same

P = b"test"
OTHER = b"other"
ODD_NAMES = [b"\x00", b"\xff", b"a", b"a/a", b"\x00\x00", b"\xff\xff", b"a\x00", b"A", b"a/", b"/", b"ab", b"b",
             "größe".encode(), b"\x00\xff", b"\xff\x00", b"a\x00b", b"a/b", b"%", b"_", b"'", b'"', b"\\", b"\n", b" ",
             b"\x7f", b"\x80", b"\xfe", b"\xff\xfe", b"\xff\xff\xff", b"key" * 20]
"""Names that have broken a store somewhere: zeros and 0xFF, prefixes of each other, separators, quotes. Put together
in pairs, the first ones already give the same bytes in several ways, with a separator between them or without."""
_FEWEST_NAMES = 8


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


class KVStoreConformance(ConformanceKit):
    """Inherit in a test class, say how to make the store, and pytest finds the rest.

    Attributes:
        shared: whether `make_store` twice with one folder gives two handles of the same store.
        effort_percent: how much the longest tests do; 100 is the whole. For a store behind a simulator that
            takes long for every request: fewer names and turns, the same promises.
    """

    shared: bool = False
    effort_percent: int = 100

    def make_store(self, folder: Path, page_size: int | None = None) -> KVStore:
        """The store to be tested, empty when the folder is new.

        Args:
            folder: a folder of its own for each store; may not exist yet.
            page_size: how many entries a page of its scans should hold at most, if the store can be configured so.
        """
        raise NotImplementedError("say which store is to be tested")

    @contextlib.contextmanager
    def throttled(self, store: KVStore) -> Iterator[bool]:
        """Make the backend refuse requests within the block; `False` if it cannot be done, which skips that test."""
        yield False

    def times(self, count: int, at_least: int = 1) -> int:
        """How often to do what should be done `count` times, by `effort_percent`."""
        return max(min(at_least, count), count * self.effort_percent // 100)

    # ---- single keys, and a store that is throttled

    def test_what_is_absent_is_not_found(self, tmp_path: Path) -> None:
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

    def test_missing_arguments(self, tmp_path: Path) -> None:
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

    def test_an_empty_value_is_a_value(self, tmp_path: Path) -> None:
        """It is found, and it is scanned.

        To do: distinguish absent from empty with a separate flag or column; `if not value` takes the one for the
        other.
        """
        store = self.make_store(tmp_path)
        store.set(P, b"k", b"")
        same(store.get(P, b"k").value, b"")
        same([(entry.key, entry.value) for entry in store.scan(P)], [(b"k", b"")])
        store.close()

    def test_set_and_get(self, tmp_path: Path) -> None:
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

    def test_a_delete_succeeds_also_where_nothing_is(self, tmp_path: Path) -> None:
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

    def test_create_only(self, tmp_path: Path) -> None:
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

    def test_compare_and_set(self, tmp_path: Path) -> None:
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

    def test_a_predicate_out_of_the_air(self, tmp_path: Path) -> None:
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

    def test_compare_and_set_of_an_empty_value(self, tmp_path: Path) -> None:
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

    def test_the_predicate_exists(self, tmp_path: Path) -> None:
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

    def test_a_predicate_of_a_key_that_is_gone(self, tmp_path: Path) -> None:
        """It fails and writes nothing, deletes nothing, and is no crash (a memory store once fell over here).

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

    def test_the_same_bytes_again(self, tmp_path: Path) -> None:
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

    def test_one_of_fifty_threads_creates(self, tmp_path: Path) -> None:
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

    def test_eight_threads_count(self, tmp_path: Path) -> None:
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

    def test_a_throttled_store_says_slow_down(self, tmp_path: Path) -> None:
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

    # ---- scans

    def test_a_scan_stays_in_its_partition(self, tmp_path: Path) -> None:
        """The same hundred keys in two partitions, written in any order.

        To do: bound a scan by its partition at both ends, also when it loads the next page.
        """
        store = self.make_store(tmp_path)
        keys = [b"pfx-key-%04d" % number for number in range(100)]
        put_all(store, random.Random(14).sample(keys, 100))
        put_all(store, keys, OTHER)
        store.set(OTHER, keys[50], b"foreign")
        same(keys_of(store, start=b"pfx"), keys)
        store.close()

    def test_where_a_scan_begins(self, tmp_path: Path) -> None:
        """At the first key at or after the start.

        To do: the start is inclusive; `after` is exclusive.
        """
        store = self.make_store(tmp_path)
        put_all(store, [b"pfx-key-%04d" % number for number in range(100)])
        found = keys_of(store, start=b"pfx-key-0005")
        same((len(found), found[0]), (95, b"pfx-key-0005"))
        same(keys_of(store, start=b"pfx-key-0005a")[0], b"pfx-key-0006")
        store.close()

    def test_nothing_to_scan(self, tmp_path: Path) -> None:
        """An unknown partition, and a start past the end.

        To do: an empty page ends a scan; it is no error.
        """
        store = self.make_store(tmp_path)
        same(keys_of(store, b"no such partition"), [])
        put_all(store, [b"a", b"b"])
        same(keys_of(store, start=b"c"), [])
        store.close()

    def test_the_order_of_keys(self, tmp_path: Path) -> None:
        """Byte by byte, the shorter first; no text collation.

        To do: order by bytes: a binary collation, bytea, BLOB; text columns and locales sort differently.
        """
        store = self.make_store(tmp_path)
        keys = [bytes.fromhex(text) for text in ("00", "00ff", "61", "6100", "6161", "ff", "ffff")]
        put_all(store, random.Random(17).sample(keys, len(keys)))
        same(keys_of(store), keys)
        store.close()

    def test_pages_of_any_size(self, tmp_path: Path) -> None:
        """The size is a hint about how, not what; fewer are asked for first, then twice as many each time.

        To do: take page_size as a first guess; give all entries, and let pages grow
        (`compactlib.kv.parts.entries.PagedEntries` does).
        """
        store = self.make_store(tmp_path, page_size=1000)
        keys = [b"%04d" % number for number in range(100)]
        put_all(store, keys)
        for size in (1, 2, 99, 100, 1000):
            same(keys_of(store, page_size=size), keys)
        with store.scan(P, page_size=1) as entries:
            same(list(entries)[-1].key, keys[-1])
            # 1, 2, 4, ... 64 entries: a hint of one does not mean a hundred requests.
            assert entries.page_loads <= 8, f"{entries.page_loads} pages for 100 entries: pages do not grow"
        store.close()

    def test_deleting_during_a_scan(self, tmp_path: Path) -> None:
        """The last key goes while the scan is open; it may be seen or not, the others are.

        To do: ask for the next page by `key > last`, not by an offset: a deletion would shift it over an entry.
        """
        for size in (99, 95):
            store = self.make_store(tmp_path / str(size))
            keys = [b"%04d" % number for number in range(100)]
            put_all(store, keys)
            with store.scan(P, page_size=size) as entries:
                found = [next(entries).key]
                store.delete(P, keys[99])
                found += [entry.key for entry in entries]
            assert found in (keys, keys[:99]), found
            store.close()

    def test_a_scan_seeks(self, tmp_path: Path) -> None:
        """Forwards, backwards and past the end; inside a page nothing is loaded.

        To do: a seek goes to the first key at or after the one asked for, either way; within the page in hand
        ask for nothing.
        """
        store = self.make_store(tmp_path)
        put_all(store, [b"a", b"aa", b"b", b"c", b"d"])
        with store.scan(P) as entries:
            for wanted, found in ((b"b", [b"b", b"c", b"d"]), (b"aaa", [b"b", b"c", b"d"]), (b"e", []),
                                  (b"a", [b"a", b"aa", b"b", b"c", b"d"])):
                entries.seek(wanted)
                same([entry.key for entry in entries], found, case=wanted)
        with store.scan(P) as entries:
            for key in (b"b", b"c", b"d"):
                entries.seek(key)
                same(next(entries).key, key)
            assert entries.page_loads == 1, f"seeks inside one page loaded {entries.page_loads}"
        store.close()

    def test_a_closed_scan(self, tmp_path: Path) -> None:
        """It says so; closing again is fine.

        To do: remember that the scan was closed, and raise ClosedEntries from every call but close().
        """
        store = self.make_store(tmp_path)
        put_all(store, [b"a", b"b"])
        entries = store.scan(P)
        same(next(entries).key, b"a")
        entries.close()
        entries.close()
        with expect(ClosedEntries):
            next(entries)
        with expect(ClosedEntries):
            entries.seek(b"a")
        store.close()

    def test_a_prefix_bounds_a_scan(self, tmp_path: Path) -> None:
        """With where to begin: at a key, or after it.

        To do: a prefix, a start and an `after` all hold at once: begin at the highest of them, end with the
        prefix.
        """
        store = self.make_store(tmp_path)
        put_all(store, [b"a", b"aa", b"b"])
        same(keys_of(store, prefix=b"a"), [b"a", b"aa"])
        same(keys_of(store, prefix=b"a", start=b"aa"), [b"aa"])
        same(keys_of(store, prefix=b"a", after=b"aa"), [])
        store.close()

    def test_seek_across_pages(self, tmp_path: Path) -> None:
        """Into pages that are not loaded yet, and back into one that is gone.

        To do: after a seek behind the page in hand begin a new page at the key; before it, load anew.
        """
        store = self.make_store(tmp_path, page_size=10)
        tail = [b"d" + bytes([letter]) for letter in range(ord("a"), ord("z") + 1)]
        keys = [b"a", b"aa", b"b", b"c", b"d", *tail, b"z"]
        put_all(store, keys)
        with store.scan(P, page_size=10) as entries:
            same(next(entries).key, b"a")
            entries.seek(b"b")
            same([next(entries).key for _ in range(11)], keys[2:13])
            entries.seek(b"z")
            same(next(entries).key, b"z")
            entries.seek(b"d1")
            same([entry.key for entry in entries], [*tail, b"z"])
        store.close()

    # ---- beyond the numbers

    def test_partitions_and_keys_do_not_run_together(self, tmp_path: Path) -> None:
        """No pair of a partition and a key is another pair, however they are put together inside.

        To do: keep partition and key in two columns, or write the partition's length before it; a separator may
        occur in either.
        """
        store = self.make_store(tmp_path)
        keys = self._odd_names()
        names = [name for name in keys if len(name) <= store.limits.max_partition_bytes]
        for partition in names:
            for key in keys:
                store.set(partition, key, partition + b"|" + key)
        for partition in names:
            with store.scan(partition, page_size=3) as entries:
                same([entry.key for entry in entries], sorted(keys), case=partition)
            for key in keys:
                same(store.get(partition, key).value, partition + b"|" + key)
        store.audit()
        store.close()

    def test_prefixes_of_odd_bytes(self, tmp_path: Path) -> None:
        """Those of 0xFF have no upper bound made of as many bytes.

        To do: the bound above a prefix is it without its trailing 0xFF bytes, the last byte one higher; for all
        0xFF there is none.
        """
        store = self.make_store(tmp_path)
        names = self._odd_names()
        put_all(store, names)
        for prefix in [b"", *names]:
            wanted = sorted(key for key in names if key.startswith(prefix))
            same(keys_of(store, prefix=prefix, page_size=2), wanted, case=prefix)
            for start in names:
                same(keys_of(store, prefix=prefix, start=start), [key for key in wanted if key >= start])
                same(keys_of(store, prefix=prefix, after=start), [key for key in wanted if key > start])
        store.close()

    def test_seek_against_a_list(self, tmp_path: Path) -> None:
        """A thousand steps and seeks, some inside a prefix, with pages of every size.

        To do: `PagedEntries` of `compactlib.kv.parts.entries` does this once it is given a way to load a page.
        """
        store = self.make_store(tmp_path)
        rng = drawing(23)
        keys = sorted({bytes(rng.choices(b"\x00ab\xff", k=rng.randint(1, 4))) for _ in range(self.times(150, 20))})
        put_all(store, keys)
        for prefix, page_size in ((b"", 1), (b"a", 2), (b"\xff", 7), (b"", 1000)):
            inside = [key for key in keys if key.startswith(prefix)]
            with store.scan(P, prefix=prefix, page_size=page_size) as entries:
                left = list(inside)
                for _ in range(self.times(250, 40)):
                    if rng.random() < 0.3:
                        wanted = bytes(rng.choices(b"\x00ab\xff", k=rng.randint(1, 4)))
                        entries.seek(wanted)
                        left = [key for key in inside if key >= wanted]
                    found = next(entries, None)
                    same(None if found is None else found.key, left[0] if left else None)
                    left = left[1:]
        store.close()

    def test_a_scan_gives_predicates(self, tmp_path: Path) -> None:
        """The same that `get` gives.

        To do: read value and predicate of an entry in the same request.
        """
        store = self.make_store(tmp_path)
        put_all(store, [b"a", b"b"])
        for entry in store.scan(P):
            store.set_if(P, entry.key, b"new", entry.predicate)
            with expect(PredicateFailed):
                store.set_if(P, entry.key, b"newer", entry.predicate)
        store.close()

    def test_conditional_deletes(self, tmp_path: Path) -> None:
        """As conditional writes; the predicate `None` makes no sense.

        To do: delete with the condition in one request; refuse None with InvalidInput, for it could never hold.
        """
        store = self.make_store(tmp_path)
        store.set(P, b"k", b"v1")
        old = store.get(P, b"k").predicate
        store.set(P, b"k", b"v2")
        for key, predicate in ((b"k", old), (b"absent", old), (b"absent", EXISTS), (b"k", b"bogus")):
            with expect(PredicateFailed):
                store.delete_if(P, key, predicate)
        with expect(InvalidInput):
            store.delete_if(P, b"k", None)
        same(store.get(P, b"k").value, b"v2")
        store.delete_if(P, b"k", store.get(P, b"k").predicate)
        with expect(KeyNotFound):
            store.get(P, b"k")
        store.set(P, b"k", b"v3")
        store.delete_if(P, b"k", EXISTS)
        same(keys_of(store), [])
        store.close()

    def test_wrong_types_and_sizes(self, tmp_path: Path) -> None:
        """Text is not bytes, and each limit is what it says.

        To do: check types and `limits` first (`compactlib.kv.parts.arguments`): a backend's own error comes too late
        or not at all.
        """
        store = self.make_store(tmp_path)
        text: Any = "text"
        number: Any = 7
        for call in (lambda: store.get(text, b"k"), lambda: store.get(P, text), lambda: store.set(P, b"k", text),
                     lambda: store.set(P, b"k", number), lambda: store.scan(text), lambda: store.scan(P, text)):
            with expect(InvalidInput):
                call()
        with expect(InvalidInput):
            store.scan(P, page_size=0)
        limits = store.limits
        partition, key = b"p" * limits.max_partition_bytes, b"k" * limits.max_key_bytes
        store.set(partition, key, b"v")
        same(store.get(partition, key).value, b"v")
        same([[entry.key for entry in store.scan(partition, **begin)]
                for begin in ({"page_size": 1}, {"start": key}, {"after": key}, {"start": key + b"x"})
                ], [[key], [key], [], []])
        for too_long in ((partition + b"p", b"k"), (P, key + b"k")):
            with expect(TooLarge):
                store.set(*too_long, b"v")
        value = bytes(range(256)) * (min(limits.max_value_bytes, 1 << 20) // 256)
        store.set(P, b"large", value)
        same(store.get(P, b"large").value, value)
        store.close()

    def test_after_close(self, tmp_path: Path) -> None:
        """Everything says `Closed`, scans that were open too; closing again is fine.

        To do: look whether the store was closed at the head of every call, and of every page of a scan.
        """
        store = self.make_store(tmp_path)
        put_all(store, [b"%d" % number for number in range(10)])
        open_scan = store.scan(P, page_size=1)
        same(next(open_scan).key, b"0")
        store.close()
        store.close()
        calls: list[Callable[[], object]] = [
            lambda: store.get(P, b"0"), lambda: store.set(P, b"0", b""), lambda: store.delete(P, b"0"),
            lambda: store.set_if(P, b"0", b"", None), lambda: store.delete_if(P, b"0", EXISTS),
            lambda: store.scan(P), lambda: list(open_scan),
        ]
        if store.limits.max_transact:
            calls.append(lambda: store.transact([], [Put(P, b"0", b"")]))
        for call in calls:
            with expect(Closed):
                call()

    def test_transact(self, tmp_path: Path) -> None:
        """All or nothing, over several partitions; or `Unsupported`, and `limits` says so.

        To do: put conditions and changes into one transaction of the backend, name the first condition that
        fails, or set limits.max_transact to 0.
        """
        store = self.make_store(tmp_path)
        if not store.limits.max_transact:
            with expect(Unsupported):
                store.transact([Condition(P, b"k", None)], [Put(P, b"k", b"v")])
            store.close()
            return
        store.transact()
        store.set(P, b"a", b"1")
        predicate = store.get(P, b"a").predicate
        conditions = [Condition(P, b"a", predicate), Condition(OTHER, b"b", None)]
        store.transact(conditions, [Put(P, b"a", b"2"), Put(OTHER, b"b", b"3")], [Delete(P, b"absent")])
        same((store.get(P, b"a").value, store.get(OTHER, b"b").value), (b"2", b"3"))
        try:
            store.transact(conditions, [Put(P, b"c", b"4")], [Delete(OTHER, b"b")])
        except PredicateFailed as failed:
            same((failed.partition, failed.key), (P, b"a"), case=failed)
        else:
            raise AssertionError("a transaction was carried out although its conditions do not hold")
        with expect(PredicateFailed):
            store.transact([Condition(P, b"a", EXISTS), Condition(P, b"c", EXISTS)], [Put(P, b"c", b"4")])
        same((keys_of_any(store, P), keys_of_any(store, OTHER)), ([b"a"], [b"b"]))
        store.transact([Condition(P, b"a", EXISTS)], [Put(P, b"c", b"4")], [Delete(P, b"a"), Delete(OTHER, b"b")])
        same((keys_of_any(store, P), keys_of_any(store, OTHER)), ([b"c"], []))
        store.close()

    def test_transactions_that_are_refused(self, tmp_path: Path) -> None:
        """A key twice, more than the store takes, arguments that are missing: nothing is written.

        To do: check the whole batch before the first write.
        """
        store = self.make_store(tmp_path)
        if store.limits.max_transact:
            for puts, deletes in (([Put(P, b"a", b"1"), Put(P, b"a", b"2")], []),
                                  ([Put(P, b"a", b"1")], [Delete(P, b"a")]),
                                  ([Put(P, b"a", b"1"), Put(P, b"", b"2")], []),
                                  ([Put(P, b"a", b"1")], [Delete(b"", b"k")])):
                with expect(InvalidInput):
                    store.transact([], puts, deletes)
            many = [Put(P, b"%d" % number, b"") for number in range(store.limits.max_transact)]
            with expect(BatchSizeTooBig):
                store.transact([Condition(P, b"a", None)], many)
            same(keys_of_any(store, P), [])
        store.close()

    def test_transfers_by_threads_keep_the_sum(self, tmp_path: Path) -> None:
        """Money goes from account to account; no reader sees some of it twice or missing.

        To do: conditions must hold at the moment of the writes: use the backend's serialisable transactions, or
        one lock.
        """
        store = self.make_store(tmp_path)
        if store.limits.max_transact:
            accounts = [(P, b"a"), (P, b"b"), (OTHER, b"a"), (OTHER, b"b")]
            for partition, key in accounts:
                store.set(partition, key, b"100")
            in_threads(4, lambda number: _transfer(store, accounts, random.Random(number), self.times(25, 4)))
            same(sum(int(store.get(*account).value) for account in accounts), 400)
        store.close()

    def test_many_cells_in_one_request(self, tmp_path: Path) -> None:
        """`get_many` gives what `get` gives, for cells of any partitions, in their order; `None` for what is absent.

        To do: put what the backend answers into the order of the cells asked for, absent ones included; check the whole
        list first. A store that cannot read several cells in one request says so by limits.max_get_many of 0.
        """
        store = self.make_store(tmp_path)
        if store.limits.max_get_many:
            put_all(store, [b"a", b"c", b"b"])
            store.set(OTHER, b"a", b"")
            cells = [(P, b"c"), (OTHER, b"b"), (P, b"a"), (OTHER, b"a"), (b"no such partition", b"k"), (P, b"b")]
            reader: Any = store
            found = reader.get_many(cells)
            same([None if one is None else one.value for one in found], [b"v:c", None, b"v:a", b"", None, b"v:b"])
            same([one for one in found if one is not None],
                 [store.get(*cell) for cell, one in zip(cells, found, strict=True) if one is not None])
            store.set_if(*cells[0], b"new", found[0].predicate)
            same(reader.get_many(cells[:1])[0].value, b"new")
            same(list(reader.get_many([])), [])
            too_many = [(P, b"%d" % number) for number in range(store.limits.max_get_many + 1)]
            for wrong, refused in (([(P, b"a"), (P, b"")], MissingKey), ([(b"", b"a")], MissingPartitionKey),
                                   ([(P, b"a"), (P, b"a")], InvalidInput), (too_many, BatchSizeTooBig)):
                with expect(refused):
                    reader.get_many(wrong)
            shapeless: tuple[Any, ...] = (None, 5, "ab", [5], [(P,)], [(P, b"a", b"b")])
            for none_at_all in shapeless:
                with expect(InvalidInput):
                    reader.get_many(none_at_all)
            store.close()
            with expect(Closed):
                reader.get_many(cells)
        store.close()

    def test_a_scan_of_keys_alone(self, tmp_path: Path) -> None:
        """The same keys and predicates; the value is the true one, or empty.

        To do: `keys_only` may be ignored. Where it is not, leave the value out of what is read, and nothing else.
        """
        store = self.make_store(tmp_path, 3)
        put_all(store, [b"a%d" % number for number in range(10)] + [b"b"])
        for begin in ({}, {"prefix": b"a"}, {"start": b"a5", "page_size": 1}, {"after": b"a5"}):
            named = list(store.scan(P, **begin, keys_only=True))
            same([(entry.key, entry.predicate) for entry in named],
                 [(entry.key, entry.predicate) for entry in store.scan(P, **begin)])
            same([entry for entry in named if entry.value not in (b"", b"v:" + entry.key)], [])
        with store.scan(P, keys_only=True) as entries:
            entries.seek(b"a7")
            entry = next(entries)
        same(entry.key, b"a7")
        store.delete_if(P, b"a7", entry.predicate)
        with expect(PredicateFailed):
            store.delete_if(P, b"a7", entry.predicate)
        store.close()

    def test_many_keys_take_few_requests(self, tmp_path: Path) -> None:
        """A thousand keys are put, read, listed and deleted in as many requests as `limits` say, and no more.

        To do: `limits` say how much one request takes: give the backend's own numbers.
        """
        store = self.make_store(tmp_path)
        count = self.times(1000, 200)
        counted = FaultyStore(store)
        keys = [b"%04d" % number for number in range(count)]

        def takes(at_most: int, work: Callable[[], object]) -> None:
            before = len(counted.operations)
            work()
            made = len(counted.operations) - before
            same(made, min(made, at_most), case=f"{count} keys by {store.limits}")

        writes = math.ceil(count / max(1, store.limits.max_transact))
        reads = math.ceil(count / max(1, store.limits.max_get_many))
        takes(writes, lambda: change_many(counted, P, {key: b"v:" + key for key in keys}))
        takes(reads, lambda: same([found.value for found in get_many(counted, [(P, key) for key in keys]).values()],
                                  [b"v:" + key for key in keys]))
        same([entry.key for entry in store.scan(P, keys_only=True)], keys)
        takes(writes, lambda: change_many(counted, P, dict.fromkeys(keys)))
        same(keys_of(store), [])
        store.close()

    def test_a_batch_of_several_requests_that_ends_in_the_middle(self, tmp_path: Path) -> None:
        """It says which keys are written, they are, and the same batch can be made again.

        To do: an error before the answer of a write is `OutcomeUnknown`, and a refusal changes nothing; then
        `compactlib.kv.batches` does the rest.
        """
        store = self.make_store(tmp_path)
        in_parts = _InParts(store, attrs.evolve(store.limits, max_transact=min(store.limits.max_transact, 3)))
        before = {b"%d" % number: b"old" for number in range(7)}
        wanted = {key: None if key == b"3" else b"new" for key in [*before, b"7"]}

        def prepared() -> KVStore:
            change_many(store, P, {**before, b"7": None})
            return cast("KVStore", in_parts)

        def check(_: KVStore, run: KVRun) -> None:
            def now() -> dict[bytes, bytes | None]:
                found = {entry.key: entry.value for entry in store.scan(P)}
                return {key: found.get(key) for key in wanted}

            left = now()
            written = getattr(run.error, "written", tuple(wanted) if run.error is None else ())
            same({key: left[key] for key in written}, {key: wanted[key] for key in written}, case=run)
            unseen = isinstance(run.error, OutcomeUnknown | KVCrash)
            if not unseen or (isinstance(run.error, PartlyWritten)
                              and not isinstance(run.error.__cause__, OutcomeUnknown)):
                same({key: left[key] for key in wanted if key not in written},
                     {key: before.get(key) for key in wanted if key not in written}, case=run)
            change_many(store, P, wanted)
            same(now(), wanted, case=run)

        explore_kv_faults(prepared, lambda faulty: change_many(faulty, P, wanted), check)
        store.close()

    def test_scans_beside_writers_skip_nothing(self, tmp_path: Path) -> None:
        """Every second key is written and deleted all the time; the others are in each scan once, in order.

        To do: go on with `key > last` of the page before; no offsets, no cursors that others' writes move.
        """
        store = self.make_store(tmp_path)
        stay = [b"%03d stays" % number for number in range(50)]
        put_all(store, stay)
        done = threading.Event()

        def work(number: int) -> None:
            if number == 0:
                try:
                    for turn in range(self.times(20, 5)):
                        found = [key for key in keys_of(store, page_size=1 + turn) if key.endswith(b"stays")]
                        same(found, stay)
                finally:
                    done.set()
                return
            rng = random.Random(number)
            while not done.is_set():
                key = b"%03d goes %d" % (rng.randrange(50), number)
                put_all(store, [key])
                store.delete(P, key)

        in_threads(3, work)
        store.close()

    def test_writes_are_seen_at_once(self, tmp_path: Path) -> None:
        """What one thread has written another one reads, and scans, as soon as the write returned.

        To do: read what is newest: no cache, no replica that lags (ask for consistent reads).
        """
        store = self.make_store(tmp_path)
        told, answered = threading.Semaphore(0), threading.Semaphore(0)

        def work(number: int) -> None:
            for turn in range(self.times(30, 5)):
                if number == 0:
                    store.set(P, b"k", b"%d" % turn)
                    told.release()
                    assert answered.acquire(timeout=60)
                else:
                    assert told.acquire(timeout=60)
                    same(store.get(P, b"k").value, b"%d" % turn)
                    same(next(store.scan(P)).value, b"%d" % turn)
                    answered.release()

        in_threads(2, work)
        store.close()

    def test_several_open_a_new_store_at_once(self, tmp_path: Path) -> None:
        """All of them get it, whichever sets it up; only if `shared`. Calls `make_store` in several threads.

        To do: set up in one step, or look in one consistent read whether another has begun to.
        """
        if not self.shared:
            return
        for turn in range(self.times(8, 2)):
            folder = tmp_path / str(turn)
            folder.mkdir()
            together = threading.Barrier(4)

            def work(number: int, folder: Path = folder, together: threading.Barrier = together) -> None:
                together.wait(60)
                while True:
                    try:
                        with contextlib.closing(self.make_store(folder)) as store:
                            store.set(P, b"k%d" % number, b"v")
                        break
                    except SlowDown:
                        pass  # one that waits for no other may say so

            in_threads(4, work)
            store = self.make_store(folder)
            same([entry.key for entry in store.scan(P)], [b"k0", b"k1", b"k2", b"k3"])
            store.close()

    def test_two_handles_of_one_store(self, tmp_path: Path) -> None:
        """Each sees at once what the other wrote, and a predicate of one is good for the other; only if `shared`.

        To do: keep nothing in the handle that the backend should hold; predicates must mean the same to all
        handles.
        """
        if not self.shared:
            return
        one, two = self.make_store(tmp_path), self.make_store(tmp_path)
        one.set(P, b"k", b"v1")
        found = two.get(P, b"k")
        same(found.value, b"v1")
        one.set_if(P, b"k", b"v2", found.predicate)
        with expect(PredicateFailed):
            two.set_if(P, b"k", b"v3", found.predicate)
        two.delete(P, b"k")
        same(keys_of(one), [])
        put_all(two, [b"stays"])
        one.close()
        two.close()
        again = self.make_store(tmp_path)
        same(keys_of(again), [b"stays"])
        again.audit()
        again.close()

    def test_a_store_says_one_place_for_ever(self, tmp_path: Path) -> None:
        """A store that says its place says the same after each write and, if `shared`, from each handle; no other store
        says it.

        To do: make it of what the backend gives once to each store and never again, and what no copy has. Leave `place`
        out, or say `None`, where it has nothing like that.
        """
        folders = [tmp_path / "one", tmp_path / "two"]
        for folder in folders:
            folder.mkdir()
        one, two = map(self.make_store, folders)
        place = place_of(one)
        one.set(P, b"k", b"v")
        same(place_of(one), place)
        same(place != "" and (place is None or place != place_of(two)), True, case=f"{place!r} and {place_of(two)!r}")
        one.close()
        two.close()
        if self.shared:
            again = self.make_store(folders[0])
            same(place_of(again), place)
            again.close()

    def _odd_names(self) -> list[bytes]:
        return ODD_NAMES[:self.times(len(ODD_NAMES), _FEWEST_NAMES)]


def check_kv_store(make_store: Callable[..., KVStore], folder: Path, *, shared: bool = False,
                   effort_percent: int = 100) -> list[str]:
    """Run the whole suite without pytest; the names of the tests that were passed.

    Args:
        make_store: called as `make_store(folder, page_size)`, see `KVStoreConformance.make_store`.
        folder: an empty folder that exists; each test gets a folder of its own inside.
        shared: as that of `KVStoreConformance`.
        effort_percent: as that of `KVStoreConformance`.

    Raises:
        AssertionError: the store does not do what a test demands; the message says what.
    """
    suite = KVStoreConformance()
    suite.shared = shared
    suite.effort_percent = effort_percent
    suite.make_store = make_store  # type: ignore[method-assign]
    return run_kit(suite, folder)


@attrs.frozen
class _InParts:
    """A store that takes less in one request."""

    store: KVStore
    limits: KVLimits

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


def keys_of_any(store: KVStore, partition: bytes) -> list[bytes]:
    """The keys of a partition, whatever their values."""
    with store.scan(partition) as entries:
        return [entry.key for entry in entries]


def _transfer(store: KVStore, accounts: list[tuple[bytes, bytes]], rng: random.Random, times: int) -> None:
    for _ in range(times):
        source, target = rng.sample(accounts, 2)
        while True:
            given, taken = store.get(*source), store.get(*target)
            amount = rng.randrange(10)
            try:
                store.transact(
                    [Condition(*source, given.predicate), Condition(*target, taken.predicate)],
                    [Put(*source, b"%d" % (int(given.value) - amount)),
                     Put(*target, b"%d" % (int(taken.value) + amount))],
                )
                break
            except PredicateFailed:
                pass
            except CompactlibError as error:
                raise AssertionError(f"a transfer ended in {error!r}") from error
