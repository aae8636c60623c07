# SPDX-License-Identifier: Apache-2.0
"""The promises of every `KVStore`, as a suite of `compactlib.testing.promises`."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from compactlib.errors import Closed, InvalidInput
from compactlib.kv import (
    EXISTS,
    KeyNotFound,
    KVStore,
    Predicate,
    PredicateFailed,
    SlowDown,
    change_many,
)
from compactlib.kv.errors import TooLarge
from compactlib.testing.promises import ConformanceKit, error_from, expect, same
from compactlib.testing.stand_ins import in_threads

if TYPE_CHECKING:
    from compactlib.kv import Address

P = b"test"
OTHER = b"other"
ODD_NAMES = [b"\x00", b"\xff", b"a", b"a/a", b"\x00\x00", b"\xff\xff", b"a\x00", b"A", b"a/", b"/", b"ab", b"b",
             "größe".encode(), b"\x00\xff", b"\xff\x00", b"a\x00b", b"a/b", b"%", b"_", b"'", b'"', b"\\", b"\n", b" ",
             b"\x7f", b"\x80", b"\xfe", b"\xff\xfe", b"\xff\xff\xff", b"key" * 20]
"""Names that broke a store: zeros and 0xFF, prefixes of each other, separators, quotes. Several pairs of the first
`_FEWEST_NAMES` give the same bytes when they are joined, with a separator or without."""
_FEWEST_NAMES = 8
_LARGEST_BATCH = 10_000
"""A higher limit is not tested: its batch takes longer than the rest of the suite."""
_CELLS = [(P, b"a"), (P, b"b"), (OTHER, b"a"), (b"third", b"b")]

_Call: TypeAlias = Callable[[bytes, bytes], object]


class KVStoreConformance(ConformanceKit):
    """Inherit in a test class and override `make_store`; pytest finds the tests.

    Attributes:
        shared: whether `make_store` twice with one folder gives two handles of the same store.
        effort_percent: the size of the longest tests in percent. A store with slow requests may use fewer names and
            turns for the same promises.
    """

    shared: bool = False
    effort_percent: int = 100

    def make_store(self, folder: Path) -> KVStore:
        """Return the store to be tested, empty when the folder is new; the folder may not exist yet."""
        raise NotImplementedError("override make_store to return a KVStore")

    @contextlib.contextmanager
    def throttled(self, store: KVStore) -> Iterator[bool]:
        """Make the backend refuse requests within the block; yield `False` if it cannot, which skips the test."""
        yield False

    def times(self, count: int, at_least: int = 1) -> int:
        """Return `effort_percent` of `count`, and at least `at_least`."""
        return max(min(at_least, count), count * self.effort_percent // 100)

    # ---- reads and writes

    def test_any_steps_do_what_a_dictionary_does(self, tmp_path: Path) -> None:
        """Random writes of one or several cells, with and without conditions, against a dictionary. A transaction is
        atomic, its error has the first condition that fails, and a read returns the last written value, also an empty
        one. The predicate `None` holds for an absent cell, EXISTS for any value, another until its cell is written or
        deleted. A delete of an absent cell does nothing; its read raises `KeyNotFound`. Another thread reads a value as
        soon as its write has returned.

        To do: compare and write in one request or transaction of the backend, and change the predicate (a version, an
        etag) with each write. `None` is an insert that fails if the key exists, anything else an update that must find
        the key: an upsert would create it. Distinguish absent from empty by a flag or column; `if not value` confuses
        them. A partition needs no creation. Put the answer of get_many into the order of the given cells. Read the
        newest value: no cache, no lagging replica (use consistent reads).
        """
        rng = random.Random(21)
        plain: dict[Address, bytes] = {}
        # Values that a cell has had, each with its predicate.
        known: dict[Address, list[tuple[Any, Any]]] = {cell: [(None, None), (EXISTS, EXISTS)] for cell in _CELLS}
        with closing(self.make_store(tmp_path)) as store, ThreadPoolExecutor(1) as other:
            store.transact()
            for number in range(self.times(300, 60)):
                changes = {cell: rng.choice([None, b"", b"%d" % number, b"%d" % number])
                           for cell in rng.sample(_CELLS, rng.choice([1, 1, 1, 2]))}
                conditional = rng.choice([[], [*changes][:1], [*changes][:1], rng.sample(_CELLS, 2)])
                conditions = {cell: rng.choice([*known[cell][:2], *known[cell][-2:]]) for cell in conditional}
                failing = next((cell for cell, (wanted, _) in conditions.items() if (
                    cell not in plain if wanted is EXISTS else plain.get(cell) != wanted)), None)
                case = f"{changes} if {conditions}, where {plain} was written"
                try:
                    _write(store, {cell: predicate for cell, (_, predicate) in conditions.items()}, changes,
                           in_one_call=rng.random() < 0.7)
                except PredicateFailed as error:
                    same((error.partition, error.key), failing, case=case)
                else:
                    same(failing, None, case=case)
                    for cell, value in changes.items():
                        plain.pop(cell, None)
                        if value is not None:
                            plain[cell] = value
                            # The predicate of an earlier write of the same bytes may hold again.
                            known[cell] = [each for each in known[cell] if each[0] != value]
                read = [*rng.sample(_CELLS, len(_CELLS)), (b"no such partition", b"k")]
                found = store.get_many(read)
                same({cell: entry.value for cell, entry in found.items()}, plain, case=f"get_many after {case}")
                for cell, entry in found.items():
                    same(entry.key, cell[1], case=f"get_many of {cell}")
                    known[cell].append((entry.value, entry.predicate))
                for cell in read[-2:]:
                    got = other.submit(value_of, store, cell[1], cell[0]).result()
                    same(got, plain.get(cell), case=f"get of {cell} after {case}")
            same(store.get_many([]), {})

    def test_arguments_are_refused_before_a_write(self, tmp_path: Path) -> None:
        """Arguments that are empty, too long or too many raise a named error, and nothing is written.

        To do: check the arguments before anything else, the partition first, then the key; the whole batch before its
        first write. `KVStore` does it.
        """
        with closing(self.make_store(tmp_path)) as store:
            limits = store.limits
            too_long = b"p" * (limits.max_partition_bytes + 1), b"k" * (limits.max_key_bytes + 1)
            cells = [(InvalidInput, b"", b"k"), (InvalidInput, b"", b""), (InvalidInput, P, b""),
                     (TooLarge, too_long[0], b"k"), (TooLarge, P, too_long[1])]
            for name, call in _calls_of(store).items():
                for kind, partition, key in cells:
                    error_from(kind, call, partition, key, case=(name, partition[:10], key[:10]))
            error_from(InvalidInput, store.scan, b"", case="scan")
            error_from(InvalidInput, lambda: store.scan(P, page_size=0), case="pages of 0 entries")
            if limits.max_transact <= _LARGEST_BATCH:
                changes = {(P, b"%d" % number): b"" for number in range(limits.max_transact)}
                error_from(TooLarge, store.transact, {(P, b"a"): None}, changes, case="one too many")
            same((keys_of(store), keys_of(store, OTHER)), ([], []))

    def test_limits_can_be_reached(self, tmp_path: Path) -> None:
        """The longest partition and key, a value of a megabyte, and the largest batches up to a thousand keys.

        To do: serve all that `limits` allow, or lower them by the bytes that your encoding adds. A scan begins
        with `start`, if that key exists.
        """
        with closing(self.make_store(tmp_path)) as store:
            limits = store.limits
            partition, key = b"p" * limits.max_partition_bytes, b"k" * limits.max_key_bytes
            store.set(partition, key, b"v")
            same(store.get(partition, key).value, b"v")
            for begin, found in (({"page_size": 1}, [key]), ({"start": key}, [key]), ({"start": key + b"x"}, [])):
                same(keys_of(store, partition, **begin), found, case=f"scan with {', '.join(begin)}")
            value = bytes(range(256)) * (min(limits.max_value_bytes, 1 << 20) // 256)
            store.set(P, b"large", value)
            same(store.get(P, b"large").value, value)
            keys = [b"%04d" % number for number in range(self.times(1000, 200))]
            at_once = keys[:limits.max_transact]
            store.transact({(OTHER, key): None for key in at_once}, {(OTHER, key): b"v" + key for key in at_once})
            same(keys_of(store, OTHER), at_once)
            read = store.get_many([(OTHER, key) for key in at_once])
            same({key: entry.value for (_, key), entry in read.items()}, {key: b"v" + key for key in at_once})
            store.transact({}, {(OTHER, key): None for key in at_once})
            same(keys_of(store, OTHER), [])

    def test_throttled_store_says_slow_down(self, tmp_path: Path) -> None:
        """A throttled request raises `SlowDown`, neither "not found" nor "predicate failed", and writes nothing.

        To do: turn the backend's throttling into SlowDown, before or instead of the write; callers back off and retry.
        """
        with closing(self.make_store(tmp_path)) as store:
            store.set(P, b"k", b"v")
            predicate = store.get(P, b"k").predicate
            with self.throttled(store) as possible:
                if possible:
                    error_from(SlowDown, store.set, P, b"new", b"v", case="set")
                    error_from(SlowDown, store.set_if, P, b"k", b"w", predicate, case="set_if")
                    error_from(SlowDown, store.delete, P, b"k", case="delete")
            store.set_if(P, b"k", b"w", predicate)
            with expect(KeyNotFound):
                store.get(P, b"new")

    def test_predicate_of_another_store_fails(self, tmp_path: Path) -> None:
        """A foreign predicate of any type fails, for present and absent keys.

        To do: compare predicates by type and value, and raise PredicateFailed for any other; let no comparison raise.
        """
        with closing(self.make_store(tmp_path)) as store:
            store.set(P, b"k", b"v1")
            for bogus in (b"bogus", b"", "text", 4711, -1, True, 1.0, (1, 2)):
                for key in (b"k", b"absent"):
                    error_from(PredicateFailed, store.set_if, P, key, b"v2", bogus, case=(key, bogus))
            same((value_of(store, b"k"), value_of(store, b"absent")), (b"v1", None))

    # ---- scans

    def test_scan_agrees_with_a_list(self, tmp_path: Path) -> None:
        """Prefix and start hold at once; keys ascend byte by byte; pages of any size give the same entries.

        To do: order by bytes (a binary collation, bytea, BLOB). Bound each page by the partition at both ends. The
        start is inclusive. The bound above a prefix is it without its trailing 0xFF bytes, the last
        byte one higher; for all 0xFF there is none. An empty page ends a scan. `Entries` does most of it.
        """
        with closing(self.make_store(tmp_path)) as store:
            numbered = [b"pfx-key-%04d" % number for number in range(100)]
            held = {P: sorted([*numbered, *self._odd_names()]), OTHER: numbered, b"no such partition": []}
            rng = random.Random(14)
            for partition, keys in held.items():
                put_all(store, rng.sample(keys, len(keys)), partition)
            names = [b"", b"pfx", b"pfx-key-0005", b"pfx-key-0005a", b"z", *self._odd_names()]
            for turn in range(self.times(400, 60)):
                partition = rng.choice([P, P, P, *held])
                begin: dict[str, Any] = {"start": rng.choice(names), "prefix": rng.choice([b"", rng.choice(names)])}
                if turn < len(names):
                    begin = {"prefix": names[turn]}
                wanted = [(key, _value(partition, key)) for key in held[partition]
                          if key.startswith(begin["prefix"]) and key >= begin.get("start", b"")]
                begin["page_size"] = rng.choice([None, 1, 2, 3, 99, 1000])
                with store.scan(partition, **begin) as entries:
                    same([(entry.key, entry.value) for entry in entries], wanted, case=(partition, begin))

    def test_scan_skips_nothing_during_writes(self, tmp_path: Path) -> None:
        """While other keys are written and deleted, each scan returns each unchanged key once, in order.

        To do: request the next page by `key > last`, not by an offset nor a cursor: a deletion would shift it.
        """
        stay = [b"%03d stays" % number for number in range(50)]
        with closing(self.make_store(tmp_path)) as store:
            put_all(store, stay)
            for size in (1, 25, 49):
                put_all(store, [b"!", b"000"])
                with store.scan(P, page_size=size) as entries:
                    found = [next(entries).key]
                    store.delete(P, b"!")
                    store.delete(P, b"000")
                    found += [entry.key for entry in entries]
                same([key for key in found if key in stay], stay, case="keys before the page are deleted")
            done = threading.Event()

            def work(number: int) -> None:
                rng = random.Random(number)
                while number and not done.is_set():
                    key = b"%03d goes %d" % (rng.randrange(50), number)
                    put_all(store, [key])
                    store.delete(P, key)
                try:
                    for turn in range(0 if number else self.times(20, 5)):
                        same([key for key in keys_of(store, page_size=1 + turn) if key in stay], stay)
                finally:
                    done.set()

            in_threads(3, work)

    def test_scan_returns_predicates(self, tmp_path: Path) -> None:
        """A scan returns the entries of `get`, also with `keys_only`.

        To do: read value and predicate of an entry in one request.
        """
        with closing(self.make_store(tmp_path)) as store:
            put_all(store, [b"a%d" % number for number in range(10)] + [b"b"])
            for begin in ({"page_size": 3}, {"prefix": b"a"}, {"start": b"a5", "page_size": 1}):
                entries = list(store.scan(P, **begin))
                for entry in entries:
                    same(entry, store.get(P, entry.key))
                same(list(store.scan(P, **begin, keys_only=True)), entries)
            with store.scan(P) as scan:
                scan.seek(b"a7")
                store.set_if(P, b"a7", b"new value", next(scan).predicate)

    def test_partitions_and_keys_do_not_run_together(self, tmp_path: Path) -> None:
        """No pair of a partition and a key is stored as another pair.

        To do: keep partition and key in two columns, or write the partition's length before it; a separator may occur
        in either.
        """
        with closing(self.make_store(tmp_path)) as store:
            keys = self._odd_names()
            names = [name for name in keys if len(name) <= store.limits.max_partition_bytes]
            for partition in names:
                put_all(store, keys, partition)
            for partition in names:
                same(keys_of(store, partition, page_size=3), sorted(keys), case=partition)
                for key in keys:
                    same(value_of(store, key, partition), _value(partition, key))

    # ---- several keys

    def test_threads_lose_no_write(self, tmp_path: Path) -> None:
        """Eight threads create numbers and increment each, by compare-and-set; then they move parts of one to another.

        To do: conditions must hold at the moment of the writes: compare and write in one request, one serialisable
        transaction, or under one lock; a read before the write is a race.
        """
        with closing(self.make_store(tmp_path)) as store:
            cells = [(P if number % 2 else OTHER, b"%d" % number) for number in range(self.times(25, 3))]

            def count(thread: int) -> None:
                rng = random.Random(thread)
                for cell in cells * 4:
                    _until_it_holds(_increment, store, *cell)
                for _ in range(self.times(12, 2)):
                    _until_it_holds(_move, store, *rng.sample(cells, 2), rng.randrange(10))

            in_threads(8, count)
            same(sum(int(store.get(*cell).value) for cell in cells), 32 * len(cells))

    # ---- handles

    def test_closed_store_says_so(self, tmp_path: Path) -> None:
        """Every call raises `Closed`, also of open scans, and of a closed scan; closing again does nothing.

        To do: check at the head of every call, and of every page of a scan, whether store or scan was closed.
        """
        with closing(self.make_store(tmp_path)) as store:
            put_all(store, [b"%d" % number for number in range(10)])
            open_scan, closed_scan = store.scan(P, page_size=1), store.scan(P)
            same((next(open_scan).key, next(closed_scan).key), (b"0", b"0"))
            for _ in range(2):
                closed_scan.close()
            error_from(Closed, next, closed_scan)
            error_from(Closed, closed_scan.seek, b"0")
            calls = _calls_of(store)
            for _ in range(2):
                store.close()
            for name, call in calls.items():
                error_from(Closed, call, P, b"0", case=name)
            error_from(Closed, store.scan, P, case="a new scan")
            error_from(Closed, list, open_scan, case="a scan that was open")

    def test_several_open_a_new_store_at_once(self, tmp_path: Path) -> None:
        """Concurrent first openings all succeed; only if `shared`. Calls `make_store` in several threads.

        To do: set up the store in one step, or read consistently whether another opening has begun to.
        """
        for turn in range(self.times(8, 2) if self.shared else 0):
            folder = tmp_path / str(turn)
            folder.mkdir()

            def work(number: int, folder: Path = folder) -> None:
                while True:
                    # An opening that does not wait for another may raise SlowDown.
                    with contextlib.suppress(SlowDown), closing(self.make_store(folder)) as store:
                        store.set(P, b"k%d" % number, b"v")
                        return

            in_threads(4, work)
            with closing(self.make_store(folder)) as store:
                same(keys_of(store), [b"k0", b"k1", b"k2", b"k3"])

    def test_two_handles_are_one_store(self, tmp_path: Path) -> None:
        """Each handle reads the other's writes at once, and accepts its predicates; only if `shared`.

        To do: keep all state in the backend; a predicate has the same meaning for all handles.
        """
        if not self.shared:
            return
        with closing(self.make_store(tmp_path)) as one, closing(self.make_store(tmp_path)) as two:
            one.set(P, b"k", b"v1")
            found = two.get(P, b"k")
            same(found.value, b"v1")
            one.set_if(P, b"k", b"v2", found.predicate)
            with expect(PredicateFailed):
                two.set_if(P, b"k", b"v3", found.predicate)
            two.delete(P, b"k")
            same(keys_of(one), [])
            put_all(two, [b"stays"])
        with closing(self.make_store(tmp_path)) as again:
            same(keys_of(again), [b"stays"])

    def test_place_is_constant_and_unique(self, tmp_path: Path) -> None:
        """`place` is equal after each write and, if `shared`, from each handle; no other store has the same place.

        To do: derive it from an identifier that the backend gives to one store only, and that a copy lacks. Without
        such an identifier leave `place` out, or return `None`.
        """
        folders = [tmp_path / "one", tmp_path / "two"]
        for folder in folders:
            folder.mkdir()
        with closing(self.make_store(folders[0])) as one, closing(self.make_store(folders[1])) as two:
            place = one.place()
            one.set(P, b"k", b"v")
            same(one.place(), place)
            same(place != "" and (place is None or place != two.place()), True,
                 case=f"{place!r} and {two.place()!r}")
        if self.shared:
            with closing(self.make_store(folders[0])) as again:
                same(again.place(), place)

    def _odd_names(self) -> list[bytes]:
        return ODD_NAMES[:self.times(len(ODD_NAMES), _FEWEST_NAMES)]


def put_all(store: KVStore, keys: Iterable[bytes], partition: bytes = P) -> None:
    """Write each key with a value made of partition and key, in as few requests as the store's limits allow."""
    change_many(store, partition, {key: _value(partition, key) for key in keys})


