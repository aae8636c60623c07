# SPDX-License-Identifier: Apache-2.0
"""Objects in a folder: what a killed or paused writer leaves, links and files of others, settings of the disk."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from compactlib.errors import CompactlibError, InvalidInput, StorageError
from compactlib.files import Files, LocalFiles
from compactlib.objects import (
    BadKey,
    LocalObjects,
    MemoryObjects,
    MeteredObjects,
    ObjectExists,
    ObjectNotFound,
    ObjectStore,
)
from compactlib.objects.errors import ForeignFile
from compactlib.runtime import Observer
from compactlib.testing import RecordingFiles, explore_crashes, explore_kills, record
from compactlib.testing.crash import Check, Life

KEYS = ("a/b/x", "a/y", "a/b/z", "top")
MANY_KEYS = (*KEYS, "c/x", "c/d/x", "c/d/e/x", "f/x", "a/b/w", "c/y")


def opened(folder: Path, files: Files, who: str) -> LocalObjects:
    names = itertools.count()
    return LocalObjects(folder / "deep" / "store", files=files, new_name=lambda: f"{who}-{next(names)}")


# --- found is not durable


class StopsAtSync:
    """The disk of a writer that is paused for good before it syncs the folder of an object."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._folder = folder

    def sync_folder(self, path: str) -> None:
        if str(path).endswith(self._folder):
            raise SystemExit("paused here for good")
        self._files.sync_folder(path)

    def __getattr__(self, name: str) -> object:
        return getattr(self._files, name)


@pytest.mark.parametrize("paused_at", ["/a/b", "/a", "/store"])
def test_that_there_is_one_already_is_said_when_it_is_durable(tmp_path: Path, paused_at: str) -> None:
    """The first writer has linked the object and not synced its folder, or those above; the second one is told."""

    def work(folder: Path, files: RecordingFiles) -> None:
        LocalObjects(folder / "store", files=files)
        with pytest.raises(SystemExit):
            LocalObjects(folder / "store", files=StopsAtSync(files, paused_at),  # type: ignore[arg-type]
                         new_name=lambda: "first").create("a/b/x", b"data")
        with contextlib.suppress(ObjectExists):
            LocalObjects(folder / "store", files=files, new_name=lambda: "second").create("a/b/x", b"data")
        files.acknowledge("there")

    def check(folder: Path, acknowledged: Sequence[object]) -> None:
        if acknowledged:
            assert LocalObjects(folder / "store").get("a/b/x") == b"data"

    assert explore_crashes(record(tmp_path, work), check) > 10


def lives(keys: Sequence[str]) -> tuple[Life, Life, Check]:
    """A process that is killed, its successor, and what must hold after a power failure."""

    def first(folder: Path, files: RecordingFiles) -> None:
        store = opened(folder, files, "first")
        for key in keys:
            store.create(key, key.encode())
            files.acknowledge(("there", key))
        store.delete("top")
        files.acknowledge(("gone", "top"))

    def successor(folder: Path, files: RecordingFiles) -> None:
        """Whatever it has found, by whichever method, it tells others of."""
        store = opened(folder, files, "second")
        for info in list(store.list()):
            files.acknowledge(("there", info.key))
        for key in keys:
            with contextlib.suppress(ObjectNotFound):
                store.get(key)
                files.acknowledge(("there", key))
        for key in keys:
            with contextlib.suppress(ObjectExists):
                store.create(key, key.encode())
            files.acknowledge(("there", key))
        store.delete("a/y")
        files.acknowledge(("gone", "a/y"))

    def check(folder: Path, acknowledged: Sequence[tuple[str, str]]) -> None:
        store = LocalObjects(folder / "deep" / "store")
        there = {info.key: store.get(info.key) for info in store.list()}
        assert there == {key: key.encode() for key in there}
        for key in keys:
            told = [state for state, of in acknowledged if of == key]
            # The removal of two of them may have been under way.
            if "there" in told and key not in ("top", "a/y"):
                assert key in there, f"{key} was told to be there"
        if acknowledged and acknowledged[-1] == ("gone", "a/y"):
            assert set(there) == {*keys} - {"a/y"}
        store.audit()

    return first, successor, check


