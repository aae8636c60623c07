# SPDX-License-Identifier: Apache-2.0
"""The values of the toy store: its view, choice, policy, plan, status, and the task that its compactions run."""

from __future__ import annotations

import contextlib
import zlib
from pathlib import Path
from typing import Any

import attrs

from compactlib.executors import Attempt, RewriteResult, RewrittenFile
from compactlib.files import Files, OutFile
from compactlib.report import Printed


@attrs.frozen
class LineFile:
    """One file: its number, its bytes, and its garbage bytes."""

    number: int
    size: int
    garbage: int


@attrs.frozen
class LineView:
    """The view of a policy."""

    store: str
    files: tuple[LineFile, ...]

    def to_dicts(self) -> list[dict[str, Any]]:
        return [attrs.asdict(file) for file in self.files]


@attrs.frozen
class LineChoice:
    """The files to rewrite."""

    files: tuple[LineFile, ...]
    why: str

    @property
    def is_empty(self) -> bool:
        return not self.files


@attrs.frozen
class MinGarbage:
    """Takes the files with a least amount of garbage."""

    min_bytes: int = 1

    @property
    def name(self) -> str:
        return "min-garbage"

    def choose(self, view: LineView, now: float) -> LineChoice:
        chosen = tuple(file for file in view.files if file.garbage >= self.min_bytes)
        most = max((file.garbage for file in view.files), default=0)
        return LineChoice(chosen, f"{len(chosen)} files have garbage" if chosen else
                          f"the most garbage in a file is {most} bytes, below min_bytes={self.min_bytes}; lower it")


@attrs.frozen(repr=False)
class LinePlan(Printed):
    """The plan of a compaction."""

    store: str
    chosen: tuple[LineFile, ...]
    why: str
    bytes_available: int | None

    @property
    def is_empty(self) -> bool:
        return not self.chosen

    @property
    def bytes_to_copy(self) -> int:
        return sum(file.size - file.garbage for file in self.chosen)

    @property
    def bytes_freed(self) -> int:
        return sum(file.garbage for file in self.chosen)

    @property
    def bytes_needed(self) -> int:
        return self.bytes_to_copy

    def to_dicts(self) -> list[dict[str, Any]]:
        return [attrs.asdict(file) for file in self.chosen]

    def _summary(self) -> str:
        return f"{len(self.chosen)} files, {self.bytes_to_copy} bytes to copy, {self.bytes_freed} freed: {self.why}"


@attrs.frozen(repr=False)
class LineStatus(Printed):
    is_busy: bool
    files: int
    last_error: str = ""
    failures: int = 0

    def to_dicts(self) -> list[dict[str, Any]]:
        return [attrs.asdict(self)]

    def _summary(self) -> str:
        return f"{self.files} files{', busy' * self.is_busy}"


@attrs.frozen
class Clean:
    """Writes one file without its garbage, under a private name."""

    name: str
    path: str
    files: Files

    def kept(self) -> bytes:
        return b"".join(line for line in Path(self.path).read_bytes().splitlines(True) if not line.startswith(b"#"))

    def sync(self, out: OutFile) -> None:
        out.sync()

    def run(self, attempt: Attempt) -> RewriteResult:
        kept = self.kept()
        attempt.budget.spend(len(kept))
        target = f"{self.path}.{attempt.id}.new"
        with contextlib.closing(self.files.create(target)) as out:
            out.write_at(0, [kept])
            self.sync(out)
        attempt.observer.event("progress", work=self.name, done=1, total=1, unit="files")
        done = RewrittenFile(target, len(kept), kept.count(b"\n"), zlib.crc32(kept))
        return RewriteResult(task=self.name, attempt=attempt.id, files=(done,), bytes_read=0, bytes_written=len(kept),
                             seconds=0.0)
