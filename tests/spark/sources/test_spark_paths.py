# SPDX-License-Identifier: Apache-2.0
"""What the tables take for a path: no URI but this machine's own, and one alone."""

from __future__ import annotations

from typing import Any

import pytest

from compactlib.errors import InvalidInput
from compactlib.spark.sources.blobstore import BlobOptions
from compactlib.spark.sources.raftlog import SourceOptions

TABLES: list[Any] = [SourceOptions, BlobOptions]


@pytest.mark.parametrize("options", TABLES)
@pytest.mark.parametrize("given", [{"path": "s3a://bucket/log"}, {"path": "hdfs:/log"}, {"paths": '["/a","/b"]'}])
def test_what_is_no_path_of_this_machine_is_refused_by_name(options: Any, given: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match=r"a URI|load each by itself"):
        options.parse(given)


@pytest.mark.parametrize("options", TABLES)
@pytest.mark.parametrize("path", ["/logs/one", "file:///logs/one", "file:/logs/one"])
def test_a_path_and_a_uri_of_this_machine_are_read(options: Any, path: str) -> None:
    assert options.parse({"path": path}).folder == "/logs/one"
