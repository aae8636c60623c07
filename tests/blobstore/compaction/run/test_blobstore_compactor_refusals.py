# SPDX-License-Identifier: Apache-2.0
"""Damage that a compaction meets, and a disk that refuses: reported, nothing lost, and the store stays usable."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compactlib.blobstore import Blob, BlobStore, Deleted, Questions, RecordKind
from compactlib.blobstore.compaction.progress.compaction_file import read_log
from compactlib.blobstore.compaction.progress.compaction_log import Phase
from compactlib.blobstore.errors import CompactionOutOfOrder
from compactlib.clock import ManualClock
from compactlib.errors import CorruptData, DiskFull, StorageError, TaskFailed
from compactlib.files import OutFile
from compactlib.files.disk import StrPath
from compactlib.outcome import Done, Failed
from compactlib.runtime import Budget, RecordingObserver
from tests.blobstore.compaction_stores import (
    EVERYTHING,
    answers,
    check_against,
    compact_all,
    done,
    flip,
    garbage_store,
    names,
    open_store,
    plan_of,
    segment_names,
    strays,
)
from tests.blobstore.store_pictures import StorePicture
from tests.tools.faults.plan import FailingFiles

# -------------------------------------------------------------------------------------------------------- damage


def test_a_damaged_record_is_reported_and_its_segment_left_alone(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock, dead=lambda number: False) as store:
        plain = answers(store, 60)
        first = store.snapshot().segments[2].name
        entry = next(iter(store.snapshot().entries_of(first)))
        flip(folder / first.log_file, entry.end - 5)
        observer = RecordingObserver()
    with open_store(folder, clock, observer=observer) as store:
        report = compact_all(store)
        assert report.left_out == (first,)
        assert report.damage[0].path.endswith(first.log_file)
        assert report.damage[0].offset == entry.offset
        assert [name for name, _ in observer.events].count("blobstore_damage_found") == 1
        assert str(first) in segment_names(store)
        damaged = int(entry.id[1:])
        with pytest.raises(CorruptData):
            store.get(entry.id)
        others = [number for number in range(60) if number != damaged]
        assert [store.get(f"b{number}").content for number in others] == [  # type: ignore[union-attr]
            plain[number] for number in others]


def test_damage_in_a_dead_record_does_not_matter(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store:
        before = StorePicture.of(store)
        entry = next(entry for entry in store.snapshot().entries_of(names("0_0")[0]) if entry.id == b"b1")
        flip(folder / "0_0.log", entry.offset + 3)
        assert not compact_all(store).left_out
        check_against(store, before)


def test_every_flipped_byte_of_a_segment_is_reported_or_dead(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock, count=14) as store:
        pass
    original = (folder / "0_0.log").read_bytes()
    saved = {name: (folder / name).read_bytes() for name in os.listdir(folder) if name != "LOCK"}
    with open_store(folder, clock) as store:
        plain = answers(store, 14)
    for offset in range(0, len(original), 83):
        for name in set(os.listdir(folder)) - {"LOCK"}:
            (folder / name).unlink()
        for name, data in saved.items():
            (folder / name).write_bytes(data)
        flip(folder / "0_0.log", offset)
        with open_store(folder, clock) as store:
            outcome = store.compact(plan_of(store))
            damaged = isinstance(outcome, Failed) or done(outcome).left_out or store.recovery.damage
            for number, answer in enumerate(plain):
                try:
                    found = store.get(f"b{number}")
                except CorruptData:
                    assert damaged, offset
                    continue
                content = getattr(found, "content", type(found).__name__)
                assert content == answer or damaged, (offset, number)
                if isinstance(answer, bytes) and isinstance(content, bytes):
                    assert content == answer


# ----------------------------------------------------------------------------------------------- the disk refuses


@pytest.mark.parametrize("fail_at", range(1, 60))
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_refuses_leaves_a_usable_store_and_the_attempt_goes_on(fail_at: int, error: int, tmp_path: Path,
                                                                          clock: ManualClock) -> None:
    """Once, a reclaim after a refused commit took the committed segments away, and the store could not be opened."""
    folder = tmp_path / "store"
    with garbage_store(folder, clock, count=24) as store:
        before, plain = StorePicture.of(store), answers(store, 24)
    files = FailingFiles(fail_at=10_000)
    with open_store(folder, clock, files=files) as store:
        files._fail_at = files.count + fail_at  # noqa: SLF001
        files._errno = error  # noqa: SLF001
        segments = segment_names(store)
        outcome = store.compact(plan_of(store))
        store.audit()
        assert answers(store, 24) == plain
        if isinstance(outcome, Failed):
            assert isinstance(outcome.error, StorageError)
            is_changed = segment_names(store) != segments
            assert outcome.changed in (("partly", "unknown") if is_changed else ("no", "unknown"))
        if error == errno.EIO:
            assert not isinstance(store.reclaim(), Failed)
            store.audit()
        if store.compaction is not None:
            outcome = store.resume()
        if not isinstance(outcome, Done):
            outcome = store.compact(plan_of(store))
        done(outcome)
        check_against(store, before)
    assert strays(folder) == []


def test_a_full_disk_while_copying_and_then_dropped(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store:
        before = StorePicture.of(store)
    files = FailingFiles(fail_at=10_000, sticky=True)
    with open_store(folder, clock, files=files) as store:
        files._fail_at = files.count + 8  # noqa: SLF001
        outcome = store.compact(plan_of(store))
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, DiskFull)
        assert store.compaction is not None
        assert store.compaction.phase is Phase.COPY
        check = answers(store, 60)
        files._fail_at = None  # noqa: SLF001
        store.drop_compaction()
        assert answers(store, 60) == check
        check_against(store, before)
    assert strays(folder) == []


def changes_of(folder: Path, clock: ManualClock, work: Callable[[BlobStore], object], *,
               fail_at: int | None = None) -> tuple[int, BlobStore]:
    """Open the store, and let the disk refuse one change of the work; how many changes it made."""
    files = FailingFiles()
    store = open_store(folder, clock, files=files)
    before = files.count
    if fail_at is not None:
        files._fail_at, files._errno = before + fail_at, errno.EIO  # noqa: SLF001
    work(store)
    return files.count - before, store


def test_a_commit_that_may_be_on_the_disk_is_taken_back_before_contents_are_relied_on(folder: Path, tmp_path: Path,
                                                                                      clock: ManualClock) -> None:
    """Once, the next attempt let a peer bring a blob back without its content, and a kill then finished the commit."""
    refused: list[str] = []
    breaks: list[bool] = []

    class RefusingCommit(FailingFiles):
        def open(self, path: StrPath) -> OutFile:
            out = super().open(path)
            return NoSync(out) if str(path).endswith("COMPACTION") and not refused else out

    class NoSync:
        def __init__(self, out: OutFile) -> None:
            self._out = out

        def __getattr__(self, name: str) -> Any:
            return getattr(self._out, name)

        def sync(self) -> None:
            (phase,) = {log.phase for log in [read_log(folder)] if log is not None}
            if phase is Phase.COMMIT:
                refused.append(phase.value)
                raise StorageError.from_os(OSError(errno.EIO, "refused"), "sync", self._out.path)
            self._out.sync()

    def have_seen(entry: object) -> bool:
        if breaks:
            raise RuntimeError("the host's answer")
        return False

    with open_store(folder, clock) as store:
        store.append_replicated(RecordKind.DELETE, b"of a peer", op_time=clock.now(), life_version=0)
    with garbage_store(folder, clock, count=24):
        pass
    questions = Questions(seen_by_all_peers=have_seen)
    with open_store(folder, clock, files=RefusingCommit(), questions=questions, purge_tombstones=True) as store:
        # One that lies in a segment that is compacted.
        entry = next(each for each in store.snapshot().entries_of(names("0_0")[0]) if each.id == b"b1")
        assert isinstance(store.get(entry.id), Deleted)
        content = store.get(entry.id, EVERYTHING)
        outcome = store.compact(plan_of(store))
        assert isinstance(outcome, Failed)
        assert (outcome.changed, refused) == ("unknown", ["commit"])
        breaks.append(True)
        outcome = store.resume()
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, TaskFailed)
        store.append_replicated(RecordKind.UNDELETE, entry.id, op_time=clock.now(), life_version=1)
        found = store.get(entry.id)
        assert isinstance(found, Blob)
        assert isinstance(content, Blob)
        assert found.content == content.content
        store.flush()
        shutil.copytree(folder, tmp_path / "killed", ignore=shutil.ignore_patterns("LOCK", "*.sock"))
    with open_store(tmp_path / "killed", clock) as store:
        again = store.get(entry.id)
        assert isinstance(again, Blob)
        assert again.content == content.content


def test_no_index_of_another_content_is_left_beside_a_new_segment(folder: Path, clock: ManualClock) -> None:
    """Once, what an attempt had written for more records stayed beside the segment, which then counted as damaged."""
    refused: list[object] = []

    class RefusingRename(FailingFiles):
        def rename(self, source: object, target: object) -> None:
            if str(target).endswith("_1.log.temp") and not refused:
                refused.append(target)
                raise StorageError.from_os(OSError(errno.EIO, "refused"), "rename", str(source))
            super().rename(source, target)  # type: ignore[arg-type]

    with open_store(folder, clock, files=RefusingRename(), index_max_entries=1) as store:
        for number in range(12):
            store.put(f"b{number}", b"content", ttl_seconds=5.0 if number % 3 else None)
        store.put("more", b"more")
        store.close_active_segment()
        store.put("last", b"last")
        victims = store.snapshot().eligible()
        assert isinstance(store.compact(plan_of(store, victims)), Failed)
        assert refused
        # Fewer records are kept now.
        clock.advance(6.0)
        done(store.resume())
    with open_store(folder, clock, index_max_entries=1) as store:
        assert not store.recovery.damage
        store.audit()
        assert store.verify().is_sound
        assert [type(store.get(f"b{number}")).__name__ for number in range(3)] == ["Blob", "Missing", "Missing"]


@pytest.mark.parametrize("last", range(12))
def test_the_end_of_a_compaction_is_refused_and_it_ends_when_it_is_resumed(last: int, tmp_path: Path,
                                                                          clock: ManualClock) -> None:
    """Once, the log had its name in the history but not durably, and looking for the old name failed for ever."""
    for name in ("counted", "refused"):
        garbage_store(tmp_path / name, clock, count=24).close()

    def compact(store: BlobStore) -> object:
        return store.compact(plan_of(store))

    count, store = changes_of(tmp_path / "counted", clock, compact)
    store.close()
    _, store = changes_of(tmp_path / "refused", clock, compact, fail_at=count - last)
    with store:
        store.audit()
        outcome = store.resume()
        assert isinstance(outcome, Done) or store.compaction is None, outcome
        store.audit()
        done(store.compact(plan_of(store, store.snapshot().eligible()[:1])))
    assert strays(tmp_path / "refused") == []


@pytest.mark.parametrize("last", range(5))
def test_a_drop_that_is_refused_can_be_asked_for_again(last: int, tmp_path: Path, clock: ManualClock) -> None:
    for name in ("counted", "refused"):
        garbage_store(tmp_path / name, clock, count=24).close()

    outcomes: list[object] = []

    def begin_and_drop(store: BlobStore) -> None:
        assert isinstance(store.compact(plan_of(store), budget=Budget(total_bytes=1)), Failed)
        outcomes.append(store.drop_compaction())

    count, store = changes_of(tmp_path / "counted", clock, begin_and_drop)
    store.close()
    _, store = changes_of(tmp_path / "refused", clock, begin_and_drop, fail_at=count - last)
    with store:
        store.audit()
        dropped, refused = outcomes
        assert isinstance(dropped, Done)
        # The log may say by now that it was dropped.
        assert isinstance(refused, Done) or (isinstance(refused, Failed) and refused.changed != "no"), refused
        if store.compaction is not None:
            done(store.drop_compaction())
        assert store.compaction is None
        store.audit()
        done(store.compact(plan_of(store)))
    assert strays(tmp_path / "refused") == []


def test_a_commit_under_way_cannot_be_dropped(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store:
        pass
    refused: list[object] = []

    class RefusingRename(FailingFiles):
        def rename(self, source: object, target: object) -> None:
            if str(target).endswith("_1.log") and not refused:
                refused.append(target)
                raise DiskFull(operation="rename", path=str(source), errno=errno.ENOSPC)
            super().rename(source, target)  # type: ignore[arg-type]

    with open_store(folder, clock, files=RefusingRename()) as store:
        outcome = store.compact(plan_of(store))
        assert isinstance(outcome, Failed)
        assert outcome.changed == "unknown"
        dropped = store.drop_compaction()
        assert isinstance(dropped, Failed)
        assert isinstance(dropped.error, CompactionOutOfOrder)
        assert "cannot be dropped" in str(dropped.error)
        done(store.resume())
