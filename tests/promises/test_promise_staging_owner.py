# SPDX-License-Identifier: Apache-2.0
"""A collection deletes ranges only for the catalogue that owns them: an empty, a copied or another catalogue over the
same object store deletes nothing until its operator has called `adopt_ranges`.
"""

from __future__ import annotations

import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from compactlib.errors import Stale
from compactlib.kv import KVStore, MemoryStore, Retries, SqliteStore
from compactlib.objects import LocalObjects, MemoryObjects, ObjectRef, ObjectStore
from compactlib.objects.errors import ObjectStoreFailed
from compactlib.staging import CommittedRanges, Repository, StagingOptions, StagingWorker
from compactlib.testing import StoreInFront

OPTIONS = StagingOptions(owns_ranges=True, range_grace_seconds=0, grace_seconds=0, retries=Retries(10, 0))
SHARED = StagingOptions(range_grace_seconds=0, grace_seconds=0, retries=Retries(10, 0))
KEYS = [b"%04d" % number for number in range(300)]


class World(ABC):
    """One object store, and catalogues by name. Opening a name again is a restart of its process."""

    def __init__(self, objects: ObjectStore) -> None:
        self.objects = objects

    @abstractmethod
    def catalogue(self, name: str) -> KVStore:
        """Return the catalogue of this name; create it if absent."""

    def open(self, name: str = "prod", *, options: StagingOptions = OPTIONS, repository: str = "main") -> Repository:
        """A repository over a catalogue."""
        return Repository(self.catalogue(name), CommittedRanges(self.objects), name=repository, options=options)

    def files(self) -> set[str]:
        """The ranges and metaranges that are there."""
        return {info.key for folder in ("ranges/", "metaranges/") for info in self.objects.list(folder)}


class InMemory(World):
    """A `MemoryStore` for each name, over `MemoryObjects`."""

    def __init__(self, objects: ObjectStore | None = None) -> None:
        super().__init__(MemoryObjects() if objects is None else objects)
        self._stores: dict[str, MemoryStore] = {}

    def catalogue(self, name: str) -> KVStore:
        return self._stores.setdefault(name, MemoryStore())


