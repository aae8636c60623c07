# SPDX-License-Identifier: Apache-2.0
"""Rewrite tasks for the Spark tests: one that does its work, and others that die or misbehave in one way each."""

from __future__ import annotations

import os
import signal
import threading
import zlib
from pathlib import Path
from typing import Any

import attrs

import compactlib
from compactlib.clock import SystemClock
from compactlib.errors import CompactlibError, CorruptData
from compactlib.executors import Attempt, RewriteResult, RewrittenFile
from compactlib.files import LocalFiles, OutFile
from compactlib.files.disk import StrPath

CHUNK_BYTES = 1000
STRAGGLES_SECONDS = 100.0


@attrs.frozen
class CopyTask:
    """Copies `source` into `folder` under a name of the attempt's, 1000 bytes at a time, and emits its place."""

    name: str
    source: str
    folder: str

    def run(self, attempt: Attempt) -> RewriteResult:
        data = Path(self.source).read_bytes()
        path = Path(self.folder) / f"{self.name}-{attempt.id}"
        with path.open("xb") as out:
            for start in range(0, len(data), CHUNK_BYTES):
                chunk = data[start:start + CHUNK_BYTES]
                attempt.budget.spend(len(chunk))
                out.write(chunk)
        attempt.observer.event("copied_bytes", add=len(data), kind="test")
        attempt.observer.event("copied", task=self.name, folder=os.getcwd(), library=compactlib.__file__)
        file = RewrittenFile(str(path), len(data), 1, zlib.crc32(data))
        return RewriteResult(task=self.name, attempt=attempt.id, files=(file,), bytes_read=len(data),
                             bytes_written=len(data), seconds=0.5)


@attrs.frozen
class KilledOnceTask(CopyTask):
    """Dies in its first attempt, in the middle of its output; `marker` remembers that it did."""

    marker: str

    def run(self, attempt: Attempt) -> RewriteResult:
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return super().run(attempt)
        (Path(self.folder) / f"{self.name}-{attempt.id}").write_bytes(b"half of")
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("a killed process goes no further")


@attrs.frozen
class MeetingTask(CopyTask):
    """Copies once two tasks with the same `marker` run: the workers of two slots both take part."""

    marker: str

    def run(self, attempt: Attempt) -> RewriteResult:
        Path(f"{self.marker}-{self.name}").touch()
        while len(list(Path(self.marker).parent.glob(f"{Path(self.marker).name}-*"))) < 2:
            attempt.clock.sleep(0.01)
        return super().run(attempt)


@attrs.frozen
class DiesFirstTask:
    """Runs another task, and in its first attempt dies when that is done; `marker` remembers that it did."""

    name: str
    task: Any
    marker: str

    def run(self, attempt: Attempt) -> RewriteResult:
        result: RewriteResult = self.task.run(attempt)
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return result
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("a killed process goes no further")


@attrs.frozen
class AlwaysKilledTask:
    """Dies in every attempt."""

    name: str

    def run(self, attempt: Attempt) -> RewriteResult:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("a killed process goes no further")


class LeafError(CompactlibError):
    """An error of a user's own, with a field and a constructor that pickle's default would trip over."""

    def __init__(self, message: str, *, place: int) -> None:
        super().__init__(message)
        self.place = place


@attrs.frozen
class FailingTask:
    """Raises: `kind` says what."""

    name: str
    kind: str

    def run(self, attempt: Attempt) -> RewriteResult:
        if self.kind == "corrupt":
            raise CorruptData(path="/a/b", offset=7, expected="crc 1", found="crc 2", index=9)
        if self.kind == "leaf":
            raise LeafError("a leaf", place=3)
        if self.kind == "unpicklable":
            error = CompactlibError("holds a lock")
            error.lock = threading.Lock()  # type: ignore[attr-defined]
            raise error
        raise ZeroDivisionError("foreign")


@attrs.frozen
class ReturningTask:
    """Returns `value`, or (for `PARTITION`) the number of its partition."""

    name: str
    value: Any

    def run(self, attempt: Attempt) -> RewriteResult:
        if self.value != PARTITION:
            return self.value  # type: ignore[no-any-return]
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        return described(self, attempt, f"partition://{context.partitionId()}")


@attrs.frozen
class WeightedTask:
    """Another task, under a name and with a weight of its own."""

    name: str
    task: Any
    weight: float = 0.0

    def run(self, attempt: Attempt) -> RewriteResult:
        result: RewriteResult = self.task.run(attempt)
        return attrs.evolve(result, task=self.name)


@attrs.frozen
class WaitingTask:
    """Creates a file next to `path`, and waits until `path` exists."""

    name: str
    path: str

    def run(self, attempt: Attempt) -> RewriteResult:
        Path(f"{self.path}.{self.name}").touch()
        while not os.path.exists(self.path):
            attempt.clock.sleep(0.01)
        return described(self, attempt, "waited://")


@attrs.frozen
class NamingTask:
    """Claims to have written `size` bytes to `path`, made of some files."""

    name: str
    path: str
    size: int
    source_files: tuple[str, ...] = ()

    def run(self, attempt: Attempt) -> RewriteResult:
        return described(self, attempt, self.path, self.size)


class FullDisk(LocalFiles):
    """A disk that takes names but no bytes: the kernel itself says that there is no space left."""

    def create(self, path: StrPath) -> OutFile:
        out = super().create(path)
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, out.fileno(), inheritable=False)
        os.close(full)
        return out


class StragglingFiles(LocalFiles):
    """A disk on which the first attempt pauses with its file open, until its job has published without it.

    Args:
        marker: is made by the first attempt, with the name of its file in it. It continues when `<marker>.published`
            exists, and then creates `<marker>.woke`.
    """

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def create(self, path: StrPath) -> OutFile:
        out = super().create(path)
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return out
        Path(self.marker).write_text(os.fspath(path))
        clock = SystemClock()
        until = clock.monotonic() + STRAGGLES_SECONDS
        while not os.path.exists(f"{self.marker}.published") and clock.monotonic() < until:
            clock.sleep(0.02)
        Path(f"{self.marker}.woke").touch()
        return out


@attrs.frozen
class ExecutorKilledOnceTask(CopyTask):
    """Kills the executor that it runs in, Java and all, in its first attempt; `marker` remembers that it did."""

    marker: str

    def run(self, attempt: Attempt) -> RewriteResult:
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return super().run(attempt)
        (Path(self.folder) / f"{self.name}-{attempt.id}").write_bytes(b"half of")
        # This process was forked by PySpark's daemon, which is the executor's child.
        executor = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(executor, signal.SIGKILL)
        while True:
            attempt.clock.sleep(1)


PARTITION = "partition"


def described(task: Any, attempt: Attempt, path: str, size: int = 0) -> RewriteResult:
    """A result with one file that is only a name."""
    file = RewrittenFile(path, size, 0, 0)
    return RewriteResult(task=task.name, attempt=attempt.id, files=(file,), bytes_read=0, bytes_written=0, seconds=0.0)
