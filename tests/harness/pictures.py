# SPDX-License-Identifier: Apache-2.0
"""Folders as comparable values, and all the folders that a crash may leave."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from compactlib.testing import Recording, RecordingFiles, explore_crashes, record

Picture: TypeAlias = dict[str, object]
"""By path: `None` for a folder, text for a symbolic link, bytes for a file; `nlink:<first name>` lists hard links."""


def picture(folder: Path) -> Picture:
    """Return the content of a folder. Several names of one file are listed together under the first."""
    shown: Picture = {}
    names: dict[int, list[str]] = {}
    for base, folders, files in os.walk(folder):
        for name in folders + files:
            path = Path(base) / name
            relative = str(path.relative_to(folder))
            if path.is_symlink():
                shown[relative] = str(path.readlink())
            elif path.is_dir():
                shown[relative] = None
            else:
                shown[relative] = path.read_bytes()
                names.setdefault(path.stat().st_ino, []).append(relative)
                assert path.stat().st_nlink >= len(names[path.stat().st_ino])
    for same in names.values():
        if len(same) > 1:
            shown[f"nlink:{min(same)}"] = tuple(sorted(same))
    return shown


def after_crash(recording: Recording, point: int) -> list[Picture]:
    """Return all different folders that a crash after `point` operations may leave."""
    found: list[Picture] = []

    def collect(folder: Path, acknowledged: Sequence[Any]) -> None:
        found.append(picture(folder))

    explore_crashes(recording, collect, points=[point], limit_per_point=100_000)
    return found


def after_last(folder: Path, function: Callable[[Path, RecordingFiles], object]) -> list[Picture]:
    """Return all different folders that a crash right after a function may leave."""
    recording = record(folder, function)
    return after_crash(recording, len(recording.operations))


def same_pictures(found: Sequence[Picture], expected: Sequence[Picture]) -> bool:
    """Return whether both have the same folders, in any order, each once."""
    return len(found) == len(expected) and all(each in expected for each in found) and all(
        each in found for each in expected)
