# SPDX-License-Identifier: Apache-2.0
"""A blob store that lost a segment says so for as long as it is lost; opening removes no evidence of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from compactlib.blobstore import Blob, BlobReader, BlobStore, BlobStoreConfig
from compactlib.errors import CorruptData

CONFIG = BlobStoreConfig(capacity_bytes=1 << 20, segment_bytes=1 << 16, deleted_retention_seconds=0.0,
                         journal_max_entries=0, max_blob_bytes=0, durability="interval")
COUNT = 60

every_segment = pytest.mark.parametrize("segment", ["0_0", "2_0", "4_0"])
"""The first, one in the middle, and the last that is full."""
every_opening = pytest.mark.parametrize("openings", [1, 2, 3])


def content(number: int) -> bytes:
    return bytes([number]) * 5000


def filled(folder: Path) -> None:
    """A store of five full segments, and one that is written to."""
    with BlobStore(folder, CONFIG) as store:
        for number in range(COUNT):
            store.put(f"k{number}", content(number))
        store.put("last", b"x")
    with BlobStore(folder, CONFIG):
        pass


def lose(folder: Path, segment: str, *, index_too: bool) -> None:
    """Take a segment's log away, and its index: a copy that stopped, or what fsck has left."""
    found = [path for path in folder.iterdir() if path.name.startswith(f"{segment}.")]
    assert any(path.suffix == ".log" for path in found)
    for path in found:
        if index_too or path.suffix == ".log":
            path.unlink()


def reopened(folder: Path, openings: int) -> BlobStore:
    """The store, opened for the so-and-so-many-th time."""
    for _ in range(openings - 1):
        BlobStore(folder, CONFIG).close()
    return BlobStore(folder, CONFIG)


def answers(store: BlobStore) -> dict[int, str]:
    """Return the store's answer for each blob that was put."""
    found: dict[int, str] = {}
    for number in range(COUNT):
        try:
            answer = store.get(f"k{number}")
            found[number] = type(answer).__name__
            assert not isinstance(answer, Blob) or answer.content == content(number)
        except CorruptData:
            found[number] = "CorruptData"
    return found


@every_segment
def test_blob_store_opens_without_a_lost_segment_and_serves_the_rest(tmp_path: Path, segment: str) -> None:
    filled(tmp_path / "store")
    lose(tmp_path / "store", segment, index_too=True)
    with BlobStore(tmp_path / "store", CONFIG) as store:
        assert sorted(answers(store).values()).count("Blob") >= 48


@every_segment
def test_blobs_are_read_after_a_lost_segment_was_put_back(tmp_path: Path, segment: str) -> None:
    filled(tmp_path / "store")
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    lose(tmp_path / "store", segment, index_too=False)
    BlobStore(tmp_path / "store", CONFIG).close()
    shutil.copy(tmp_path / "copy" / f"{segment}.log", tmp_path / "store")
    with BlobStore(tmp_path / "store", CONFIG) as store:
        assert set(answers(store).values()) == {"Blob"}
        assert store.verify().is_sound


@every_segment
@every_opening
def test_known_blobs_of_a_lost_segment_are_corrupt(tmp_path: Path, segment: str, openings: int) -> None:
    filled(tmp_path / "store")
    lose(tmp_path / "store", segment, index_too=False)
    with reopened(tmp_path / "store", openings) as store:
        assert set(answers(store).values()) == {"Blob", "CorruptData"}


@every_segment
@every_opening
def test_verify_is_not_sound_when_the_log_of_a_segment_is_lost(tmp_path: Path, segment: str, openings: int) -> None:
    filled(tmp_path / "store")
    lose(tmp_path / "store", segment, index_too=False)
    with reopened(tmp_path / "store", openings) as store:
        assert not store.verify().is_sound


@every_segment
@every_opening
def test_verify_is_not_sound_when_a_segment_is_lost_with_its_index(
        tmp_path: Path, segment: str, openings: int) -> None:
    filled(tmp_path / "store")
    lose(tmp_path / "store", segment, index_too=True)
    with reopened(tmp_path / "store", openings) as store:
        assert not store.verify().is_sound


@every_segment
def test_opening_reports_a_lost_segment_each_time(tmp_path: Path, segment: str) -> None:
    filled(tmp_path / "store")
    lose(tmp_path / "store", segment, index_too=False)
    with reopened(tmp_path / "store", 2) as store:
        assert store.recovery.damage


@every_segment
def test_opening_reports_a_segment_lost_with_its_index(tmp_path: Path, segment: str) -> None:
    filled(tmp_path / "store")
    lose(tmp_path / "store", segment, index_too=True)
    with BlobStore(tmp_path / "store", CONFIG) as store:
        assert store.recovery.damage


@pytest.mark.parametrize("lost", ["missing", "zeros", "empty"])
def test_blob_store_names_its_lost_list_once_and_keeps_its_identity(tmp_path: Path, lost: str) -> None:
    filled(tmp_path / "store")
    path = tmp_path / "store" / "SEGMENTS"
    with BlobStore(tmp_path / "store", CONFIG) as store:
        incarnation = store.incarnation
    if lost == "missing":
        path.unlink()
    else:
        path.write_bytes(bytes(path.stat().st_size if lost == "zeros" else 0))
    with BlobReader(tmp_path / "store", CONFIG) as reader:
        assert [error.path for error in reader.damage] == [str(path)]
    with BlobStore(tmp_path / "store", CONFIG) as store:
        assert [error.path for error in store.recovery.damage] == [str(path)]
        assert (store.incarnation, store.status().capacity_bytes) == (incarnation, CONFIG.capacity_bytes)
        assert set(answers(store).values()) == {"Blob"}
    with BlobStore(tmp_path / "store", CONFIG) as store:
        assert not store.recovery.damage


def test_folder_with_a_damaged_list_and_no_segment_stays_as_it_is(tmp_path: Path) -> None:
    filled(tmp_path / "store")
    for path in (tmp_path / "store").iterdir():
        if path.name != "SEGMENTS":
            path.unlink()
    path = tmp_path / "store" / "SEGMENTS"
    path.write_bytes(b"\xff" * 64)
    with pytest.raises(CorruptData, match="SEGMENTS"):
        BlobStore(tmp_path / "store", CONFIG)
    assert path.read_bytes() == b"\xff" * 64
