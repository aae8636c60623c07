# SPDX-License-Identifier: Apache-2.0
"""What the conformance kit of `contract.Compaction` has to know about a store: fill in `CompactionFactory`.

Four methods are needed; the rest has defaults for a store that keeps its files in a folder.
"""

from __future__ import annotations

import abc
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from compactlib.contract import Compaction, Policy
from compactlib.files.disk import Files
from compactlib.files.folder_lock import LOCK_NAME

AnyCompaction: TypeAlias = Compaction[Any, Any, Any, Any, Any]
AnyPolicy: TypeAlias = Policy[Any, Any]


class CompactionFactory(abc.ABC):
    """Opens and fills stores of one kind. Keep `fill` small: it is called some hundred times.

    Attributes:
        has_owner: whether a folder has one owner, so that a second opening is `Busy` and the disk is changed through
            the `files` alone. If not, the store is shared: each opening of a folder is a handle of the same store, any
            number may compact at once, and one of them commits.
        uses_executor: whether compactions give tasks to an executor.
        rounds_to_rest: how many compactions it takes at most until there is nothing left to do.
    """

    has_owner: bool = True
    uses_executor: bool = True
    rounds_to_rest: int = 1

    @abc.abstractmethod
    def open(self, folder: Path, *, files: Files) -> AnyCompaction:
        """Open the store of a folder that exists, empty the first time, with defaults under which it compacts.

        Give it a clock that stands still. It starts no compaction by itself.

        Args:
            folder: where; for a store elsewhere a name: one folder, one store.
            files: how to change the disk, and whom to ask for room.
        """

    @abc.abstractmethod
    def fill(self, store: Any, number: int) -> object:
        """Write so much that the store's own policy finds something to do, durably; answer what is acknowledged by it.

        The same number writes the same; each number writes beside the others, and takes nothing of theirs back.
        """

    @abc.abstractmethod
    def check(self, store: Any, acknowledged: Sequence[Any]) -> None:
        """Read back what `fill` has acknowledged; raises if any of it is missing or different. More may be there."""

    @abc.abstractmethod
    def policy(self) -> AnyPolicy:
        """A policy that finds something to do after `fill`, and nothing when it is done: the store's own, say."""

    def reader(self, folder: Path) -> Any:
        """A reader beside the owner, from which `check` reads as from the store, with a `close`; default `None`."""
        return None

    def extra(self, store: Any, method: str) -> Mapping[str, Any]:
        """Further arguments of `view`, `plan`, `compact` or `reclaim`; default none."""
        return {}

    def release(self, store: Any) -> None:  # noqa: B027
        """Release what was opened beside the store, after `store.close()`. May be called twice. Default nothing."""

    def state(self, store: Any) -> object:
        """A value that changes when a compaction commits, and at no other time; default the rows of the view."""
        return store.view(**self.extra(store, "view")).to_dicts()

    def contents(self, folder: Path, store: Any) -> object:
        """Everything that is stored, byte for byte; default the files of the folder, or else the `state`."""
        return folder_contents(folder) if self.has_owner else self.state(store)

    def stored_bytes(self, folder: Path, store: Any) -> int:
        """How much is stored, for forecasts of `bytes_freed`; default the sizes of the folder's files."""
        return sum(size for _, size in _sizes(folder).values())

    def watch_copies(self, folder: Path, store: Any) -> Callable[[], int]:
        """Begin to watch what a compaction writes; the answer, called at its end, says how many bytes it copied.

        For forecasts of `bytes_to_copy`. Default: the sizes of files that were not there before.
        """
        # Held open, so that no new file gets the number of one that was removed.
        held = [os.open(path, os.O_RDONLY) for path, _ in _sizes(folder).values()]
        before = set(_sizes(folder))

        def copied() -> int:
            after = _sizes(folder)
            for descriptor in held:
                os.close(descriptor)
            return sum(size for number, (_, size) in after.items() if number not in before)

        return copied

    def damage(self, folder: Path) -> bool:
        """Change stored bytes of a closed store behind its back, so that `verify` finds it; `False` if it cannot."""
        return False

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def folder_contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its bytes, folders and links included, the lock file not."""
    found: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        if path.name != LOCK_NAME:
            name = str(path.relative_to(folder))
            found[name] = (f"-> {os.readlink(path)}".encode() if path.is_symlink() else
                           b"" if path.is_dir() else path.read_bytes())
    return found


def _sizes(folder: Path) -> dict[int, tuple[Path, int]]:
    """Each file's number, with one of its names and its size."""
    return {path.lstat().st_ino: (path, path.lstat().st_size) for path in folder.rglob("*")
            if path.is_file() and not path.is_symlink() and path.name != LOCK_NAME}
