# SPDX-License-Identifier: Apache-2.0
"""Two writers make the same folder of a local object store at the same time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from compactlib.objects import BadKey, LocalObjects
from compactlib.testing import FilesInFront, Request

T = TypeVar("T")


def test_folder_that_another_writer_makes_meanwhile_is_used(tmp_path: Path) -> None:
    others = LocalObjects(tmp_path)
    waiting: list[bytes] = []

    def step(request: Request, act: Callable[[], T]) -> T:
        if request.kind == "sync folder" and waiting:
            others.create("folder/other", waiting.pop())
        return act()

    objects = LocalObjects(tmp_path, files=FilesInFront(step))
    waiting.append(b"by another writer")
    objects.create("folder/mine", b"mine")
    assert [each.key for each in objects.list()] == ["folder/mine", "folder/other"]


def test_folder_named_as_an_object_is_a_bad_key(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    objects.create("folder", b"an object")
    with pytest.raises(BadKey, match="continues the key of an object"):
        objects.create("folder/mine", b"mine")
    assert objects.get("folder") == b"an object"
