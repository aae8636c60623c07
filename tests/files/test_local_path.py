# SPDX-License-Identifier: Apache-2.0
"""What is taken for a folder: a path. A URI is refused by name, everywhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compactlib.blobstore import BlobReader, BlobStore, BlobStoreConfig
from compactlib.blobstore.copying import copy_store
from compactlib.errors import InvalidInput
from compactlib.fences import FileFence
from compactlib.files.disk import local_path
from compactlib.kv import SqliteStore
from compactlib.objects import LocalObjects
from compactlib.raftlog import LogReader, RaftLogStore, SegmentLog, open_log

CONFIG = BlobStoreConfig(capacity_bytes=1 << 20, segment_bytes=1 << 16)


def copied(folder: Any) -> None:
    with BlobStore(Path("store"), CONFIG) as store:
        copy_store(store, folder, CONFIG)


TAKERS: list[Callable[[Any], Any]] = [
    SegmentLog, LogReader, RaftLogStore, open_log, lambda folder: BlobStore(folder, CONFIG), BlobReader,
    copied, LocalObjects, FileFence, SqliteStore,
]


@pytest.mark.parametrize(("given", "path"), [
    ("/logs/one", "/logs/one"), (b"/logs/one", "/logs/one"), (Path("/logs/../one"), "/one"),
    ("./s3a://bucket", f"{os.getcwd()}/s3a:/bucket"), ("a:b", f"{os.getcwd()}/a:b"), ("file:", f"{os.getcwd()}/file:"),
])
def test_a_path_is_made_absolute(given: Any, path: str) -> None:
    assert local_path(given) == path


@pytest.mark.parametrize("given", [
    "s3a://bucket/logs", "gs://bucket", "hdfs:/logs", "dbfs:/mnt/logs", "abfss://c@account/logs", Path("s3://bucket/logs"),
    "file:///logs"])
def test_a_uri_is_refused_by_name(given: Any) -> None:
    with pytest.raises(InvalidInput, match="a URI") as refused:
        local_path(given)
    assert str(given) in str(refused.value)


@pytest.mark.parametrize("take", TAKERS)
def test_no_store_takes_it_for_a_folder(take: Callable[[Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                        ) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="a URI"):
        take("s3a://bucket/logs")
    assert [name for name in os.listdir() if name != "store"] == []
