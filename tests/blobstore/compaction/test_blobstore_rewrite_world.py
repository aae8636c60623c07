# SPDX-License-Identifier: Apache-2.0
"""Copies that end anywhere and are gone on with, on files that answer in any way: the same bytes come of each."""

from __future__ import annotations

import errno
import os
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from compactlib.blobstore.compaction.rewrite import task as rewriting
from compactlib.blobstore.model.values import IndexEntry
from compactlib.errors import BudgetSpent, CorruptData
from compactlib.executors import RewriteResult
from compactlib.runtime import Budget
from tests.blobstore.compaction.test_blobstore_rewrite import run, source, task_for
from tests.blobstore.compaction_stores import flip
from tests.harness.effort import Effort

LAST = 8


def reader(rng: random.Random) -> Callable[..., int]:
    """A `preadv` on a file system of some kind, which reads less than it was asked for as often as it likes."""
    real, kind = os.preadv, rng.choice(("cached", "no answer", "cold", "some of each"))

    def some(descriptor: int, pieces: Sequence[memoryview], offset: int) -> int:
        length = sum(map(len, pieces))
        data = os.pread(descriptor, rng.randint(min(1, length), length), offset)
        at = 0
        for piece in pieces:
            part = data[at:at + len(piece)]
            piece[:len(part)] = part
            at += len(part)
        return len(data)

    def preadv(descriptor: int, pieces: Sequence[memoryview], offset: int, flags: int = 0) -> int:
        if flags and kind == "no answer":
            raise OSError(errno.EOPNOTSUPP, "cannot say what is cached")
        if flags and (kind == "cold" or (kind == "some of each" and rng.random() < 0.5)):
            raise BlockingIOError
        return real(descriptor, pieces, offset) if kind == "cached" else some(descriptor, pieces, offset)

    return preadv


@contextmanager
def bounds(rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Others for what is read and written at once."""
    with monkeypatch.context() as patch:
        for name, values in {"_STRETCH_BYTES": (100, 4096, 20_000, 1 << 20), "_MAX_GAP_BYTES": (0, 1, 300, 16 << 10),
                             "_MOST_SPANS": (1, 2, 256), "_HAND_OVER_BYTES": (4096, 4 << 20)}.items():
            patch.setattr(rewriting, name, rng.choice(values))
        patch.setattr(os, "preadv", reader(rng))
        yield


def entries_in(folder: Path, rng: random.Random) -> list[IndexEntry]:
    """What is to be copied from up to three segments, with records of all sizes."""
    found: list[IndexEntry] = []
    for position in range(rng.randint(1, 3)):
        sizes = [rng.choice((0, 1, 10, 300, rng.randrange(3000), rng.randrange(20_000)))
                 for _ in range(rng.randint(1, 40))]
        found += [entry for entry in source(folder, position, sizes=sizes) if rng.random() < 0.6]
    return found or source(folder)


class Copying:
    """Attempts at one file.

    Args:
        folder: where.
        rng: chooses everything.
    """

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self._folder, self._rng, self._entries = folder, rng, entries_in(folder, rng)
        self._damaged: IndexEntry | None = None
        self._kept: Path | None = None
        self._expected = self._run("expected", Budget())
        self._bytes = Path(self._expected.files[0].path).read_bytes()

    def _run(self, name: str, budget: Budget) -> RewriteResult:
        return run(task_for(self._folder, self._entries, kept=name != "expected",
                            buffer_bytes=self._rng.choice((1, 4096, 5000, 8192, 30_000, 1 << 20)),
                            resume_from=None if self._kept is None else str(self._kept)), name, budget=budget)

    def _left(self, name: str = "") -> list[Path]:
        return sorted(self._folder.glob(f"*.attempt-{name}*"))

    def damage(self) -> None:
        """Flip a bit of a record."""
        self._damaged = self._rng.choice(self._entries)
        self._flip_source(self._rng.randrange(self._damaged.size))

    def _flip_source(self, at: int) -> None:
        assert self._damaged is not None
        self._at = at
        flip(self._folder / self._damaged.segment.log_file, self._damaged.offset + at)

    def attempt(self, number: int) -> bool:
        """Another one, which ends where its budget does; whether it has come to the end."""
        rng, name = self._rng, f"attempt-{number}."
        budget = Budget() if number >= LAST else Budget(total_bytes=rng.randrange(len(self._bytes)))
        try:
            result = self._run(name[:-1], budget)
        except BudgetSpent:
            (self._kept,) = self._left(f"{number}.")
            data = self._kept.read_bytes()
            assert self._bytes.startswith(data)
            if rng.random() < 0.2:
                os.truncate(self._kept, rng.randint(0, len(data)))
            elif data and rng.random() < 0.2:
                flip(self._kept, rng.randrange(len(data)))
            return False
        except CorruptData as error:
            assert self._damaged is not None
            assert error.offset == self._damaged.offset
            assert not self._left(f"{number}.")
            self._flip_source(self._at)
            self._damaged = self._kept = None
            return False
        (file,) = result.files
        assert Path(file.path).read_bytes() == self._bytes
        assert attrs.evolve(file, path="") == attrs.evolve(self._expected.files[0], path="")
        assert self._left() == [Path(file.path)]
        return True


def test_whatever_ends_a_copy_and_however_files_are_read_the_same_bytes_come_of_it(
        effort: Effort, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(effort(12, 3_000)):
        rng = random.Random(seed)
        with tempfile.TemporaryDirectory() as folder:
            copying = Copying(Path(folder), rng)
            if rng.random() < 0.3:
                copying.damage()
            with bounds(rng, monkeypatch):
                # Of the last two one may find the damage.
                assert any(copying.attempt(number) for number in range(LAST + 2))