def test_a_killed_writer_a_successor_that_acknowledges_and_a_power_failure(tmp_path: Path) -> None:
    checked = explore_kills(*lives(KEYS), limit_per_point=4, scratch=tmp_path)
    assert checked > 150


@pytest.mark.soak
def test_thirty_thousand_states_after_kills() -> None:
    checked = explore_kills(*lives(MANY_KEYS), limit_per_point=1000, max_states=30_000)
    assert checked >= 30_000


def test_a_delete_that_a_killed_process_began_is_durable_when_it_is_repeated(tmp_path: Path) -> None:
    def work(folder: Path, files: RecordingFiles) -> None:
        LocalObjects(folder / "store", files=files, new_name=lambda: "first").create("a/x", b"data")
        with pytest.raises(SystemExit):
            LocalObjects(folder / "store", files=StopsAtSync(files, "/a")).delete("a/x")  # type: ignore[arg-type]
        LocalObjects(folder / "store", files=files).delete("a/x")
        files.acknowledge("gone")

    def check(folder: Path, acknowledged: Sequence[object]) -> None:
        if acknowledged:
            assert list(LocalObjects(folder / "store").list()) == []

    assert explore_crashes(record(tmp_path, work), check) > 5


# --- only what is ours is ours


def test_links_are_never_followed(tmp_path: Path) -> None:
    """Somebody who may write there, or a restored archive, has put links into the store's folder."""
    store, outside = LocalObjects(tmp_path / "store"), tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    store.create("ours/x", b"1")
    os.symlink(outside, tmp_path / "store" / "folder")
    os.symlink(outside / "secret", tmp_path / "store" / "file")
    os.symlink(outside / "new", tmp_path / "store" / "ours" / "dangling")
    attempts: list[tuple[Callable[[str], object], tuple[str, ...]]] = [
        (lambda key: store.create(key, b"2"), ("folder/new", "folder/secret", "file", "ours/dangling")),
        (store.get, ("folder/secret", "file", "ours/dangling")),
        (lambda key: store.get_range(key, 0, 1), ("folder/secret", "file")),
        (store.info, ("folder/secret", "file")),
        (store.delete, ("folder/secret", "file", "ours/dangling")),
    ]
    for attempt, keys in attempts:
        for key in keys:
            with pytest.raises(ForeignFile, match="links are never followed") as found:
                attempt(key)
            assert found.value.key == key
    assert [info.key for info in store.list()] == ["ours/x"]
    store.audit()
    assert os.listdir(outside) == ["secret"]
    assert (outside / "secret").read_bytes() == b"secret"


def test_private_files_are_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "old").write_bytes(b"")
    os.symlink(tmp_path / "outside", tmp_path / "store" / ".incoming")
    with pytest.raises(ForeignFile):
        LocalObjects(tmp_path / "store")
    os.unlink(tmp_path / "store" / ".incoming")
    with LocalObjects(tmp_path / "store") as store:
        os.rmdir(tmp_path / "store" / ".incoming")
        os.symlink(tmp_path / "outside", tmp_path / "store" / ".incoming")
        for attempt in (lambda: store.create("x", b"1"), lambda: store.sweep(float("inf"))):
            with pytest.raises(ForeignFile):
                attempt()
    assert os.listdir(tmp_path / "outside") == ["old"]


