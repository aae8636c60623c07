# SPDX-License-Identifier: Apache-2.0
"""Around the store's engine: a killed owner and its successor, a disk that is full, a folder that others use."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from compactlib.blobstore import Blob, BlobStore, BlobStoreConfig, CompactAll, Deleted, NotAStore, look_at_store
from compactlib.blobstore.config import Durability
from compactlib.clock import ManualClock
from compactlib.errors import Busy, Closed, Conflict, DiskFull, InvalidInput, StorageError
from compactlib.files import Files, LocalFiles
from compactlib.outcome import Failed
from compactlib.runtime import Budget, Observer
from compactlib.testing import RecordingFiles, explore_kills
from tests.harness.forks import check_fork
from tests.tools.faults.plan import Crash, FailingFiles, Fault

NOW = 1_000_000.0
SCRIPT = (("put", 600), ("put", 90), ("delete", 0), ("put", 500), ("put", 0), ("delete", 1), ("put", 300))


def opened(folder: Path, files: Files | None = None, durability: Durability = "each",
           clock: ManualClock | None = None) -> BlobStore:
    config = BlobStoreConfig(capacity_bytes=1 << 14, segment_bytes=1 << 10, durability=durability, index_max_entries=3,
                             journal_max_entries=0, deleted_retention_seconds=0, max_blob_bytes=0,
                             pace=None)
    return BlobStore(folder / "store", config, files=files, clock=clock or ManualClock(NOW),
                     new_incarnation=lambda: b"the incarnation.")


def life(name: str, durability: Durability, *, compacts: bool) -> Any:
    """Puts and deletes under names of its own, a compaction in the middle, and the end."""
    def live(folder: Path, files: RecordingFiles) -> None:
        clock = ManualClock(NOW)
        with opened(folder, files, durability, clock) as store:
            for number, (step, size) in enumerate(SCRIPT):
                key = b"%s %d" % (name.encode(), number if step == "put" else size)
                if step == "put":
                    store.put(key, key[-1:] * size)
                else:
                    store.delete(key)
                if durability == "interval":
                    store.flush()
                files.acknowledge((key, None if step == "delete" else size))
                if compacts and number == 4:
                    compact(store, clock)
        files.acknowledge((b"closed", None))
    return live


def compact(store: BlobStore, clock: ManualClock) -> None:
    """Go on with the compaction that is in progress, or begin one of everything."""
    if store.compaction is None:
        store.close_active_segment()
        clock.advance(1)
        outcome = store.compact(policy=CompactAll(min_used_fraction=0.0), budget=Budget())
    else:
        outcome = store.resume(budget=Budget())
    if isinstance(outcome, Failed):
        raise outcome.error


def check_acknowledged(folder: Path, acknowledged: Sequence[Any]) -> None:
    """Every blob is as it was last acknowledged, or one step, which was under way, further."""
    told: dict[bytes, int | None] = dict(acknowledged)
    told.pop(b"closed", None)
    if not acknowledged:
        return
    with opened(folder) as store:
        assert not store.recovery.damage
        store.audit()
        for key, size in told.items():
            answer = store.get(key)
            if size is None:
                assert isinstance(answer, Deleted), (key, answer)
            else:
                assert isinstance(answer, Deleted) or (isinstance(answer, Blob)
                                                       and answer.content == key[-1:] * size), (key, answer)
                if isinstance(answer, Deleted):
                    assert ("delete", int(key.split()[1])) in SCRIPT, key


def kills(scratch: Path, durability: Durability, *, compacts: bool = True, limit: int, seed: int = 0,
          points: list[int] | None = None, max_states: int | None = None) -> int:
    return explore_kills(life("first", durability, compacts=compacts), life("next", durability, compacts=compacts),
                         check_acknowledged, limit_per_point=limit, seed=seed, scratch=scratch,
                         points=points, max_states=max_states)


@pytest.mark.parametrize(("durability", "compacts"), [("each", False), ("each", True), ("interval", True)])
def test_what_a_successor_acknowledges_survives_a_power_failure(durability: Durability, compacts: bool,
                                                                scratch: Path) -> None:
    """Names and steps that a killed process had not synced are found by the next one, which builds on them."""
    checked = kills(scratch, durability, compacts=compacts, limit=2, points=list(range(2, 90, 29)))
    assert checked >= 50


@pytest.mark.soak
@pytest.mark.parametrize(("durability", "states"), [("each", 20_000), ("group", 10_000), ("interval", 10_000)])
def test_what_a_successor_acknowledges_survives_a_power_failure_long(durability: Durability, states: int,
                                                                     scratch: Path) -> None:
    assert kills(scratch, durability, limit=64, max_states=states) == states


# ------------------------------------------------------------------------------------------------- a disk that is full

def full_disk(folder: Path) -> FailingFiles:
    """A disk that has no room for anything."""
    files = FailingFiles(fail_at=1, sticky=True)
    with pytest.raises(DiskFull):
        files.sync_folder(folder)
    return files


def what_is_left(folder: Path, answers: dict[bytes, type]) -> None:
    """Open on a disk with no room at all: everything is there to be read, and what is refused leaves no trace."""
    full, clock = full_disk(folder), ManualClock(NOW)
    with opened(folder, full, clock=clock) as store:
        store.audit()
        for key, kind in answers.items():
            assert isinstance(store.get(key), kind), key
        for key, kind in answers.items():
            if kind is Blob:
                with pytest.raises(DiskFull):
                    store.delete(key)
                assert isinstance(store.get(key), Blob)
        with pytest.raises(DiskFull):
            store.put(b"one more", b"")
        store.audit()
        with contextlib.suppress(DiskFull):
            compact(store, clock)
        store.audit()
    with opened(folder, clock=clock) as store:
        assert not store.recovery.damage
        for key, kind in answers.items():
            assert isinstance(store.get(key), kind), key
            if kind is Blob:
                store.delete(key)
        store.put(b"one more", b"")
        compact(store, clock)
        assert store.compaction is None
        assert store.verify().is_sound


def test_a_store_opens_on_a_full_disk_wherever_it_was_killed(scratch: Path) -> None:
    killed_at = 0
    alive = True
    while alive:
        killed_at += 1
        folder = scratch / str(killed_at)
        folder.mkdir()
        files = RecordingFiles(folder, FailingFiles(faults={killed_at: Fault.CRASH_BEFORE}.get))
        try:
            life("first", "each", compacts=True)(folder, files)
            alive = False
        except Crash:
            pass
        told = dict(files.recording().acknowledged(files.done))
        told.pop(b"closed", None)
        if told:
            under_way = {b"first 0", b"first 1"}
            what_is_left(folder, {key: Deleted if size is None else Blob for key, size in told.items()
                                  if size is None or key not in under_way})
    assert killed_at > 60


def test_a_store_whose_indexes_are_lost_opens_on_a_full_disk(scratch: Path) -> None:
    told: list[tuple[str, object]] = []

    class Told(Observer):
        def event(self, name: str, fields: Mapping[str, Any]) -> None:
            told.append((name, fields["index"]))

    with opened(scratch) as store:
        for number in range(9):
            store.put(b"%d" % number, b"x" * 300)
        store.close_active_segment()
    for file in (scratch / "store").glob("*.index"):
        file.unlink()
    full = full_disk(scratch)
    with BlobStore(scratch / "store", files=full, clock=ManualClock(NOW), observer=Told()) as store:
        assert all(isinstance(store.get(b"%d" % number), Blob) for number in range(9))
        assert len(store.recovery.rebuilt) == 5
    assert {name for name, _ in told} == {"blobstore_index_not_written"}
    with opened(scratch) as store:
        assert len(store.recovery.rebuilt) == 5
    with opened(scratch) as store:
        assert not store.recovery.to_dicts()


# --------------------------------------------------------------------------------------------------------- the folder

class Second:
    """A disk on which another process does the same a moment earlier."""

    def __init__(self, does: str, first: Callable[[], object]) -> None:
        self._files = LocalFiles()
        self._does, self._first = does, first

    def __getattr__(self, name: str) -> Any:
        if name == self._does:
            self._does = ""
            self._first()
        return getattr(self._files, name)


def test_two_processes_may_create_one_store_at_once(scratch: Path) -> None:
    first: list[BlobStore] = []
    with pytest.raises(Busy, match="is open for writing by process"):
        opened(scratch, Second("make_folder", lambda: first.append(opened(scratch))))
    first[0].put(b"a", b"1")
    first[0].close()
    with opened(scratch, Second("sync_folder", lambda: None)) as store:
        assert isinstance(store.get(b"a"), Blob)
    # The other one had made the folder, and ended before it had the lock.
    other = scratch / "other"
    other.mkdir()
    with opened(other, Second("make_folder", (other / "store").mkdir)) as store:
        store.put(b"a", b"1")


def test_a_place_that_is_no_folder_is_refused_by_name(scratch: Path) -> None:
    (scratch / "store").write_bytes(b"a file")
    with pytest.raises(NotAStore, match="is not a folder"):
        opened(scratch)
    (scratch / "store").unlink()
    (scratch / "store").symlink_to(scratch / "nowhere")
    with pytest.raises(NotAStore, match="is not a folder"):
        opened(scratch)
    assert not (scratch / "nowhere").exists()


STRANGERS = (".DS_Store", "lost+found", "notes.index.tmp", "photo.temp", "9_0.log.backup", "COMPACTION.old",
             "a.STORE.tmp", "x.log", "07_0.log", "1_0.80.index.bak", "name with\nnew line")


@pytest.mark.parametrize("kind", ["file", "folder", "link", "pipe"])
def test_what_strangers_leave_in_the_folder_stays_and_does_not_matter(kind: str, scratch: Path) -> None:
    clock = ManualClock(NOW)
    with opened(scratch, clock=clock) as store:
        store.put(b"a", b"1" * 600)
        store.put(b"b", b"2" * 600)
        store.delete(b"a")
        compact(store, clock)
    for name in STRANGERS:
        place(scratch / "store" / name, kind)
    for round_number in range(2):
        with opened(scratch, clock=clock) as store:
            assert not store.recovery.damage
            for number in range(4):
                store.put(b"%s %d" % (kind.encode(), 4 * round_number + number), b"3" * 600)
            store.delete(b"%s %d" % (kind.encode(), 4 * round_number))
            compact(store, clock)
            assert store.verify().is_sound
    for name in STRANGERS:
        assert os.path.lexists(scratch / "store" / name), name


def place(path: Path, kind: str) -> None:
    if kind == "file":
        path.write_bytes(b"a stranger's")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path.parent.parent / "victim")


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
@pytest.mark.parametrize("name", ["STORE", "COMPACTION", "HARD_DELETE", "plan_history.json"])
def test_a_thing_under_the_name_of_a_file_of_the_store_is_refused_by_name(name: str, kind: str, scratch: Path) -> None:
    """Found by placing links: what they lead to was overwritten, or the store waited for a pipe for ever."""
    (scratch / "victim").write_bytes(b"v" * 64)
    with opened(scratch) as store:
        store.put(b"a", b"1")
    (scratch / "store" / name).rename(scratch / name) if name == "STORE" else None
    place(scratch / "store" / name, kind)
    with pytest.raises(InvalidInput, match=f"{name} is not an ordinary file"):
        opened(scratch)
    assert (scratch / "victim").read_bytes() == b"v" * 64


@pytest.mark.parametrize("kind", ["folder", "pipe"])
@pytest.mark.parametrize("name", ["STORE", "COMPACTION", "1_0.log", "0_0.80.index"])
def test_whoever_looks_from_outside_waits_for_no_pipe(name: str, kind: str, scratch: Path) -> None:
    with opened(scratch) as store:
        store.put(b"a", b"1")
    taken = scratch / "store" / name
    if taken.exists():
        taken.rename(scratch / "moved")
    place(taken, kind)
    if name in ("STORE", "COMPACTION"):
        with pytest.raises(NotAStore, match=f"{name} is not a file"):
            look_at_store(scratch / "store")
    else:
        assert [info.records for info in look_at_store(scratch / "store").snapshot.segments] == [1]


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
@pytest.mark.parametrize("name", ["0_1.log", "1_0.log", "2_0.log", "3_0.log", "0_0.80.index", "1_0.80.index",
                                  "1_0.80.index.tmp", "STORE.tmp", "COMPACTION.tmp", "0_1.log.temp",
                                  "1_1.log.a.kept.temp"])
def test_a_thing_under_the_name_of_a_segment_or_an_index_is_left_alone(name: str, kind: str, scratch: Path) -> None:
    victim = scratch / "victim"
    victim.write_bytes(b"v" * 64)
    with opened(scratch) as store:
        for number in range(5):
            store.put(b"%d" % number, b"x" * 300)
    taken = scratch / "store" / name
    moved = taken.exists()
    if moved:
        taken.rename(scratch / "moved")
    place(taken, kind)
    clock = ManualClock(NOW)
    with opened(scratch, clock=clock) as store:
        is_segment = name.endswith(".log")
        assert [error.path for error in store.recovery.damage] == ([str(taken)] if is_segment else [])
        lost = [number for number in range(5) if not isinstance(store.get(b"%d" % number), Blob)]
        assert bool(lost) == (moved and is_segment)
        for number in range(5, 20):
            store.put(b"%d" % number, b"x" * 300)
        store.delete(b"5")
        store.audit()
        with contextlib.suppress(StorageError, Conflict) if kind == "folder" else contextlib.nullcontext():
            # Named, and tried again when somebody has taken the folder away.
            compact(store, clock)
    with opened(scratch) as store:
        assert all(isinstance(store.get(b"%d" % number), Blob) for number in range(6, 20))
    assert victim.read_bytes() == b"v" * 64


def test_a_fork_is_refused_and_its_parent_goes_on(scratch: Path) -> None:
    numbers = itertools.count()

    def write(store: BlobStore) -> None:
        store.put(b"%d" % next(numbers), b"content")

    def audit(store: BlobStore) -> None:
        store.audit()
        assert [entry.id for entry in store.entries_since(None).entries] == [b"0", b"1", b"2"]

    assert isinstance(check_fork(lambda: opened(scratch), write, BlobStore.close, audit=audit), Closed)
