# SPDX-License-Identifier: Apache-2.0
"""The values of a recording: one class per change to the disk, and the `Recording` that holds them in order.

A change names the file it concerned by number, as names come and go; the paths are there for the reader.
"""

from __future__ import annotations

import bisect
from typing import Any, TypeAlias

import attrs

from compactlib.testing.crash.tree import Image


@attrs.frozen
class Create:
    """A new file `inode` under `path`. Paths in operations are relative to the recorded folder."""

    path: str
    folder: int
    inode: int

    def __str__(self) -> str:
        return f"create {self.path}"


@attrs.frozen
class Write:
    """Bytes written or copied into `inode`; `path` is the name it was opened under."""

    path: str
    inode: int
    offset: int
    data: bytes = attrs.field(repr=lambda data: f"<{len(data)} bytes>")

    def __str__(self) -> str:
        return f"write {self.path} at {self.offset}, {len(self.data)} bytes"


@attrs.frozen
class Truncate:
    """`inode` cut or extended to `size` bytes."""

    path: str
    inode: int
    size: int

    def __str__(self) -> str:
        return f"truncate {self.path} to {self.size} bytes"


@attrs.frozen
class Sync:
    """All bytes of `inode` made durable."""

    path: str
    inode: int

    def __str__(self) -> str:
        return f"sync {self.path}"


@attrs.frozen
class Rename:
    """`inode` given the name `target` (in folder `target_folder`) in place of `source` (in `source_folder`)."""

    source: str
    source_folder: int
    target: str
    target_folder: int
    inode: int

    def __str__(self) -> str:
        return f"rename {self.source} to {self.target}"


@attrs.frozen
class Link:
    """`inode` given `target` as a further name."""

    source: str
    target: str
    target_folder: int
    inode: int

    def __str__(self) -> str:
        return f"link {self.source} as {self.target}"


@attrs.frozen
class Symlink:
    """A new symbolic link `inode` that holds `text`."""

    text: str
    path: str
    folder: int
    inode: int

    def __str__(self) -> str:
        return f"symlink {self.path} to {self.text}"


@attrs.frozen
class Unlink:
    """The name `path` of `inode` removed."""

    path: str
    folder: int
    inode: int

    def __str__(self) -> str:
        return f"unlink {self.path}"


@attrs.frozen
class MakeFolder:
    """A new folder `inode`."""

    path: str
    folder: int
    inode: int

    def __str__(self) -> str:
        return f"make folder {self.path}"


@attrs.frozen
class RemoveFolder:
    """The empty folder `inode` removed."""

    path: str
    folder: int
    inode: int

    def __str__(self) -> str:
        return f"remove folder {self.path}"


@attrs.frozen
class SyncFolder:
    """The names in folder `inode` made durable."""

    path: str
    inode: int

    def __str__(self) -> str:
        return f"sync folder {self.path}"


Operation: TypeAlias = (Create | Write | Truncate | Sync | Rename | Link | Symlink | Unlink | MakeFolder | RemoveFolder
                        | SyncFolder)
"""One change to the disk."""


@attrs.frozen(repr=False)
class Recording:
    """What a function did to a folder, ready to be cut anywhere.

    Attributes:
        initial: the folder before; it counts as durable.
        operations: what was done, in order.
        acknowledgements: what was acknowledged, each with the number of operations done before it.
        ignore: names that were passed over; see `record`.
    """

    initial: Image
    operations: tuple[Operation, ...]
    acknowledgements: tuple[tuple[int, Any], ...]
    ignore: frozenset[str] = frozenset()

    def acknowledged(self, point: int) -> tuple[Any, ...]:
        """What had been acknowledged when the first `point` operations were done."""
        end = bisect.bisect_right(self.acknowledgements, point, key=lambda each: each[0])
        return tuple(value for _, value in self.acknowledgements[:end])

    def __str__(self) -> str:
        return "\n".join(f"{index:4} {operation}" for index, operation in enumerate(self.operations))

    def __repr__(self) -> str:
        written = sum(len(operation.data) for operation in self.operations if isinstance(operation, Write))
        return (f"Recording({len(self.operations)} operations, {written} bytes written, "
                f"{len(self.acknowledgements)} acknowledged)")
