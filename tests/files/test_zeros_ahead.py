# SPDX-License-Identifier: Apache-2.0
"""Zeros ahead of small synced appends: how many, and when none."""

from __future__ import annotations

from pathlib import Path

from compactlib.files import LocalFiles
from compactlib.files.zeros_ahead import ZerosAhead
from tests.harness.failing_files import FailingFiles


def grown(path: Path, appended: int, times: int, limit: int | None = None) -> list[int]:
    """The file's size after each of so many appends of so many bytes."""
    with open(path, "wb"):
        pass
    out = LocalFiles().open(path)
    ahead = ZerosAhead(0, 0, limit)
    sizes = []
    for end in range(appended, appended * times + 1, appended):
        out.write_at(end - appended, [b"x" * appended])
        ahead.follow(out, end)
        sizes.append(path.stat().st_size)
        assert sizes[-1] == ahead.filled
        assert path.read_bytes() == b"x" * end + bytes(sizes[-1] - end)
    out.close()
    return sizes


def test_a_small_file_has_none(tmp_path: Path) -> None:
    assert grown(tmp_path / "file", 500, 8) == [500 * number for number in range(1, 9)]


def test_there_are_as_many_as_there_are_bytes_and_64_kib_at_most_for_small_appends(tmp_path: Path) -> None:
    sizes = grown(tmp_path / "file", 1024, 300)
    assert sizes[3] == 8192
    assert sizes[:3] == [1024, 2048, 3072]
    assert max(size - 1024 * number for number, size in enumerate(sizes, 1)) == 64 << 10
    assert len(set(sizes)) < 15


def test_large_appends_get_more_and_the_largest_none(tmp_path: Path) -> None:
    sizes = grown(tmp_path / "file", 100_000, 30)
    assert max(size - 100_000 * number for number, size in enumerate(sizes, 1)) == 1 << 20
    assert grown(tmp_path / "file", 300_000, 5) == [300_000 * number for number in range(1, 6)]


def test_a_region_has_them_up_to_its_end(tmp_path: Path) -> None:
    assert max(grown(tmp_path / "file", 1024, 16, limit=16 * 1024)) == 16 * 1024


def test_a_disk_without_room_for_them_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    out = FailingFiles(LocalFiles(), fail_at=5).open(path)
    ahead = ZerosAhead(0, 0)
    sizes = []
    for end in range(1024, 6 * 1024, 1024):
        out.write_at(end - 1024, [bytes(1024)])
        ahead.follow(out, end)
        sizes.append(path.stat().st_size)
    assert sizes == [1024, 2048, 3072, 4096, 10_240]
    out.close()
