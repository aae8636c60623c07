# SPDX-License-Identifier: Apache-2.0
"""What the demo writes: which files it takes, and the history it makes of them."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from compactlib.app.kv_machine import Delete, Put
from compactlib.app.workload import InputFile, Step, earlier_version, make_history, select_files
from compactlib.errors import InvalidInput, NotFound


def write(folder: Path, **contents: bytes) -> None:
    for name, content in contents.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def test_all_files_below_the_folder_are_taken_but_not_what_tools_put_there(tmp_path: Path) -> None:
    write(tmp_path, a=b"1", sub__deeper__b=b"22")
    for skipped in ("__pycache__", "site-packages", ".git"):
        (tmp_path / "sub" / skipped).mkdir()
        (tmp_path / "sub" / skipped / "x").write_bytes(b"no")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    os.mkfifo(tmp_path / "pipe")
    selection = select_files(str(tmp_path), 1000, random.Random(0))
    assert selection.files == (InputFile("a", str(tmp_path / "a"), 1),
                               InputFile("sub/deeper/b", str(tmp_path / "sub/deeper/b"), 2))
    assert (selection.found_files, selection.found_bytes, selection.size_bytes) == (2, 3, 3)


@given(sizes=st.lists(st.integers(0, 20), min_size=1, max_size=12), limit=st.integers(0, 100), seed=st.integers())
def test_no_more_bytes_are_taken_than_allowed_and_no_file_that_fits_is_left(
        tmp_path_factory: pytest.TempPathFactory, sizes: list[int], limit: int, seed: int) -> None:
    folder = tmp_path_factory.mktemp("files")
    for number, size in enumerate(sizes):
        (folder / f"{number}").write_bytes(bytes(size))
    if min(sizes) > limit:
        with pytest.raises(InvalidInput, match="no file of at most"):
            select_files(str(folder), limit, random.Random(seed))
        return
    selection = select_files(str(folder), limit, random.Random(seed))
    left_out = sorted(sizes)
    for file in selection.files:
        left_out.remove(file.size_bytes)
    assert selection.size_bytes <= limit
    assert all(size > limit - selection.size_bytes for size in left_out)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="not a folder"):
        select_files(str(tmp_path / "none"), 1000, random.Random(0))


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no file"):
        select_files(str(tmp_path), 1000, random.Random(0))


@given(count=st.integers(1, 40), seed=st.integers())
def test_each_file_is_put_several_times_in_order_and_only_then_deleted(count: int, seed: int) -> None:
    files = tuple(InputFile(f"{number:03}", f"/{number}", number) for number in range(count))
    history = make_history(files, random.Random(seed))
    for file in files:
        versions = [step.version for step in history if step.file == file]
        deleted = versions[-1] == 0
        puts = versions[:-1] if deleted else versions
        assert puts == list(range(1, len(puts) + 1))
        assert 2 <= len(puts) <= 4
    assert make_history(files, random.Random(seed)) == history


def test_the_last_version_is_the_file_itself(tmp_path: Path) -> None:
    write(tmp_path, a=b"one\ntwo\nthree\n")
    file = InputFile("a", str(tmp_path / "a"), 14)
    assert Step(file, 3, 3).command(0) == Put("a", b"one\ntwo\nthree\n")
    assert Step(file, 0, 3).command(0) == Delete("a")
    earlier = [Step(file, 1, 3).command(seed) for seed in range(20)]
    assert earlier == [Step(file, 1, 3).command(seed) for seed in range(20)]
    assert len({command.value for command in earlier if isinstance(command, Put)}) > 5


def test_a_file_whose_name_is_no_utf_8_has_a_history_too(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    Path(path).write_bytes(b"one\ntwo\n")
    [chosen] = select_files(str(tmp_path), 100, random.Random(0)).files
    assert isinstance(Step(chosen, 1, 2).command(0), Put)


@given(st.binary(max_size=50), st.integers())
def test_an_earlier_version_is_a_beginning_or_has_the_same_lines(content: bytes, seed: int) -> None:
    earlier = earlier_version(content, random.Random(seed))
    assert content.startswith(earlier) or sorted(content) == sorted(earlier)


def test_a_file_that_is_gone_makes_no_command(tmp_path: Path) -> None:
    assert Step(InputFile("a", str(tmp_path / "a"), 1), 1, 1).command(0) is None