class OnDisk(World):
    """An SQLite file for each name, over a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(LocalObjects(folder / "ranges"))
        self.folder = folder
        self._open: list[SqliteStore] = []

    def path(self, name: str) -> Path:
        """Of a catalogue."""
        return self.folder / f"{name}.sqlite"

    def catalogue(self, name: str) -> KVStore:
        self._open.append(SqliteStore(self.path(name)))
        return self._open[-1]

    def stop(self) -> None:
        """Close all catalogues, so that their files are whole."""
        for store in self._open:
            store.close()
        self._open = []


@pytest.fixture
def disk(tmp_path: Path) -> OnDisk:
    return OnDisk(tmp_path)


@pytest.fixture(params=["memory", "disk"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return InMemory() if request.param == "memory" else OnDisk(tmp_path)


def commit(repository: Repository, message: str) -> None:
    """One more commit of branch `main`, whose records are its own."""
    main = repository.branch("main")
    main.put_many({message.encode() + key: message.encode() for key in KEYS})
    main.commit(message)


def filled(repository: Repository) -> Repository:
    """With a branch `main` of two commits."""
    repository.create_branch("main")
    commit(repository, "one")
    commit(repository, "two")
    return repository


def leave_garbage(repository: Repository, message: str = "taken back") -> None:
    """Commit once more, and take it back: ranges that no branch needs."""
    main = repository.branch("main")
    before = main.record().commit_id
    assert before is not None
    commit(repository, message)
    main.hard_reset(before)


def assert_refused(repository: Repository, world: World) -> str:
    """Check that a reclaim of this repository deletes no range, and return its reason."""
    before = world.files()
    said = repository.reclaim().why
    assert world.files() == before
    assert "adopt_ranges()" in said
    assert "adopt_ranges()" in str(repository.status())
    return said


def assert_collects(repository: Repository, world: World) -> None:
    """Check that a reclaim of this repository deletes unneeded ranges, and keeps the others."""
    leave_garbage(repository)
    before = world.files()
    report = repository.reclaim()
    assert not report.is_empty
    assert "adopt_ranges()" not in report.why
    assert world.files() < before
    assert "adopt_ranges()" not in str(repository.status())
    assert_whole(repository)


def assert_whole(repository: Repository) -> None:
    """Everything that was committed is there."""
    assert repository.branch("main").get(b"one0007").data == b"one"
    assert repository.branch("main").get(b"two0007").data == b"two"
    assert repository.verify().is_sound
    repository.audit()


# ------------------------------------------------------------------------------------------- whose the ranges are


def test_repository_owns_ranges_of_a_prefix_that_was_empty(world: World) -> None:
    assert_collects(filled(world.open()), world)
    assert_collects(world.open(), world)  # the next process


def test_empty_catalogue_collects_no_range_of_another(world: World) -> None:
    prod = filled(world.open())
    assert_refused(world.open("new"), world)
    assert_whole(prod)
    assert_collects(prod, world)


def test_repository_of_another_name_collects_no_range(world: World) -> None:
    prod = filled(world.open())
    said = assert_refused(world.open(repository="logs"), world)
    assert "'logs'" in said
    assert "'main'" in said
    assert_whole(prod)


def test_worker_continues_when_the_catalogue_is_empty(world: World) -> None:
    prod = filled(world.open())
    before = world.files()
    worker = StagingWorker(reclaim_seconds=600)
    repository = Repository(world.catalogue("new"), CommittedRanges(world.objects), options=OPTIONS,
                            sensor=worker.sensor)
    worker.add(repository)
    assert worker.run_pending()
    assert "adopt_ranges()" in str(repository.status())
    assert before <= world.files()

    main = repository.create_branch("main")
    main.put_many({b"%04d" % number: b"" for number in range(1000)})
    main.delete_many([b"%04d" % number for number in range(1000)])
    worker.run_pending()
    assert main.record().compaction_started_at is not None
    worker.stop()
    repository.close()
    assert_whole(prod)


def test_ranges_without_an_owner_need_to_be_adopted(world: World) -> None:
    """They were made by repositories that do not own them, or by an earlier release."""
    filled(world.open(options=SHARED))
    owner = world.open()
    assert_refused(owner, world)
    assert_whole(owner)
    owner.adopt_ranges()
    assert_collects(owner, world)


def test_opening_without_owning_takes_no_prefix(world: World) -> None:
    world.open("other", options=SHARED).reclaim()
    assert_collects(filled(world.open()), world)


def test_refused_catalogue_still_drops_its_tokens(world: World) -> None:
    filled(world.open())
    new = world.open("new")
    main = new.create_branch("main")
    main.put(b"a", b"1")
    main.commit("one")
    report = new.reclaim()
    assert report.tokens_removed
    assert report.ranges is None
    assert "adopt_ranges()" in report.why


def test_a_repository_opens_while_its_object_store_is_away() -> None:
    class Away(MemoryObjects):
        is_away = True

        def list(self, prefix: str = "") -> Any:
            if self.is_away:
                raise ObjectStoreFailed(operation="list", key=prefix, detail="nobody answers")
            return super().list(prefix)

    objects = Away()
    world = InMemory(objects)
    repository = world.open()
    with pytest.raises(ObjectStoreFailed):
        repository.reclaim()
    objects.is_away = False
    assert_collects(filled(world.open()), world)


def test_reclaim_keeps_staged_entries_of_another_repository(world: World) -> None:
    """In the same key-value store: tokens that it does not know are another's."""
    options = StagingOptions(owns_ranges=True, grace_seconds=0, retries=Retries(10, 0))
    prod = filled(world.open(options=options))
    prod.branch("main").put(b"staged", b"1")
    beside = world.open(options=options, repository="beside")
    beside.create_branch("main").put(b"staged", b"2")
    for _ in range(2):
        beside.reclaim()
        prod.reclaim()
    assert prod.branch("main").get(b"staged").data == b"1"
    assert beside.branch("main").get(b"staged").data == b"2"


# ------------------------------------------------------------------------------------------- from another place


