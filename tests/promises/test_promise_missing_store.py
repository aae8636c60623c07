# SPDX-License-Identifier: Apache-2.0
"""A store that is opened with `create=False` and is not there is named; nothing is made in its place."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from compactlib.blobstore import BlobStore
from compactlib.errors import CompactlibError, InvalidInput, NotFound
from compactlib.fences import FileFence
from compactlib.kv import MemoryStore, SqliteStore
from compactlib.objects import LocalObjects, MemoryObjects
from compactlib.raftlog import LocalLog, RaftLogStore, SegmentLog, open_log
from compactlib.staging import CommittedRanges, Repository


def opened_log(path: Path, *, create: bool) -> object:
    return open_log(path, create=create)


STORES: list[Callable[..., object]] = [BlobStore, LocalLog, SqliteStore, LocalObjects, RaftLogStore, SegmentLog,
                                       FileFence, opened_log]


def closed(store: object) -> None:
    if hasattr(store, "close"):
        store.close()


def tree(top: Path) -> list[str]:
    return sorted(os.path.join(folder, name) for folder, folders, files in os.walk(top) for name in [*folders, *files])


@pytest.mark.parametrize("make", STORES, ids=lambda make: str(make.__name__))
def test_a_missing_store_is_named_and_not_made(make: Callable[..., object], tmp_path: Path) -> None:
    with pytest.raises((NotFound, InvalidInput), match=r"misspelt.*create=True"):
        make(tmp_path / "misspelt", create=False)
    with pytest.raises(CompactlibError):
        make(tmp_path / "no" / "such" / "folder", create=False)
    assert tree(tmp_path) == []


@pytest.mark.parametrize("make", [each for each in STORES if each not in (SqliteStore, FileFence)],
                         ids=lambda make: str(make.__name__))
def test_a_folder_of_other_files_is_left_unchanged(make: Callable[..., object], tmp_path: Path) -> None:
    for name in ("empty", "photos"):
        (tmp_path / name).mkdir()
    (tmp_path / "photos" / "me.jpg").write_text("hello")
    (tmp_path / "a-file").write_text("hello")
    before = tree(tmp_path)
    for name in ("empty", "photos", "a-file"):
        with pytest.raises(CompactlibError, match=name):
            make(tmp_path / name, create=False)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("make", STORES, ids=lambda make: str(make.__name__))
def test_an_existing_store_is_opened_without_create(make: Callable[..., object], tmp_path: Path) -> None:
    closed(make(tmp_path / "store", create=True))
    closed(make(tmp_path / "store", create=False))


def test_a_missing_log_of_a_store_is_not_made(tmp_path: Path) -> None:
    open_log(tmp_path / "store", log_id="orders").close()
    before = tree(tmp_path)
    with pytest.raises(NotFound, match="no log 'ordres'"):
        open_log(tmp_path / "store", log_id="ordres", create=False)
    assert [name for name in tree(tmp_path) if "ordres" in name] == []
    assert [name for name in before if "orders" in name] == [name for name in tree(tmp_path) if "orders" in name]


def test_a_missing_repository_is_named() -> None:
    kept, ranges = MemoryStore(), CommittedRanges(MemoryObjects())
    with pytest.raises(NotFound, match=r"no repository 'main'.*create=True"):
        Repository(kept, ranges, create=False)
    Repository(kept, ranges).create_branch("main")
    Repository(kept, ranges, create=False).close()
    with pytest.raises(NotFound, match="no repository 'other'"):
        Repository(kept, ranges, name="other", create=False)
