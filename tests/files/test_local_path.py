# SPDX-License-Identifier: Apache-2.0
"""A folder is named by a path. Every store refuses a URI by name."""

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


@pytest.mark.parametrize("take", TAKERS)
def test_no_store_takes_a_uri_for_a_folder(take: Callable[[Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                           ) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="a URI"):
        take("s3a://bucket/logs")
    assert [name for name in os.listdir() if name != "store"] == []