def test_copied_catalogue_collects_no_range_of_its_origin(disk: OnDisk) -> None:
    filled(disk.open())
    disk.stop()
    shutil.copy(disk.path("prod"), disk.path("test"))
    prod = disk.open()
    commit(prod, "after the copy")
    said = assert_refused(disk.open("test"), disk)
    assert f"inode {os.stat(disk.path('prod')).st_ino}" in said
    assert f"inode {os.stat(disk.path('test')).st_ino}" in said
    assert_whole(prod)
    assert prod.branch("main").get(b"after the copy0007").data == b"after the copy"
    assert_collects(prod, disk)


def test_backup_put_in_place_of_the_catalogue_is_noticed(disk: OnDisk) -> None:
    filled(disk.open())
    disk.stop()
    shutil.copy(disk.path("prod"), disk.path("backup"))
    commit(disk.open(), "after the backup")
    disk.stop()
    os.replace(disk.path("backup"), disk.path("prod"))
    restored = disk.open()
    assert_refused(restored, disk)
    restored.adopt_ranges()
    assert_collects(restored, disk)


def test_backup_from_before_an_adoption_is_noticed(disk: OnDisk) -> None:
    """Also if the backup is copied into the same file, so that the store's place is unchanged."""
    filled(disk.open())
    disk.stop()
    shutil.copy(disk.path("prod"), disk.path("backup"))
    disk.open("test").adopt_ranges()
    disk.open().adopt_ranges()
    disk.stop()
    with open(disk.path("backup"), "rb") as backup, open(disk.path("prod"), "r+b") as file:
        shutil.copyfileobj(backup, file)
        file.truncate()
    assert_refused(disk.open(), disk)


def test_catalogue_that_was_renamed_still_owns_its_ranges(disk: OnDisk) -> None:
    filled(disk.open())
    disk.stop()
    os.rename(disk.path("prod"), disk.path("moved"))
    assert_collects(disk.open("moved"), disk)


class Saying(MemoryStore):
    """A host's own store with a given place."""

    said: str | None = None

    def place(self) -> str | None:  # type: ignore[override]  # one that has no place may be made of one that has
        return self.said


class SayingWorld(InMemory):
    """All names are one catalogue."""

    def __init__(self, said: str | None) -> None:
        super().__init__()
        self.store = Saying()
        self.store.said = said

    def catalogue(self, name: str) -> KVStore:
        return self.store


def test_identity_and_owner_have_their_documented_members() -> None:
    world = SayingWorld("a place")
    world.open(repository="prod")
    newest = next(iter(world.objects.list("owner/"))).key
    version = world.objects.get(newest)
    stored = world.store.get(b"staging/prod", b"identity").value
    ids = int.from_bytes(stored[10:12], "little")
    identity = json.loads(stored[12 + 8 * ids:-4])
    assert identity == {"id": identity["id"], "ranges": version[18:34].hex()}
    assert json.loads(version[50:-4]) == {"id": identity["id"], "repository": "prod", "place": "a place"}
    assert len(bytes.fromhex(identity["id"])) == 16


def test_refusal_names_both_places_until_adopted() -> None:
    world = SayingWorld("the first place")
    repository = filled(world.open())
    assert_collects(repository, world)
    world.store.said = "the second place"
    said = assert_refused(repository, world)
    assert "the first place" in said
    assert "the second place" in said
    repository.adopt_ranges()
    assert_collects(repository, world)
    world.store.said = "the first place"
    assert_refused(world.open(), world)


def test_store_without_a_place_needs_adoption_once() -> None:
    world = SayingWorld(None)
    repository = filled(world.open())
    assert_refused(repository, world)
    repository.adopt_ranges()
    assert_collects(repository, world)
    assert_collects(world.open(), world)


def test_store_without_a_place_member_says_nothing() -> None:
    class Quiet(StoreInFront):
        def place(self) -> str | None:
            return KVStore.place(self)

    class QuietWorld(InMemory):
        def catalogue(self, name: str) -> Any:
            return Quiet(super().catalogue(name), lambda request, act: act())

    world = QuietWorld()
    repository = filled(world.open())
    assert_refused(repository, world)
    repository.adopt_ranges()
    assert_collects(world.open(), world)


