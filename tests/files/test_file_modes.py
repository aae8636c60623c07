# SPDX-License-Identifier: Apache-2.0
"""`LocalFiles(private=True)`: only the owner can read the files of a store, under any umask."""

from __future__ import annotations

import contextlib
import os
import pickle
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from compactlib.blobstore.copying import copy_store
from compactlib.fences import FileFence
from compactlib.files import Files, LocalFiles
from compactlib.files.folder_lock import FolderLock
from compactlib.kv import KVStore, SqliteStore
from compactlib.objects import LocalObjects, ObjectStore
from compactlib.raftlog import LocalLog, LogOptions, StoreOptions
from compactlib.testing import Driver, Journal, World
from examples.kv_machine import Put
from examples.raft_kv import KvStore
from tests.promises.contract.blobstore import BlobStores
from tests.promises.contract.raftlog import RaftLogs
from tests.promises.contract.staging import Repositories
from tests.promises.drivers.local_log import Machine
from tests.promises.drivers.segment_log import SegmentLogDriver


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """Nothing is taken away by the process."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    """Return the modes of a folder and of everything in it; symbolic links have no mode."""
    found = {path: path.lstat().st_mode for path in (folder, *folder.rglob("*"))}
    return {str(path.relative_to(folder)): f"{stat.S_IMODE(mode):o}" for path, mode in found.items()
            if not stat.S_ISLNK(mode)}


def is_private(folder: Path) -> bool:
    return modes(folder) == {name: "700" if (folder / name).is_dir() else "600" for name in modes(folder)}


class RepositoriesHere(Repositories):
    """Branches in SQLite, ranges in a folder."""

    def stores_of(self, world: World) -> tuple[KVStore, ObjectStore]:
        if not world.folder.exists():
            world.files.make_folder(world.folder)
        branches = world.keyed("branches", lambda: SqliteStore(world.folder / "branches.sqlite", files=world.files))
        return branches, world.objects("ranges", lambda: LocalObjects(world.folder / "ranges", files=world.files))


def compacted(driver: Driver[Any]) -> Callable[[Path, Files], object]:
    """Makes a store, compacts and reclaims; it stays open."""
    def make(folder: Path, files: Files) -> object:
        world, journal = World(folder, behind=files), Journal()
        store = driver.open(world, driver.settings()[0])
        rng = Random(1)
        while store.plan(driver.policy()).is_empty:
            driver.act(store, rng, journal)
        store.compact(policy=driver.policy())
        store.reclaim()
        opened = contextlib.ExitStack()
        for each in (*world.kept.values(), store):
            opened.callback(each.close)
        return opened

    make.__name__ = type(driver).__name__
    return make


def snapshots(folder: Path, files: Files) -> object:
    store = KvStore(str(folder), StoreOptions(log=LogOptions(files=files)), with_worker=False)
    for _ in range(2):
        store.write([Put(f"k{number}", b"value") for number in range(100)])
        store.snapshot()
    return store


def sqlite(folder: Path, files: Files) -> object:
    files.make_folder(folder)
    store = SqliteStore(folder / "a.sqlite", files=files)
    store.set(b"p", b"k", b"value")
    assert {"a.sqlite", "a.sqlite-wal", "a.sqlite-shm"} <= set(os.listdir(folder))
    return store


def objects(folder: Path, files: Files) -> object:
    store = LocalObjects(folder, files=files)
    store.create("a/b/c", b"content")
    return store


def fences(folder: Path, files: Files) -> object:
    fence = FileFence(folder, files=files)
    fence.admit("a resource", 7)
    return fence


def commands(folder: Path, files: Files) -> object:
    log = LocalLog(folder, LogOptions(files=files))
    log.start(Machine(0))
    log.decide(lambda command: b"a command")
    return log


def copies(folder: Path, files: Files) -> object:
    driver = BlobStores()
    world = World(folder.with_name("source"))
    with contextlib.closing(driver.open(world, driver.config)) as source:
        driver.act(source, Random(1), Journal())
        copy_store(source, folder, driver.config, files=files)
    return None


def locks(folder: Path, files: Files) -> object:
    files.make_folder(folder)
    return FolderLock(folder)


STORES = [compacted(SegmentLogDriver()), compacted(RaftLogs()), compacted(BlobStores()), compacted(RepositoriesHere()),
          snapshots, sqlite, objects, fences, commands, copies, locks]


@pytest.mark.parametrize("make", STORES, ids=lambda make: make.__name__)
def test_files_of_a_store_are_its_owners_alone(make: Callable[[Path, Files], object], tmp_path: Path) -> None:
    folder = tmp_path / "private"
    store = make(folder, LocalFiles(private=True))
    assert is_private(folder), modes(folder)
    with contextlib.suppress(AttributeError):
        store.close()  # type: ignore[attr-defined]
    assert is_private(folder), modes(folder)


def test_without_a_word_the_umask_decides(tmp_path: Path) -> None:
    files = LocalFiles()
    files.make_folder(tmp_path / "open")
    files.create(tmp_path / "open" / "a").close()
    assert modes(tmp_path / "open") == {".": "777", "a": "644"}


def test_the_word_is_kept_on_the_way_to_another_process() -> None:
    private = LocalFiles(private=True)
    assert pickle.loads(pickle.dumps(private)) == private != LocalFiles()
    assert len({private, LocalFiles(), LocalFiles(private=True)}) == 2
    assert repr(private) == "LocalFiles(private=True)"
