# SPDX-License-Identifier: Apache-2.0
"""What the demo writes: real files as a history of puts and deletes, the same for the same files and seed."""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Iterator

import attrs

from compactlib.app.kv_machine import Command, Delete, Put
from compactlib.errors import InvalidInput, NotFound

DEFAULT_MAX_BYTES = 24_000_000
"""How many bytes of files the demo reads by default; it writes about three times as many."""
MAX_FILES = 20_000
"""How many files of a folder are looked at, so that a wrong path ends soon."""
_SKIPPED_FOLDERS = frozenset({"__pycache__", "site-packages", "dist-packages", ".git"})
_FEWEST_PUTS, _MOST_PUTS = 2, 4
_DELETED_PART = 0.1
_EDITS_FROM, _IMPORTED_AT = 0.2, 0.25
"""Parts of the history. The import is over when edits are well under way, so that its first segments die whole."""


@attrs.frozen
class InputFile:
    """A file that becomes a key.

    Attributes:
        key: its path below the input folder, with `/`.
        path: where it is.
        size_bytes: how large it was when it was found.
    """

    key: str
    path: str
    size_bytes: int


@attrs.frozen
class Selection:
    """The files that were chosen from a folder.

    Attributes:
        files: the chosen ones, by key.
        found_files: how many there were.
        found_bytes: how large they were together.
    """

    files: tuple[InputFile, ...]
    found_files: int
    found_bytes: int

    @property
    def size_bytes(self) -> int:
        """How large the chosen files are together."""
        return sum(file.size_bytes for file in self.files)


def select_files(folder: str, max_bytes: int, rng: random.Random) -> Selection:
    """Choose files of a folder, and of those below it, at random until `max_bytes` are full.

    Left out are folders that tools fill (`__pycache__`, `site-packages`, ...), symbolic links, and all but the first
    20,000 files.

    Raises:
        NotFound: there is no such folder.
        InvalidInput: there is no file that fits.
    """
    if not os.path.isdir(folder):
        raise NotFound(f"{folder} is not a folder; name one that has files to read")
    found: list[InputFile] = []
    for file in _walk(folder):
        found.append(file)
        if len(found) == MAX_FILES:
            break
    chosen: list[InputFile] = []
    left = max_bytes
    for file in rng.sample(found, len(found)):
        if file.size_bytes <= left:
            chosen.append(file)
            left -= file.size_bytes
    if not chosen:
        raise InvalidInput(f"{folder} has no file of at most {max_bytes:,} bytes among {len(found):,}; name another "
                           f"folder, or allow more bytes")
    return Selection(tuple(sorted(chosen, key=_by_key)), len(found), sum(file.size_bytes for file in found))


def _walk(folder: str) -> Iterator[InputFile]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - _SKIPPED_FOLDERS)
        for name in sorted(names):
            path = os.path.join(parent, name)
            try:
                status = os.lstat(path)
            except OSError:
                continue  # gone meanwhile
            if stat.S_ISREG(status.st_mode):
                yield InputFile(os.path.relpath(path, folder).replace(os.sep, "/"), path, status.st_size)


@attrs.frozen
class Step:
    """One command of the history, not yet read from its file.

    Attributes:
        file: which file.
        version: 1 for the first put of the file; 0 for its delete.
        versions: how many puts the file gets; the last one is its true content.
    """

    file: InputFile
    version: int
    versions: int

    def command(self, seed: int) -> Command | None:
        """Read the file and make the command; `None` if the file cannot be read (any more)."""
        if not self.version:
            return Delete(self.file.key)
        try:
            with open(self.file.path, "rb") as source:
                content = source.read()
        except OSError:
            return None
        if self.version < self.versions:
            content = earlier_version(content, random.Random(os.fsencode(f"{seed} {self.file.key} {self.version}")))
        return Put(self.file.key, content)


def make_history(files: tuple[InputFile, ...], rng: random.Random) -> list[Step]:
    """Each file two to four times, one in ten deleted in the end: an import of all, then edits in any order."""
    placed: list[tuple[float, str, Step]] = []
    for file in files:
        versions = rng.randint(_FEWEST_PUTS, _MOST_PUTS)
        times = sorted([rng.uniform(0.0, _IMPORTED_AT), *(rng.uniform(_EDITS_FROM, 1.0) for _ in range(versions - 1))])
        placed.extend((time, file.key, Step(file, version, versions)) for version, time in enumerate(times, 1))
        if rng.random() < _DELETED_PART:
            placed.append((rng.uniform(times[-1], 1.0), file.key, Step(file, 0, versions)))
    return [step for _, _, step in sorted(placed, key=_by_time)]


def earlier_version(content: bytes, rng: random.Random) -> bytes:
    """What a file may have held before: it grew since, or its lines were in another order."""
    if rng.random() < 0.5:
        return content[:rng.randrange(len(content) + 1)]
    lines = content.splitlines(keepends=True)
    rng.shuffle(lines)
    return b"".join(lines)


def _by_key(file: InputFile) -> str:
    return file.key


def _by_time(placed: tuple[float, str, Step]) -> tuple[float, str]:
    return placed[:2]
