# SPDX-License-Identifier: Apache-2.0
"""A disk that a test is asked about before anything is changed: it looks, or refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from compactlib.files import LocalFiles, OutFile


class AskingFile:
    """A file of `AskingFiles`, which asks before a write and a sync."""

    def __init__(self, file: OutFile, look: Callable[[str, str], object]) -> None:
        self._file, self._look = file, look

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write_at(self, offset: int, pieces: Sequence[Any]) -> int:
        self._look("write", self._file.path)
        return self._file.write_at(offset, pieces)

    def sync(self) -> None:
        self._look("sync", self._file.path)
        self._file.sync()


class AskingFiles(LocalFiles):
    """A disk that asks before it changes anything.

    Args:
        look: called with the operation and the path, before it is carried out.
    """

    def __init__(self, look: Callable[[str, str], object]) -> None:
        super().__init__()
        self._look = look

    def create(self, path: Any) -> OutFile:
        self._look("create", str(path))
        return cast("OutFile", AskingFile(super().create(path), self._look))

    def rename(self, source: Any, target: Any) -> None:
        self._look("rename", str(target))
        super().rename(source, target)

    def link(self, source: Any, target: Any) -> None:
        self._look("link", str(target))
        super().link(source, target)

    def symlink(self, text: str, path: Any) -> None:
        self._look("symlink", str(path))
        super().symlink(text, path)

    def unlink(self, path: Any) -> None:
        self._look("unlink", str(path))
        super().unlink(path)

    def make_folder(self, path: Any) -> None:
        self._look("make folder", str(path))
        super().make_folder(path)

    def sync_folder(self, path: Any) -> None:
        self._look("sync folder", str(path))
        super().sync_folder(path)
