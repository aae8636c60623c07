# SPDX-License-Identifier: Apache-2.0
"""The promises of every `ObjectStore`, as a suite of `compactlib.testing.promises`."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from compactlib.errors import Closed, InvalidInput
from compactlib.objects import (
    BadDigest,
    BadKey,
    Digest,
    ObjectExists,
    ObjectNotFound,
    ObjectRef,
    ObjectStore,
    read_checked,
)
from compactlib.testing.promises import ConformanceKit, error_from, same
from compactlib.testing.stand_ins import in_threads

BAD_KEYS = ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", ".hidden", "a/.hidden", "a b", "a\nb", "a\\b",
            "größe", "a?b", "a%b", "a*b", "a:b", "\x00", "x" * 201, "x/" * 256 + "x"]
"""Keys that have another meaning in some store."""

_SORTED = ["a-b", "a.c", "a/b", "a/b-c", "a/b.d/e", "a/c", "a0", "a=1/b=2/part-0", "b", "ba/x"]
"""Keys in their order: `-` and `.` sort before `/`, and `/` before digits."""


class ObjectStoreConformance(ConformanceKit):
    """Inherit in a test class and override `make_store`; pytest finds the tests.

    Attributes:
        large_bytes: size of the largest object.
    """

    large_bytes: int = 3_000_000

    def make_store(self, folder: Path) -> ObjectStore:
        """Return the store to be tested, empty.

        Args:
            folder: another folder for each store; may not exist yet.
        """
        raise NotImplementedError("override make_store to return an ObjectStore")

    def test_object_is_read_as_it_was_created(self, tmp_path: Path) -> None:
        """Objects, empty, small and large, are read whole and in ranges, cut at the end, as bytes, with their digest.

        To do: convert the client library's value with bytes(...), and cut ranges at the end of the object instead of
        failing. Check start and length first: many clients count a negative start from the end. Compute the digest of
        the given data. Distinguish absent from empty by the backend's answer. Send large objects in parts, and return
        from create() after the last part is stored.
        """
        with self.make_store(tmp_path / "store") as store:
            for size in (0, 100_000, self.large_bytes):
                data, key = random.Random(size).randbytes(size), f"a/{size}"
                ref = store.create(key, memoryview(data))
                same(ref, ObjectRef(key, size, Digest.of(data)))
                same((store.get(key), store.info(key).size_bytes), (data, size), (read_checked(store, ref), size))
                same((type(store.get(key)), type(store.get_range(key, 1, 2))), (bytes, bytes))
                for start, length in ((0, 10), (5, 0), (size - size // 9, 10), (size - size // 9, size), (size, 5),
                                      (10**9, 5), (0, 10**9), (1, 1 << 62), (1 << 70, 1 << 70)):
                    same(store.get_range(key, start, length), data[start:start + length], case=(size, start, length))
                for start, length in ((-1, 1), (0, -1)):
                    error_from(InvalidInput, store.get_range, key, start, length, case=(start, length))
                for wrong in (ObjectRef(key, size, Digest.of(b"other")), ObjectRef(key, size + 1, ref.digest)):
                    error_from(BadDigest, read_checked, store, wrong)

    def test_object_is_never_overwritten(self, tmp_path: Path) -> None:
        """A second `create` raises `ObjectExists`, also with equal data, and so do all but one of many at once, until
        the object is deleted.

        To do: create with a condition of the backend (`If-None-Match: *`, O_EXCL, link); a check before the write is a
        race.
        """
        def create(number: int) -> bytes:
            try:
                store.create("contested/key", b"by %d" % number)
            except ObjectExists:
                return b"too late"
            return b"by %d" % number

        with self.make_store(tmp_path / "store") as store:
            store.create("a", b"first")
            for data in (b"second", b"first", b""):
                error_from(ObjectExists, store.create, "a", data)
                same(store.get("a"), b"first")
            store.delete(["a"])
            store.create("a", b"third")
            same(store.get("a"), b"third")
            answers = in_threads(8, create)
            same([answer for answer in answers if answer != b"too late"], [store.get("contested/key")])

    def test_absent_object_is_named(self, tmp_path: Path) -> None:
        """Every call but `delete`, which may be repeated, raises `ObjectNotFound` with the key.

        To do: raise ObjectNotFound with the key; a folder of keys is no object. Ignore the backend's `not found` on
        delete, and serve no deleted object from a cache.
        """
        with self.make_store(tmp_path / "store") as store:
            for key in ("a/b", "deleted"):
                store.create(key, b"data")
            for key in ("deleted", "c", "a", "a/b/c", "a/bb"):
                for _ in range(2):
                    store.delete([key])
                for name, call in _reads(store).items():
                    same(error_from(ObjectNotFound, call, key, case=(name, key)).key, key)
            same(store.get("a/b"), b"data")
            same([info.key for info in store.list()], ["a/b"])

    def test_listing_ascends(self, tmp_path: Path) -> None:
        """A listing ascends by the keys' bytes, with any prefix; each entry equals `info`.

        To do: sort whole keys, not folder by folder: `a-b` is before `a/b`. Take the times of `list` and `info` from
        the same field, in seconds since the epoch.
        """
        with self.make_store(tmp_path / "store") as store:
            for key in random.Random(3).sample(_SORTED, len(_SORTED)):
                store.create(key, key.encode())
            infos = list(store.list())
            same([(info.key, info.size_bytes) for info in infos], [(key, len(key)) for key in _SORTED])
            same(infos, [store.info(key) for key in _SORTED])
            assert min(info.modified_at for info in infos) > 0, infos
            for prefix in ("", "a", "a/", "a/b", "a/b.", "a/b.d/", "a=1/", "b", "c", "ba/x", "ba/xy"):
                expected = [key for key in _SORTED if key.startswith(prefix)]
                same([info.key for info in store.list(prefix)], expected, case=prefix)

    def test_key_is_refused_if_some_store_cannot_store_it(self, tmp_path: Path) -> None:
        """A key with another meaning in some store raises `BadKey`.

        To do: call check_key of compactlib.objects.store first.
        """
        with self.make_store(tmp_path / "store") as store:
            for key in BAD_KEYS:
                for name, call in (_reads(store) | _changes(store)).items():
                    error_from(BadKey, call, key, case=(name, key))
            same(list(store.list()), [])
            store.create("x" * 200 + "/" + "AZaz09._=+@,-"[::-1], b"longest, oddest")
            same(len(list(store.list("xxx"))), 1)

    def test_key_that_continues_another_is_kept_or_refused(self, tmp_path: Path) -> None:
        """A store that cannot have both `a` and `a/b` raises `BadKey`, and loses nothing.

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

    def test_many_objects_are_removed(self, tmp_path: Path) -> None:
        """`delete` removes the given objects and no others; absent keys are no error; a bad key removes nothing.

        To do: check all keys first, and then the backend's answer for each: an absent object is no error, an object
        that stays is.
        """
        with self.make_store(tmp_path / "store") as store:
            named = [f"a/{number}" for number in range(5)] + ["b/x"]
            for key in [*named, "a/kept"]:
                store.create(key, b"data")
            error_from(BadKey, store.delete, [named[0], "../" + named[1]])
            same(len(list(store.list())), 7, case="after calls that were refused")
            for _ in range(2):
                store.delete([named[0], "a/absent", "no/such/folder", *named[1:]])
                same([info.key for info in store.list()], ["a/kept"])
            store.delete(f"c/{number}" for number in range(1001))
            store.delete([])
            same(store.get("a/kept"), b"data")

    def test_closed_store_says_so(self, tmp_path: Path) -> None:
        """Every call raises `Closed`; closing again does nothing.

        To do: check at the head of every call whether the store was closed, in list() too.
        """
        store = self.make_store(tmp_path / "store")
        store.create("a", b"data")
        for _ in range(2):
            store.close()
        others: dict[str, Callable[[str], object]] = {
            "list": store.list, "available_bytes": lambda _: store.available_bytes()}
        for name, call in (_reads(store) | _changes(store) | others).items():
            error_from(Closed, call, "a", case=name)


def _reads(store: ObjectStore) -> dict[str, Callable[[str], object]]:
    return {"get": store.get, "info": store.info, "get_range": lambda key: store.get_range(key, 0, 1)}


def _changes(store: ObjectStore) -> dict[str, Callable[[str], object]]:
    return {"create": lambda key: store.create(key, b""), "delete": lambda key: store.delete([key])}
