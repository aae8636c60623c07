# SPDX-License-Identifier: Apache-2.0
"""Objects in a folder that another process has made and was killed before its sync."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compactlib.objects import LocalObjects
from compactlib.testing import RecordingFiles, explore_kills


def test_object_beside_deleted_ones_of_a_killed_process_survives_a_power_failure() -> None:
    """The successor first deletes in a folder whose own name is not durable; its sync covers the names in it alone."""
    def killed(folder: Path, files: RecordingFiles) -> None:
        with LocalObjects(folder / "store", files=files) as store:
            store.create("runs/1/old", b"old")

    def successor(folder: Path, files: RecordingFiles) -> None:
        with LocalObjects(folder / "store", files=files) as store:
            store.delete(["runs/1/old"])
            store.create("runs/1/new", b"new")
            files.acknowledge("runs/1/new")

    def check(folder: Path, acknowledged: Sequence[Any]) -> None:
        with LocalObjects(folder / "store") as store:
            for key in acknowledged:
                assert store.get(key) == b"new"

    explore_kills(killed, successor, check)
