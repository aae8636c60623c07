# SPDX-License-Identifier: Apache-2.0
"""Files in parts: whole, by their heads, and in ranges."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from compactlib.errors import InvalidInput, StorageError
from compactlib.files import LocalFiles
from compactlib.objects import BadDigest, MemoryObjects, ObjectNotFound
from compactlib.objects.stored_file import StoredFile, put_file, take_file, take_ranges

FILES = LocalFiles()


def put(store: MemoryObjects, folder: Path, data: bytes, part_bytes: int, head: int | None = None) -> StoredFile:
    (folder / "source").write_bytes(data)
    return put_file(store, "file", str(folder / "source"), part_bytes, head_bytes=head)


@given(st.binary(max_size=40), st.integers(1, 50), st.none() | st.integers(0, 50), st.lists(st.integers(0, 40)))
def test_what_is_taken_is_what_was_put(data: bytes, part_bytes: int, head: int | None, cuts: list[int]) -> None:
    cuts = sorted(min(cut, len(data)) for cut in cuts)
    ranges = list(zip(cuts[::2], cuts[1::2], strict=False))
    with tempfile.TemporaryDirectory() as made:
        store, folder = MemoryObjects(), Path(made)
        stored = put(store, folder, data, part_bytes, head)
        assert StoredFile.of(stored.told()) == stored
        assert stored.size_bytes == len(data)
        take_file(store, stored, str(folder / "whole"), FILES)
        assert (folder / "whole").read_bytes() == data
        take_file(store, stored, str(folder / "head"), FILES, only_head=True)
        beginning = (folder / "head").read_bytes()
        assert len(beginning) == len(data)
        assert head is None or beginning[:head] == data[:head]
        take_ranges(store, stored, str(folder / "head"), FILES, ranges)
        filled = (folder / "head").read_bytes()
        assert len(filled) == len(data)
        assert [filled[start:end] for start, end in ranges] == [data[start:end] for start, end in ranges]


def test_far_ranges_are_read_apart_and_near_ones_together(tmp_path: Path) -> None:
    class Noting(MemoryObjects):
        asked: list[tuple[int, int]]

        def get_range(self, key: str, start: int, length: int) -> bytes:
            self.asked.append((start, length))
            return super().get_range(key, start, length)

    store = Noting()
    store.asked = []
    stored = put(store, tmp_path, bytes(5 << 20), 8 << 20, head=10)
    take_file(store, stored, str(tmp_path / "file"), FILES, only_head=True)
    take_ranges(store, stored, str(tmp_path / "file"), FILES, [(20, 30), (1 << 20, (1 << 20) + 5), (3 << 20, 4 << 20)])
    assert store.asked == [(0, 10), (20, (1 << 20) - 15), (3 << 20, 1 << 20)]


def test_damage_leaves_no_file(tmp_path: Path) -> None:
    store = MemoryObjects()
    stored = put(store, tmp_path, b"0123456789", 4, head=6)
    store.delete("file/1")
    with pytest.raises(ObjectNotFound):
        take_file(store, stored, str(tmp_path / "file"), FILES)
    store.create("file/1", b"4")
    with pytest.raises(BadDigest):
        take_file(store, stored, str(tmp_path / "file"), FILES)
    with pytest.raises(BadDigest, match="the end after 1 bytes"):
        take_file(store, stored, str(tmp_path / "file"), FILES, only_head=True)
    assert not (tmp_path / "file").exists()


def test_what_is_no_stored_file_is_refused() -> None:
    for told in ([], [None, ["key"]], [None, ["key", 1, "zz"]], [None, 3]):
        with pytest.raises(InvalidInput):
            StoredFile.of(told)
    with pytest.raises(StorageError, match="absent"):
        put_file(MemoryObjects(), "file", "absent")
