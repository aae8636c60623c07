"""What every `KVStore` has to do, as tests that any implementation can inherit.

    from compactlib.testing import KVStoreConformance

    class TestMyStore(KVStoreConformance):
        shared = True

        def make_store(self, folder: Path, page_size: int | None = None) -> KVStore:
            return MyStore(folder / "my.store")

pytest collects the inherited methods; without pytest, `check_kv_store` runs them one after the other. A Hypothesis
state machine against a plain dictionary is in `compactlib.testing.kv_machine`, which needs `compactlib[testing]`.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compactlib.errors import Closed, CompactlibError, InvalidInput, Unsupported
from compactlib.kv import (
    EXISTS,
    BatchSizeTooBig,
    Condition,
    Delete,
    KeyNotFound,
    KVStore,
    PredicateFailed,
    Put,
    SlowDown,
    TooLarge,
)
from compactlib.testing.kit.conformance import expect, run_kit, same
from compactlib.testing.kit.fresh import drawing
from compactlib.testing.stores.kv_scan_vectors import KVScanVectors
from compactlib.testing.stores.kv_vectors import OTHER, P, in_threads, keys_of, put_all

ODD_NAMES = [b"\x00", b"\xff", b"a", b"a/a", b"\x00\x00", b"\xff\xff", b"a\x00", b"A", b"a/", b"/", b"ab", b"b",
             "größe".encode(), b"\x00\xff", b"\xff\x00", b"a\x00b", b"a/b", b"%", b"_", b"'", b'"', b"\\", b"\n", b" ",
             b"\x7f", b"\x80", b"\xfe", b"\xff\xfe", b"\xff\xff\xff", b"key" * 20]
"""Names that have broken a store somewhere: zeros and 0xFF, prefixes of each other, separators, quotes. Put together
in pairs, the first ones already give the same bytes in several ways, with a separator between them or without."""
_FEWEST_NAMES = 8


class KVStoreConformance(KVScanVectors):
    """Inherit in a test class, say how to make the store, and pytest finds the rest.

    Attributes:
        shared: whether `make_store` twice with one folder gives two handles of the same store.
        effort_percent: how much the longest tests do; 100 is what the vectors say. For a store behind a simulator that
            takes long for every request: fewer names and turns, the same promises.
    """

    shared: bool = False

    def make_store(self, folder: Path, page_size: int | None = None) -> KVStore:
        """The store to be tested, empty when the folder is new.

        Args:
            folder: a folder of its own for each store; may not exist yet.
            page_size: how many entries a page of its scans should hold at most, if the store can be told.
        """
        raise NotImplementedError("say which store is to be tested")

    def test_d12_partitions_and_keys_do_not_run_together(self, tmp_path: Path) -> None:
        """No pair of a partition and a key is another pair, however they are put together inside (D12).

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
        """Money goes from account to account; nobody sees some of it twice or missing.

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
        """What one thread has written another one reads, and scans, as soon as it is told.

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
        """All of them get it, whoever sets it up; only if `shared`. Calls `make_store` in several threads.

        To do: set up in one step, or look in one consistent read whether somebody else has begun to.
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
                        pass  # one that waits for nobody may say so

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
