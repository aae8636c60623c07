# SPDX-License-Identifier: Apache-2.0
"""An empty folder of an object store may be removed while the store is open: the next create makes it again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compactlib.objects import LocalObjects
from compactlib.testing import RecordingFiles, explore_kills


def test_object_in_a_folder_that_was_removed_and_made_again_survives_a_power_failure() -> None:
    """By an operator who removes empty folders."""
    def first(folder: Path, files: RecordingFiles) -> None:
        with LocalObjects(folder / "store", files=files) as store:
            store.create("runs/1/old", b"old")
            store.delete(["runs/1/old"])
            for each in ("runs/1", "runs"):
                files.remove_folder(folder / "store" / each)
            store.create("runs/1/new", b"new")
            files.acknowledge("runs/1/new")

    def check(folder: Path, acknowledged: Sequence[Any]) -> None:
        with LocalObjects(folder / "store") as store:
            for key in acknowledged:
                assert store.get(key) == b"new"

    explore_kills(first, lambda folder, files: None, check)
