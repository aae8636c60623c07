# SPDX-License-Identifier: Apache-2.0
"""Read objects are kept on a local disk, and checked when they are read there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compactlib.kv import MemoryStore
from compactlib.objects import CachedObjects, LocalObjects, MemoryObjects, ObjectStore
from compactlib.objects.errors import ObjectStoreFailed
from compactlib.staging import CommittedRanges, Repository
from compactlib.testing import ObjectsInFront, ObjectStoreConformance, Request


class TestCachedObjects(ObjectStoreConformance):
    def make_store(self, folder: Path) -> ObjectStore:
        return CachedObjects(MemoryObjects(), MemoryObjects())


class Counted:
    """A store behind a cache, and how often an object was read there."""

    def __init__(self) -> None:
        self.behind = MemoryObjects()
        self.reads = 0

    def step(self, request: Request, act: Any) -> Any:
        self.reads += request.kind == "get"
        return act()

    def opened(self, near: ObjectStore, **how: Any) -> CachedObjects:
        return CachedObjects(ObjectsInFront(self.behind, self.step), near, **how)


def test_an_object_is_fetched_once_also_by_the_next_process(tmp_path: Path) -> None:
    counted = Counted()
    counted.behind.create("a/b", b"content")
    for _ in range(2):
        objects = counted.opened(LocalObjects(tmp_path))
        assert objects.get("a/b") == objects.get("a/b") == b"content"
        assert objects.get_range("a/b", 1, 3) == b"ont"
    assert counted.reads == 1


@pytest.mark.parametrize("damage", [b"", b"other bytes", b"x" * 30])
def test_a_copy_that_is_damaged_is_fetched(tmp_path: Path, damage: bytes) -> None:
    counted = Counted()
    counted.behind.create("a", b"content")
    counted.opened(LocalObjects(tmp_path)).get("a")
    (tmp_path / "cached" / "a").write_bytes(damage)
    objects = counted.opened(LocalObjects(tmp_path))
    assert objects.get("a") == objects.get("a") == b"content"
    assert counted.reads == 2


def test_copies_stay_within_their_limit(tmp_path: Path) -> None:
    counted = Counted()
    for number in range(10):
        counted.behind.create(f"{number}", bytes(100))
    objects = counted.opened(LocalObjects(tmp_path), max_bytes=500)
    for number in range(10):
        objects.get(f"{number}")
    kept = [path.name for path in (tmp_path / "cached").iterdir()]
    assert sorted(kept) == ["6", "7", "8", "9"]


def test_a_disk_that_refuses_breaks_no_read() -> None:
    def refuse(request: Request, act: Any) -> Any:
        if request.kind != "list":
            raise ObjectStoreFailed(operation=request.kind, key=request.path, detail="planted")
        return act()

    counted = Counted()
    counted.behind.create("a", b"content")
    objects = counted.opened(ObjectsInFront(MemoryObjects(), refuse))
    assert objects.get("a") == objects.get("a") == b"content"
    assert counted.reads == 2


def test_ranges_of_a_repository_are_read_from_the_disk_after_a_restart(tmp_path: Path) -> None:
    counted, store = Counted(), MemoryStore()
    for opening in range(2):
        repository = Repository(store, CommittedRanges(counted.opened(LocalObjects(tmp_path)), cache_bytes=0))
        if not opening:
            main = repository.create_branch("main")
            main.put(b"a", b"1")
            main.commit("one")
            main.get(b"a")
            counted.reads = 0
        assert repository.branch("main").get(b"a").data == b"1"
    assert counted.reads == 0
