# SPDX-License-Identifier: Apache-2.0
"""A folder as a value: which names lead to which files, symbolic links and sub-folders.

Every file, link and folder has a number (`0` is the folder itself), so that two names of one file are seen to be
one file. File contents are kept apart from the tree, because thousands of crash states share them.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeAlias

import attrs

from compactlib.errors import InvalidInput

ROOT = 0
"""The number of the folder that a recording is about."""

Names: TypeAlias = Mapping[str, int]


@attrs.frozen
class Tree:
    """Names, without the bytes of files.

    Attributes:
        folders: for each folder's number, its names and where they lead.
        texts: for each symbolic link's number, what it holds.
    """

    folders: Mapping[int, Names]
    texts: Mapping[int, str]


@attrs.frozen
class Image:
    """A whole folder: its tree, and the bytes of each file by number."""

    tree: Tree
    contents: Mapping[int, bytes]

    def fingerprint(self) -> bytes:
        """16 bytes that are equal for equal folders; see `fingerprint`."""
        return fingerprint(self.tree, lambda number: digest(self.contents[number]))

    def first_difference(self, other: Image) -> str:
        """The first path, by name, at which `other` is not like this one; for messages."""
        mine, theirs = dict(self._walk()), dict(other._walk())
        for path in sorted(mine.keys() | theirs.keys()):
            if path not in theirs:
                return f"{path} has gone"
            if path not in mine:
                return f"{path} has appeared"
            if mine[path] != theirs[path]:
                return f"{path} is another"
        return "names of one file have become names of two, or the reverse"

    def _walk(self) -> Iterator[tuple[str, bytes | str | None]]:
        waiting = [(ROOT, "")]
        while waiting:
            number, prefix = waiting.pop()
            for name, member in self.tree.folders[number].items():
                yield prefix + name, self.contents.get(member, self.tree.texts.get(member))
                if member in self.tree.folders:
                    waiting.append((member, f"{prefix}{name}/"))


def digest(content: bytes | bytearray) -> bytes:
    """16 bytes that stand for a file's content."""
    return hashlib.blake2b(content, digest_size=16).digest()


def read_image(folder: str, ignore: Collection[str] = ()) -> Image:
    """Read a folder with everything below it. Numbers are given in the order of a walk by name, names of one file once.

    Args:
        folder: which.
        ignore: names that are passed over wherever they are.

    Raises:
        InvalidInput: something below is neither a file nor a folder nor a symbolic link.
        OSError: reading failed.
    """
    folders: dict[int, dict[str, int]] = {}
    texts: dict[int, str] = {}
    contents: dict[int, bytes] = {}
    files: dict[tuple[int, int], int] = {}
    next_number = ROOT
    waiting = [(ROOT, folder)]
    while waiting:
        number, path = waiting.pop()
        names = folders[number] = {}
        with os.scandir(path) as found:
            entries = sorted((entry for entry in found if entry.name not in ignore), key=lambda entry: entry.name)
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            known = files.get((status.st_dev, status.st_ino))
            if known is not None:
                names[entry.name] = known
                continue
            next_number += 1
            names[entry.name] = next_number
            if stat.S_ISDIR(status.st_mode):
                waiting.append((next_number, entry.path))
                continue
            files[status.st_dev, status.st_ino] = next_number
            if stat.S_ISLNK(status.st_mode):
                texts[next_number] = os.readlink(entry.path)
            elif stat.S_ISREG(status.st_mode):
                with open(entry.path, "rb") as file:
                    contents[next_number] = file.read()
            else:
                raise InvalidInput(f"{entry.path} is neither a file, a folder nor a symbolic link; "
                                   "the crash harness cannot rebuild it, keep it out of the folder")
    return Image(Tree(folders, texts), contents)


def fingerprint(tree: Tree, digest_of: Callable[[int], bytes]) -> bytes:
    """16 bytes that are equal for folders with equal names, contents, links and hard-link structure.

    Args:
        tree: the names.
        digest_of: the digest of a file's content, by the file's number.
    """
    order: dict[int, int] = {}

    def shown(number: int) -> tuple[object, ...]:
        names = tree.folders.get(number)
        if names is not None:
            return tuple((name, shown(names[name])) for name in sorted(names))
        first_seen = order.setdefault(number, len(order))
        text = tree.texts.get(number)
        return (first_seen, digest_of(number) if text is None else text)

    return hashlib.blake2b(repr(shown(ROOT)).encode(), digest_size=16).digest()


def write_tree(tree: Tree, content_of: Callable[[int], bytes], folder: str) -> None:
    """Build the tree in `folder`, which must exist and be empty: real files, symbolic links and hard links.

    Args:
        tree: the names.
        content_of: a file's bytes, by the file's number; asked once a file.
        folder: where.
    """
    first_names: dict[int, str] = {}
    waiting = [(ROOT, folder)]
    while waiting:
        number, path = waiting.pop()
        for name, member in tree.folders[number].items():
            place = os.path.join(path, name)
            if member in tree.folders:
                os.mkdir(place)
                waiting.append((member, place))
            elif member in first_names:
                os.link(first_names[member], place, follow_symlinks=False)
            else:
                first_names[member] = place
                if member in tree.texts:
                    os.symlink(tree.texts[member], place)
                else:
                    with open(place, "wb") as file:
                        file.write(content_of(member))
