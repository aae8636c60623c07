# SPDX-License-Identifier: Apache-2.0
"""What the tables take for a path: no URI but this machine's own, and one alone."""

from __future__ import annotations

from typing import Any

import pytest

from compactlib.errors import InvalidInput
from compactlib.spark.sources.blobstore import BlobOptions
from compactlib.spark.sources.raftlog import SourceOptions
from compactlib.spark.sources.staging import StagingSourceOptions

TABLES: list[tuple[Any, dict[str, str]]] = [
    (SourceOptions, {}), (BlobOptions, {}),
    (StagingSourceOptions, {"branch": "main", "kv": "/branches.sqlite"})]


@pytest.mark.parametrize(("options", "others"), TABLES)
@pytest.mark.parametrize("given", [{"path": "s3a://bucket/log"}, {"path": "hdfs:/log"}, {"paths": '["/a","/b"]'}])
def test_what_is_no_path_of_this_machine_is_refused_by_name(options: Any, others: dict[str, str],
                                                            given: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match=r"a URI|load each by itself"):
        options.parse({**given, **others})


@pytest.mark.parametrize(("options", "others"), TABLES)
@pytest.mark.parametrize("path", ["/logs/one", "file:///logs/one", "file:/logs/one"])
def test_a_path_and_a_uri_of_this_machine_are_read(options: Any, others: dict[str, str], path: str) -> None:
    parsed = options.parse({"path": path, **others})
    assert parsed.folder == "/logs/one"
