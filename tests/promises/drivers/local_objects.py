# SPDX-License-Identifier: Apache-2.0
"""The driver of `LocalObjects`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from random import Random

import attrs

from compactlib.objects import BadDigest, Digest, LocalObjects, ObjectExists, ObjectNotFound, ObjectRef, read_checked
from compactlib.testing import Driver, HostLock, Journal, World
from tests.promises.drivers.tidy import leftovers_of

SHARED = ("made/a", "made/b", "listed/a", "listed/deep/b", "got/a", "got/deep/b", "a")
"""Keys that every writer creates, each with different content, and that no writer deletes.

An opening finds some of them in a listing, some by reading them, and some by creating them again: another writer may
have been killed before it made them durable.
"""


@attrs.frozen
class Offered:
    """A create of a shared key: an object of this or of another writer exists now."""

    key: str
    data: bytes


@attrs.frozen
class Known:
    """The content read under a shared key, which never changes."""

    key: str
    data: bytes


@attrs.frozen
class Listed:
    """A shared key in a listing."""

    key: str


@attrs.frozen
class Created:
    """A create of a key that only this writer uses, perhaps a repeated one."""

    key: str
    data: bytes


@attrs.frozen
class Deleted:
    """A delete of such keys."""

    keys: tuple[str, ...]


@attrs.frozen
class Writer:
    """An open store with the name of its writer: several may have the same folder open."""

    store: LocalObjects
    name: str
    host: HostLock = attrs.field(factory=HostLock)

    def close(self) -> None:
        self.store.close()


class LocalObjectsDriver(Driver[Writer]):
    """Objects in a folder: creates, also of existing keys, ranges, listings, deletes of one and of many."""

    def open(self, world: World, settings: None) -> Writer:
        count = world.kept["writers"] = world.kept.get("writers", 0) + 1
        return Writer(LocalObjects(world.folder / "store", files=world.files), f"w{count}")

    def act(self, store: Writer, rng: Random, journal: Journal) -> None:
        kind = rng.choice(["offer", "offer", "create", "create", "delete many", "delete many", "delete"])
        if kind == "offer":
            self._offer(store, rng, journal)
        else:
            with store.host:  # its own keys are created and deleted on one thread
                self._use_own(store, kind, rng, journal)

    def _offer(self, store: Writer, rng: Random, journal: Journal) -> None:
        for info in store.store.list("listed/"):
            _note(journal, Listed(info.key))
        for key in SHARED:
            if key.startswith("got/"):
                _note_known(store, key, journal)
        for key in rng.sample(SHARED, 3):
            data = b"%d of %s;" % (rng.randrange(1 << 40), key.encode()) * rng.randint(0, 30)
            is_ours = False
            with journal.trying(Offered(key, data)), contextlib.suppress(ObjectExists):
                assert store.store.create(key, data) == ref_of(key, data)
                is_ours = True
            if is_ours:
                _note(journal, Known(key, data))
            elif key.startswith("got/"):
                _note_known(store, key, journal)
            # The others have to exist.

    def _use_own(self, store: Writer, kind: str, rng: Random, journal: Journal) -> None:
        keys = [f"{folder}/{store.name}" + name for folder in ("own", "own/deep") for name in ("", ".x")]
        if kind == "create":
            for key in rng.sample(keys, 3):
                # An existing object keeps its content; each key has one content, so that it is known.
                with journal.trying(Created(key, key.encode() * 20)), contextlib.suppress(ObjectExists):
                    store.store.create(key, memoryview(key.encode() * 20))
            return
        chosen = tuple(rng.sample(keys, 1 if kind == "delete" else 3))
        with journal.trying(Deleted(chosen)):
            store.store.delete(chosen)

    def check(self, store: Writer, journal: Journal, *, damage: str) -> None:
        objects, allowed = store.store, allowed_of(journal)
        there = set()
        for key in (*allowed, "made/never", "never"):
            expected = allowed.get(key, {None})
            data = _read(objects, key, expected)
            assert data in expected or (damage and data is not None), f"{key} is {data!r}, expected one of {expected}"
            if data is not None:
                there.add(key)
                cut = len(data) // 3
                assert objects.get_range(key, cut, 7) == data[cut:cut + 7], f"a range of {key} is another one"
                assert objects.info(key).size_bytes == len(data), key
        assert {info.key for info in objects.list()} == there
        assert [info.key for info in objects.list("own/")] == sorted(key for key in there if key.startswith("own/"))
        objects.sweep(float("inf"))  # no other writer is running
        assert not leftovers_of(Path(objects.folder) / ".incoming"), "the sweep has left something"


def ref_of(key: str, data: bytes) -> ObjectRef:
    """Return the host's reference of an object."""
    return ObjectRef(key, len(data), Digest.of(data))


def _read(objects: LocalObjects, key: str, expected: set[bytes | None]) -> bytes | None:
    """Return the content under a key, checked if it is expected; `None` for an absent object."""
    try:
        for data in expected:
            if data is not None:
                with contextlib.suppress(BadDigest):
                    return read_checked(objects, ref_of(key, data))
        return objects.get(key)
    except ObjectNotFound:
        return None


def allowed_of(journal: Journal) -> dict[str, set[bytes | None]]:
    """Return the possible contents of each key, `None` for an absent object."""
    allowed: dict[str, set[bytes | None]] = {}
    for change in journal.changes:
        match change.what:
            case Known(key=key, data=data):
                allowed[key] = {data}
            case Listed(key=key):
                allowed[key] = allowed.get(key, set()) - {None}
            case Offered(key=key, data=data):
                old = allowed.get(key, {None})
                if None in old:
                    allowed[key] = (old | {data}) - ({None} if change.acknowledged else set())
            case Created(key=key, data=data):
                allowed[key] = {data} if change.acknowledged else allowed.get(key, {None}) | {data}
            case Deleted(keys=keys):
                allowed.update({key: {None} if change.acknowledged else allowed.get(key, {None}) | {None}
                                for key in keys})
    return allowed


def _note_known(store: Writer, key: str, journal: Journal) -> None:
    with contextlib.suppress(ObjectNotFound):
        _note(journal, Known(key, store.store.get(key)))


def _note(journal: Journal, fact: object) -> None:
    with journal.trying(fact):
        pass
