# SPDX-License-Identifier: Apache-2.0
"""`CommittedView.files` names the files of a commit's records, whole and in order, for readers of Parquet."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from compactlib.kv import MemoryStore
from compactlib.objects import LocalObjects, MemoryObjects
from compactlib.staging import Branch, CommittedRanges, ParquetFormat, Repository, SplitRule


def branch_with_commits(objects: LocalObjects | MemoryObjects, prefix: str = "") -> Branch:
    """A branch of many ranges, each commit of which changes a few."""
    ranges = CommittedRanges(objects, range_format=ParquetFormat(), rule=SplitRule(raggedness=100), prefix=prefix)
    main = Repository(MemoryStore(), ranges).create_branch("main")
    for start in range(0, 2000, 500):
        main.put_many({b"key-%04d" % number: b"%d" % number for number in range(start, start + 500)})
        main.commit(f"from {start}")
    main.delete_many([b"key-%04d" % number for number in range(300, 1400, 7)])
    main.commit("fewer")
    return main


def test_files_of_a_commit_hold_its_records_in_order(tmp_path: Path) -> None:
    main = branch_with_commits(LocalObjects(tmp_path))
    view = main.head()
    files = view.files()
    records: list[tuple[bytes, bytes]] = []
    for file in files:
        table = pq.read_table(tmp_path / file.path)
        keys: list[Any] = table["key"].to_pylist()
        datas: list[Any] = table["data"].to_pylist()
        assert (len(keys), keys[0], keys[-1]) == (file.rows, file.first_key, file.last_key)
        assert file.size_bytes >= sum(map(len, keys))
        records += zip(keys, datas, strict=True)
    assert records == [(key, record.data) for key, record in view.records()]
    assert len({file.path for file in files}) == len(files) > 5


def test_files_are_keys_of_the_object_store() -> None:
    objects = MemoryObjects()
    for file in branch_with_commits(objects, prefix="photos/").head().files():
        assert file.path.startswith("photos/")
        assert pq.read_metadata(io.BytesIO(objects.get(file.path))).num_rows == file.rows


def test_files_of_an_older_commit_stay_unchanged(tmp_path: Path) -> None:
    main = branch_with_commits(LocalObjects(tmp_path))
    view, before = main.head(), main.head().files()
    main.delete_many([file.first_key for file in before])
    main.put(b"zzz", b"new")
    assert view.files() == main.head().files() == before
    main.commit("other records")
    assert view.files() == before
    assert main.head().files() != before
    assert all((tmp_path / file.path).exists() for file in before)


@pytest.mark.parametrize("is_committed", [True, False])
def test_an_empty_commit_has_no_files(is_committed: bool) -> None:
    main = Repository(MemoryStore(), CommittedRanges(MemoryObjects())).create_branch("main")
    main.put(b"a", b"1")
    if is_committed:
        main.commit("one")
        main.delete(b"a")
        main.commit("none")
    assert main.head().files() == ()