def keys_of(store: KVStore, partition: bytes = P, **begin: Any) -> list[bytes]:
    """Return the keys of one scan."""
    with store.scan(partition, **begin) as entries:
        return [entry.key for entry in entries]


def value_of(store: KVStore, key: bytes, partition: bytes = P) -> bytes | None:
    """Return the value of a key, `None` if it is absent."""
    try:
        return store.get(partition, key).value
    except KeyNotFound:
        return None


def _value(partition: bytes, key: bytes) -> bytes:
    return partition + b"|" + key


def _write(store: KVStore, conditions: Mapping[Address, Predicate | None], changes: Mapping[Address, bytes | None], *,
           in_one_call: bool) -> None:
    """Write by `set`, `set_if`, `delete` or `delete_if` if `in_one_call` and one of these can, else by `transact`."""
    (cell, value), *more = changes.items()
    if not in_one_call or more or set(conditions) - {cell} or (value is None and conditions.get(cell, EXISTS) is None):
        store.transact(conditions, changes)
    elif value is None:
        store.delete_if(*cell, conditions[cell]) if conditions else store.delete(*cell)
    else:
        store.set_if(*cell, value, conditions[cell]) if conditions else store.set(*cell, value)


def _calls_of(store: KVStore) -> dict[str, _Call]:
    """Return every call that takes a partition and a key; in a batch, this cell is after a valid one."""
    return {
        "get": store.get,
        "set": lambda partition, key: store.set(partition, key, b"v"),
        "set_if": lambda partition, key: store.set_if(partition, key, b"v", None),
        "delete": store.delete,
        "delete_if": lambda partition, key: store.delete_if(partition, key, EXISTS),
        "transact: a put": lambda partition, key: store.transact(
            {}, {(P, b"first"): b"v", (partition, key): b"v"}),
        "transact: a delete": lambda partition, key: store.transact(
            {}, {(P, b"first"): b"v", (partition, key): None}),
        "transact: a condition": lambda partition, key: store.transact(
            {(partition, key): None}, {(P, b"first"): b"v"}),
        "get_many": lambda partition, key: store.get_many([(P, b"first"), (partition, key)]),
    }


def _until_it_holds(write: Callable[..., None], *args: Any) -> None:
    while True:
        with contextlib.suppress(PredicateFailed):
            return write(*args)


def _increment(store: KVStore, partition: bytes, key: bytes) -> None:
    try:
        found = store.get(partition, key)
    except KeyNotFound:
        store.set_if(partition, key, b"1", None)
    else:
        store.set_if(partition, key, b"%d" % (int(found.value) + 1), found.predicate)


def _move(store: KVStore, source: Address, target: Address, amount: int) -> None:
    given, taken = store.get(*source), store.get(*target)
    store.transact({source: given.predicate, target: taken.predicate},
                   {source: b"%d" % (int(given.value) - amount), target: b"%d" % (int(taken.value) + amount)})