def test_pipes_and_sockets_hold_nobody_up(tmp_path: Path) -> None:
    store = LocalObjects(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    for attempt in (store.get, store.info, store.delete, lambda key: store.create(key, b"1")):
        with pytest.raises(ForeignFile):
            attempt("pipe")
    assert list(store.list()) == []


def test_files_of_others_in_the_folder_stop_nothing(tmp_path: Path) -> None:
    with LocalObjects(tmp_path) as store:
        store.create("ranges/a", b"1")
        for folder in (tmp_path, tmp_path / "ranges", tmp_path / ".incoming"):
            (folder / ".DS_Store").write_bytes(b"x")
            (folder / "Thumbs.db").write_bytes(b"x")
            (folder / "with a space~").write_bytes(b"x")
            (folder / "lost+found").mkdir()
        (tmp_path / "ranges" / os.fsdecode(b"\xff\xfe")).write_bytes(b"x")
    with LocalObjects(tmp_path) as store:
        store.create("ranges/b", b"2")
        assert store.get("ranges/a") == b"1"
        assert store.sweep(float("inf")) == 3
        store.delete("ranges/a")
        assert {"ranges/b"} < {info.key for info in store.list("ranges/")}
        with pytest.raises(CompactlibError, match="cannot have been created here"):
            store.audit()


@pytest.mark.skipif(os.getuid() == 0, reason="nothing is closed to the administrator")
def test_folders_that_may_not_be_read_are_named(tmp_path: Path) -> None:
    with LocalObjects(tmp_path) as store:
        store.create("a/x", b"1")
        (tmp_path / "lost+found").mkdir(mode=0)
        assert [info.key for info in store.list()] == ["a/x"]
        (tmp_path / "a").chmod(0)
        try:
            for attempt in (lambda: list(store.list()), lambda: store.get("a/x"), lambda: store.info("a/x"),
                            lambda: store.delete("a/x"), lambda: store.create("a/x", b"2")):
                with pytest.raises(StorageError):
                    attempt()
        finally:
            (tmp_path / "a").chmod(0o755)


# --- arguments, observers


@pytest.mark.parametrize("make", [LocalObjects, lambda folder: MemoryObjects()])
def test_wrong_types_are_named(tmp_path: Path, make: Callable[[Path], ObjectStore]) -> None:
    store = make(tmp_path / "store")
    for key in (None, 5, b"bytes"):
        for attempt in (store.get, store.info, store.delete, lambda key: store.create(key, b"1")):
            with pytest.raises(BadKey, match="a key is text"):
                attempt(key)  # type: ignore[arg-type]
    for data in (None, 5, "text", memoryview(b"abcd")[::2]):
        with pytest.raises(InvalidInput, match="bytes that lie side by side"):
            store.create("x", data)  # type: ignore[arg-type]
    assert list(store.list()) == []
    store.create("x", memoryview(bytearray(b"a buffer")))
    assert store.get("x") == b"a buffer"


def test_every_printable_character_is_a_key_or_refused(tmp_path: Path) -> None:
    store, other = LocalObjects(tmp_path), MemoryObjects()
    for character in map(chr, range(0x250)):
        for key in (character, f"f{character}", f"f{character}/x"):
            answers = []
            for each in (store, other):
                try:
                    each.create(key, b"1")
                    answers.append(each.get(key))
                except (BadKey, ObjectExists) as error:
                    answers.append(type(error))  # type: ignore[arg-type]
            assert answers[0] in (answers[1], BadKey), (key, answers)
    with LocalObjects(tmp_path) as again:
        again.audit()


def test_an_observer_that_raises_breaks_no_request() -> None:
    class Broken(Observer):
        def count(self, *_: object, **__: object) -> None:
            raise ZeroDivisionError

        measure = count

    store = MeteredObjects(MemoryObjects(), Broken(), name="objects")
    store.create("x", b"1")
    assert store.get("x") == b"1"
    assert [info.key for info in store.list()] == ["x"]
    store.delete("x")


def test_two_writers_of_one_object_at_every_change_of_each_other(tmp_path: Path) -> None:
    """Whoever is told that the object is there can read it, whole; the other's private file is its own."""

    class Interrupted:
        """Runs the other writer to its end before the chosen change."""

        def __init__(self, files: Files, at: int, other: Callable[[], object]) -> None:
            self._files, self._left, self._other = files, at, other

        def __getattr__(self, name: str) -> object:
            self._left -= 1
            if self._left == 0:
                thread = threading.Thread(target=self._other)
                thread.start()
                thread.join()
            return getattr(self._files, name)

    for at in range(1, 16):
        folder = tmp_path / str(at)
        told: list[bytes] = []

        def create(who: bytes, files: Files, folder: Path = folder, told: list[bytes] = told) -> None:
            store = LocalObjects(folder, files=files)
            with contextlib.suppress(ObjectExists):
                store.create("a/x", who)
            told.append(store.get("a/x"))

        create(b"first", Interrupted(LocalFiles(), at, lambda: create(b"second", LocalFiles())))  # type: ignore[arg-type]
        assert len(set(told)) == 1, told
