# SPDX-License-Identifier: Apache-2.0
"""What every `ObjectStore` has to do, as tests that any implementation can inherit.

    from compactlib.testing import ObjectStoreConformance

    class TestMyStore(ObjectStoreConformance):
        def make_store(self, folder: Path) -> ObjectStore:
            return MyStore(...)

pytest collects the inherited methods; without pytest, `check_object_store` runs them one after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from compactlib.errors import Closed, InvalidInput
from compactlib.objects import BadDigest, BadKey, Digest, ObjectExists, ObjectNotFound, ObjectRef, ObjectStore
from compactlib.objects.keys import MAX_KEY_CHARS, MAX_SEGMENT_CHARS
from compactlib.objects.store import MultiDelete, delete_many, read_checked
from compactlib.testing.kit.fresh import drawing
from compactlib.testing.promises import ConformanceKit, Mismatch, error_from, run_kit, same

BAD_KEYS = ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", ".hidden", "a/.hidden", "a b", "a\nb", "a\\b",
            "größe", "a?b", "a%b", "a*b", "a:b", "\x00", "x" * (MAX_SEGMENT_CHARS + 1), "x/" * MAX_KEY_CHARS + "x"]
"""Keys that some store somewhere takes for something else."""

_SORTED = ["a-b", "a.c", "a/b", "a/b-c", "a/b.d/e", "a/c", "a0", "a=1/b=2/part-0", "b", "ba/x"]
"""Keys in their order: what goes on with `-` or `.` sorts before what goes on with `/`, and that before digits."""


class ObjectStoreConformance(ConformanceKit):
    """Inherit in a test class, say how to make the store, and pytest finds the rest.

    Attributes:
        creators: how many threads race to create one key; 1 for a store that is not safe for several writers.
        large_bytes: size of the largest object to be tried.
    """

    creators: int = 8
    large_bytes: int = 3_000_000

    def make_store(self, folder: Path) -> ObjectStore:
        """The store to be tested, empty.

        Args:
            folder: a folder of its own for each store; may not exist yet.
        """
        raise NotImplementedError("say which store is to be tested")

    def test_what_was_created_is_read_back_whole_and_in_ranges(self, tmp_path: Path) -> None:
        """Whole, in ranges that end early when the object does, and always as bytes.

        To do: convert what the client library gives with bytes(...), and cut ranges at the end of the object
        instead of failing.
        """
        with self.make_store(tmp_path / "store") as store:
            data = drawing(1).randbytes(100_000)
            ref = store.create("a/b", data)
            same(ref, ObjectRef("a/b", len(data), Digest.of(data)))
            same(store.get("a/b"), data, read_checked(store, ref))
            for start, length in ((0, 10), (5, 0), (99_990, 10), (99_990, 1000), (100_000, 5), (10**9, 5), (0, 10**9)):
                same(store.get_range("a/b", start, length), data[start:start + length])
            same(type(store.get("a/b")), bytes)
            same(type(store.get_range("a/b", 1, 2)), bytes)

    def test_an_empty_object_is_an_object(self, tmp_path: Path) -> None:
        """Zero bytes are content.

        To do: distinguish absent from empty by the backend's answer, not by the length.
        """
        with self.make_store(tmp_path / "store") as store:
            ref = store.create("empty", b"")
            same((store.get("empty"), store.get_range("empty", 0, 5), store.info("empty").size_bytes), (b"", b"", 0))
            same(read_checked(store, ref), b"")

    def test_a_large_object_comes_through(self, tmp_path: Path) -> None:
        """Three megabytes, as a memoryview.

        To do: send large objects in parts, and wait until the last one is there before create() returns.
        """
        with self.make_store(tmp_path / "store") as store:
            data = drawing(2).randbytes(self.large_bytes)
            store.create("large", memoryview(data))
            same(store.get("large"), data)

    def test_what_is_there_is_never_overwritten(self, tmp_path: Path) -> None:
        """A second `create` is refused, whatever it brings.

        To do: create with a condition of the backend (`If-None-Match: *`, O_EXCL, link); a look before the
        write is a race.
        """
        with self.make_store(tmp_path / "store") as store:
            store.create("a", b"first")
            for data in (b"second", b"first", b""):
                error_from(ObjectExists, lambda data=data: store.create("a", data))  # type: ignore[misc]
                same(store.get("a"), b"first")
            store.delete("a")
            store.create("a", b"third")
            same(store.get("a"), b"third")

    def test_of_many_who_create_one_key_one_succeeds(self, tmp_path: Path) -> None:
        """Eight threads race for one key.

        To do: create with a condition of the backend; if it has none, say creators=1 and let one process write.
        """
        with self.make_store(tmp_path / "store") as store:
            won: list[bytes] = []
            strange: list[Exception] = []
            barrier = threading.Barrier(self.creators)

            def create(data: bytes) -> None:
                barrier.wait()
                try:
                    store.create("contested/key", data)
                except ObjectExists:
                    return
                except Exception as error:
                    strange.append(error)
                    return
                won.append(data)

            threads = [threading.Thread(target=create, args=(b"by %d" % number,)) for number in range(self.creators)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            same(strange, [], case="what those raised who came too late, and is no ObjectExists")
            same(won, [store.get("contested/key")])

    def test_an_object_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        """By its key, in every call but `delete`.

        To do: raise ObjectNotFound with the key; a folder of keys is no object.
        """
        with self.make_store(tmp_path / "store") as store:
            store.create("a/b", b"data")
            for key in ("c", "a", "a/b/c", "a/bb"):
                for ask in (store.get, store.info, lambda key: store.get_range(key, 0, 1)):
                    error = error_from(ObjectNotFound, lambda ask=ask, key=key: ask(key))  # type: ignore[misc]
                    same(error.key, key)
                store.delete(key)
            same(store.get("a/b"), b"data")

    def test_deleting_is_final_and_may_be_repeated(self, tmp_path: Path) -> None:
        """Absent afterwards, and no error if it was absent before.

        To do: ignore the backend's `not found` on delete; do not serve what was deleted from a cache.
        """
        with self.make_store(tmp_path / "store") as store:
            store.create("a/b", b"data")
            store.delete("a/b")
            store.delete("a/b")
            error_from(ObjectNotFound, lambda: store.get("a/b"))
            same(list(store.list()), [])

    def test_listings_ascend_and_begin_where_they_are_asked_to(self, tmp_path: Path) -> None:
        """By the order of the keys' bytes, with any prefix, after any key.

        To do: sort whole keys, not folder by folder: `a-b` comes before `a/b`. `after` need not be a key that
        exists.
        """
        with self.make_store(tmp_path / "store") as store:
            for key in drawing(3).sample(_SORTED, len(_SORTED)):
                store.create(key, key.encode())
            infos = list(store.list())
            same([info.key for info in infos], _SORTED)
            same([info.size_bytes for info in infos], [len(key) for key in _SORTED])
            for prefix in ("", "a", "a/", "a/b", "a/b.", "a/b.d/", "a=1/", "b", "c", "ba/x", "ba/xy"):
                for after in ("", "a", "a-b", "a/", "a/b", "a/b.d", "a/zz", "b", "zz"):
                    expected = [key for key in _SORTED if key.startswith(prefix) and key > after]
                    same([info.key for info in store.list(prefix, after=after)], expected, case=(prefix, after))
            store.audit()

    def test_age_is_told_alike_by_listing_and_by_key(self, tmp_path: Path) -> None:
        """One clock, the store's own.

        To do: give both from the same field, in seconds since the epoch.
        """
        with self.make_store(tmp_path / "store") as store:
            store.create("a", b"1")
            same([store.info("a")], list(store.list()))
            assert store.info("a").modified_at > 0

    def test_keys_that_not_every_store_can_hold_are_refused(self, tmp_path: Path) -> None:
        """Each of them means something else in some store.

        To do: call check_key of compactlib.objects.keys first.
        """
        with self.make_store(tmp_path / "store") as store:
            for key in BAD_KEYS:
                for ask in (store.get, store.info, store.delete, lambda key: store.create(key, b"")):
                    error_from(BadKey, lambda ask=ask, key=key: ask(key))  # type: ignore[misc]
            same(list(store.list()), [])
            store.create("x" * MAX_SEGMENT_CHARS + "/" + "AZaz09._=+@,-"[::-1], b"longest, oddest")
            same(len(list(store.list("xxx"))), 1)

    def test_a_key_that_continues_another_is_kept_or_refused(self, tmp_path: Path) -> None:
        """A file system cannot hold both `a` and `a/b`: then BadKey, and nothing is lost.

        To do: turn `is a directory` and `not a directory` into BadKey.
        """
        with self.make_store(tmp_path / "store") as store:
            store.create("a", b"short")
            store.create("b/c", b"long")
            for key in ("a/b", "b"):
                try:
                    store.create(key, b"other")
                except BadKey:
                    continue
                same(store.get(key), b"other")
            same((store.get("a"), store.get("b/c")), (b"short", b"long"))

    def test_ranges_are_of_any_size_and_negative_ones_are_refused(self, tmp_path: Path) -> None:
        """Before the store is asked; what lies beyond the end takes neither room nor time.

        To do: check start and length first; many clients count a negative start from the end.
        """
        with self.make_store(tmp_path / "store") as store:
            store.create("a", b"data")
            error_from(InvalidInput, lambda: store.get_range("a", -1, 1))
            error_from(InvalidInput, lambda: store.get_range("a", 0, -1))
            error_from(InvalidInput, lambda: store.get_range("a", "0", 1))  # type: ignore[arg-type]
            same((store.get_range("a", 1, 1 << 62), store.get_range("a", 1 << 70, 1 << 70)), (b"ata", b""))

    def test_a_wrong_digest_or_size_is_told(self, tmp_path: Path) -> None:
        """By `read_checked`, from what `create` gave.

        To do: compute the digest of what was given, not of what the backend stored.
        """
        with self.make_store(tmp_path / "store") as store:
            ref = store.create("a", b"data")
            for wrong in (ObjectRef("a", 4, Digest.of(b"dat!")), ObjectRef("a", 5, ref.digest)):
                error_from(BadDigest, lambda wrong=wrong: read_checked(store, wrong))  # type: ignore[misc]

    def test_room_is_a_number_of_bytes_or_unknown(self, tmp_path: Path) -> None:
        """What a compaction is refused for before it begins; asking changes nothing.

        To do: ask the disk in available_bytes(), or answer None where it is unknown.
        """
        with self.make_store(tmp_path / "store") as store:
            room = store.available_bytes()
            if room is not None and (type(room) is not int or room < 0):
                raise Mismatch(f"available_bytes() answered {room!r}", "bytes, 0 or more, or None")
            same([info.key for info in store.list()], [])

    def test_many_objects_are_removed(self, tmp_path: Path) -> None:
        """Those named, absent ones among them, and no others; a wrong key stops it before anything is removed.

        To do: `delete_many` may be left out. Where it is there, what the backend answers for each key is looked at:
        an object that is absent is no error, one that stays is.
        """
        with self.make_store(tmp_path / "store") as store:
            named = [f"a/{number}" for number in range(5)] + ["b/x"]
            for key in [*named, "a/kept"]:
                store.create(key, b"data")
            error_from(InvalidInput, lambda: delete_many(store, "ab"))
            if isinstance(store, MultiDelete):
                error_from(InvalidInput, lambda: store.delete_many("ab"))
                error_from(BadKey, lambda: store.delete_many([named[0], "../" + named[1]]))
                error_from(InvalidInput, lambda: store.delete_many([f"c/{number}" for number in range(1001)]))
            delete_many(store, [named[0], "a/absent", "no/such/folder", *named[1:]])
            same([info.key for info in store.list()], ["a/kept"])
            delete_many(store, [*named, "a/absent"])
            delete_many(store, [])
            same(store.get("a/kept"), b"data")

    def test_a_closed_store_says_so(self, tmp_path: Path) -> None:
        """In every call; closing again is fine.

        To do: look whether it was closed at the head of every call, list() too.
        """
        store = self.make_store(tmp_path / "store")
        store.create("a", b"data")
        store.close()
        store.close()
        for ask in (store.get, store.info, store.delete, store.list, lambda key: store.create(key, b""),
                    lambda key: store.audit(), lambda key: store.available_bytes()):
            error_from(Closed, lambda ask=ask: ask("a"))  # type: ignore[misc]


def check_object_store(make_store: Callable[[Path], ObjectStore], folder: Path, *, creators: int = 8) -> list[str]:
    """Run the whole suite without pytest; the names of the tests that were passed.

    Args:
        make_store: makes an empty store, given a folder of its own.
        folder: an empty folder that exists; each test gets a folder of its own inside.
        creators: as `ObjectStoreConformance.creators`.

    Raises:
        AssertionError: the store does not do what a test demands; the message says what.
    """
    suite = ObjectStoreConformance()
    suite.make_store = make_store  # type: ignore[method-assign,assignment]
    suite.creators = creators
    return run_kit(suite, folder)
