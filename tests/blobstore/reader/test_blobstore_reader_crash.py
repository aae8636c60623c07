# SPDX-License-Identifier: Apache-2.0
"""A reader opens what every crash leaves: it changes no byte, and answers as the owner does who opens it after that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from compactlib.blobstore import Blob, BlobReader, BlobStore, GetOptions
from compactlib.blobstore.errors import NotAStore
from compactlib.clock import Clock, ManualClock
from compactlib.testing import RecordingFiles, explore_crashes, record
from tests.blobstore.compaction.run.test_blobstore_compactor_crash import COUNT, NOW, STORIES, Story
from tests.blobstore.compaction_stores import START, config
from tests.blobstore.faults.test_blobstore_crash import KEYS, NOW as THEN, opened, run
from tests.blobstore.store.test_blobstore_hard_delete import erase, small

EVERYTHING = GetOptions(include_deleted=True, include_expired=True)


def picture(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def entries(store: BlobStore | BlobReader) -> list[object]:
    snapshot = store.snapshot()
    return [entry._replace(flags=entry.flags & ~1) for info in snapshot.segments
            for entry in snapshot.entries_of(info.name)]


def told(store: BlobStore | BlobReader, keys: Sequence[bytes]) -> list[object]:
    answers: list[Any] = [store.get(key, options) for key in keys for options in (GetOptions(), EVERYTHING)]
    return [answer.content if isinstance(answer, Blob) else answer for answer in answers]


def same_as_the_owner(folder: Path, clock: Clock, keys: Sequence[bytes], own: Callable[[], BlobStore]) -> None:
    """Read the folder, see that nothing has changed, and compare with what its owner finds."""
    before = picture(folder)
    found: list[Any] = []
    try:
        with BlobReader(folder, config(), clock=clock, name="store") as reader:
            assert not reader.damage, reader.damage
            found = [told(reader, keys), entries(reader), sorted(info.id for info in reader.infos())]
            reader.audit()
            reader.view()
            reader.plan()
            assert reader.verify().is_sound, str(reader.verify())
            status = reader.status()
            assert status.is_busy == (status.compaction != "")
    except NotAStore:
        assert not any(name.endswith(".log") for name in before)
    assert picture(folder) == before
    with own() as store:
        if found:
            assert found[0] == told(store, keys)
            assert found[1] == entries(store)
            assert found[2] == sorted(key for key in keys if isinstance(store.get(key), Blob))
        else:
            assert entries(store) == []


def look_everywhere(story: Story, folder: Path, limit_per_point: int) -> int:
    """Read what each crash of a compaction leaves; how many distinct folders there were."""
    story.build(folder / "store")
    keys = [b"b%d" % number for number in range(COUNT + 11)]

    def check(folder: Path, _: Sequence[Any]) -> None:
        same_as_the_owner(folder / "store", ManualClock(NOW), keys, lambda: story.open(folder / "store"))

    checked = explore_crashes(record(folder, story.compact), check, limit_per_point=limit_per_point)
    assert checked > 20
    return checked


@pytest.mark.parametrize("name", STORIES)
def test_a_reader_sees_through_a_crash_at_any_step_of_a_compaction(name: str, tmp_path: Path) -> None:
    look_everywhere(STORIES[name], tmp_path, 2)


@pytest.mark.soak
@pytest.mark.parametrize("name", STORIES)
def test_a_reader_sees_through_hundreds_of_crash_states(name: str, tmp_path: Path) -> None:
    assert look_everywhere(STORIES[name], tmp_path, 60) > 300


def test_a_reader_sees_what_is_whole_of_a_log_that_was_cut_off_at_any_step(tmp_path: Path) -> None:
    files = RecordingFiles(tmp_path)
    run("interval", files, tmp_path)

    def check(folder: Path, _: Sequence[Any]) -> None:
        same_as_the_owner(folder / "store", ManualClock(THEN), KEYS, lambda: opened(folder, "interval"))

    assert explore_crashes(files.recording(), check, limit_per_point=40) > 30


def test_contents_that_a_crash_left_half_overwritten_are_gone(tmp_path: Path) -> None:
    small(tmp_path)
    keys = [b"b%d" % number for number in range(12)]

    def check(folder: Path, _: Sequence[Any]) -> None:
        before = picture(folder / "store")
        with BlobReader(folder / "store", config(), clock=ManualClock(START + 100), name="store") as reader:
            plain = [reader.get(key) for key in keys]
            assert all(isinstance(answer, Blob) for answer in plain[::2])
            assert not any(isinstance(answer, Blob) for answer in plain[1::2])
            # Nothing is half of each.
            for key in keys:
                reader.get(key, EVERYTHING)
        assert picture(folder / "store") == before

    assert explore_crashes(record(tmp_path, erase), check, limit_per_point=12) > 10