# ------------------------------------------------------------------------------------------- adoption


def test_adoption_takes_the_ranges_from_the_earlier_owner(world: World) -> None:
    prod = filled(world.open())
    new = world.open("new")
    new.adopt_ranges()
    assert_refused(prod, world)
    assert_whole(prod)
    prod.adopt_ranges()
    prod.adopt_ranges()  # again does nothing
    assert_refused(new, world)
    assert_collects(prod, world)


class Hooked(MemoryObjects):
    """Calls `before` at each create, once."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[str], bool] = lambda _: False

    def create(self, key: str, data: bytes | memoryview) -> ObjectRef:
        before, self.before = self.before, lambda _: False
        if not before(key):
            self.before = before
        return super().create(key, data)


def test_collection_ends_when_another_repository_adopts() -> None:
    objects = Hooked()
    world = InMemory(objects)
    prod = filled(world.open())
    new = world.open("new")
    new.adopt_ranges()

    def adopt_back(key: str) -> bool:
        if not key.startswith("doomed/") or "collection" in key:
            return False
        prod.adopt_ranges()
        return True

    objects.before = adopt_back
    assert_refused(new, world)
    assert_whole(prod)
    assert_collects(prod, world)


def test_one_of_two_adoptions_at_once_is_refused() -> None:
    objects = Hooked()
    world = InMemory(objects)
    filled(world.open())
    first, second = world.open("first"), world.open("second")

    def adopt_too(key: str) -> bool:
        if not key.startswith("owner/"):
            return False
        second.adopt_ranges()
        return True

    objects.before = adopt_too
    with pytest.raises(Stale):
        first.adopt_ranges()
    assert_refused(first, world)
    assert_collects(filled(second), world)
    first.adopt_ranges()
    assert_refused(second, world)


def test_one_of_two_that_open_an_empty_prefix_owns_it() -> None:
    objects = Hooked()
    world = InMemory(objects)
    opened: list[Repository] = []

    def open_too(key: str) -> bool:
        if not key.startswith("owner/"):
            return False
        opened.append(world.open("second"))
        return True

    objects.before = open_too
    first = filled(world.open("first"))
    second = filled(opened[0])
    assert_refused(first, world)
    assert_collects(second, world)


def test_processes_of_one_repository_adopt_at_once() -> None:
    objects = Hooked()
    world = InMemory(objects)
    filled(world.open(options=SHARED))
    first, second = world.open(), world.open()

    def adopt_too(key: str) -> bool:
        if not key.startswith("owner/"):
            return False
        second.adopt_ranges()
        return True

    objects.before = adopt_too
    first.adopt_ranges()
    assert_collects(first, world)
    assert_collects(second, world)


def test_adoption_that_was_cut_off_can_be_made_again() -> None:
    objects = Hooked()
    world = InMemory(objects)
    filled(world.open(options=SHARED))
    repository = world.open()

    def die(key: str) -> bool:
        if not key.startswith("owner/"):
            return False
        raise KeyboardInterrupt

    objects.before = die
    with pytest.raises(KeyboardInterrupt):
        repository.adopt_ranges()
    assert_refused(repository, world)
    repository.adopt_ranges()
    assert_collects(repository, world)


# ------------------------------------------------------------------------------------- a store that denies deletes


class NoDeletes(MemoryObjects):
    """Credentials that may not delete."""

    denies = True

    def delete(self, keys: Iterable[str]) -> None:
        doomed = list(keys)
        if self.denies:
            raise ObjectStoreFailed(operation="delete", key=doomed[0], detail="403 AccessDenied")
        super().delete(doomed)


def test_collection_marks_nothing_where_deletes_are_denied() -> None:
    objects = NoDeletes()
    world = InMemory(objects)
    repository = filled(world.open())
    leave_garbage(repository, "denied")
    before = {info.key for info in objects.list()}
    with pytest.raises(ObjectStoreFailed, match="AccessDenied"):
        repository.reclaim()
    assert {info.key for info in objects.list()} == before
    commit(repository, "denied")  # the same ranges again: no mark of a collection is in the way
    assert_whole(repository)
    objects.denies = False
    assert_collects(repository, world)
