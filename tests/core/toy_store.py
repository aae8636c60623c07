# SPDX-License-Identifier: Apache-2.0
"""A store of many logs, the smallest that a guard can be tried with: a file for each log, a line for each entry."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Self

from compactlib.guard import Guard


class ToyFile:
    """Lines in a file; `sync` is called after each write."""

    def __init__(self, path: Path, sync: Callable[[int], object]) -> None:
        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
        self._sync = sync
        # The torn last line after a crash or an interrupt.
        os.ftruncate(self._descriptor, path.read_bytes().rfind(b"\n") + 1)

    def lines(self) -> list[bytes]:
        assert self._descriptor is not None
        return os.pread(self._descriptor, 1 << 20, 0).splitlines()

    def write(self, line: bytes) -> None:
        assert self._descriptor is not None
        for part in (line[:1], line[1:] + b"\n"):
            os.write(self._descriptor, part)
        self._sync(self._descriptor)

    def close(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)


class ToyLog:
    """Entries in memory and in a file."""

    def __init__(self, path: Path, sync: Callable[[int], object] = os.fsync) -> None:
        self.guard = Guard(f"the log {path.stem}")
        with self.guard.lock:
            self.guard.begin("opening")
            self._file = ToyFile(path, sync)
            self.guard.keep(self._file)
            self._entries = self._file.lines()
            self.guard.done()

    def append(self, entry: bytes) -> int:
        """How many entries it has with this one."""
        with self.guard.lock:
            self.guard.require_open()
            if not entry.isalnum():
                raise ValueError("letters and digits alone")
            self.guard.begin("an append")
            self._entries.append(entry)
            self._file.write(entry)
            self.guard.done()
            return len(self._entries)

    def entries(self) -> list[bytes]:
        """As the file has them, without the lock."""
        with self.guard.use():
            self.guard.require_open()
            return self._file.lines()

    def close(self) -> None:
        self.guard.release()


class ToyStore:
    """Has the folder for itself."""

    def __init__(self, folder: Path, names: list[str], timeout: float = 30.0) -> None:
        self._folder = folder
        self.guard = Guard(f"the store in {folder}")
        with self.guard.lock:
            self.guard.begin("opening")
            self.guard.lock_folder(folder, timeout=timeout)
            self.logs = {name: self._opened(name) for name in names}
            self.guard.done()

    def _opened(self, name: str) -> ToyLog:
        log = ToyLog(self._folder / f"{name}.log")
        self.guard.keep(log)
        return log

    def log(self, name: str) -> ToyLog:
        """The log, opened again if it closed itself."""
        with self.guard.lock:
            self.guard.require_open()
            log = self.logs[name]
            if not log.guard.is_open:
                log.close()
                log = self.logs[name] = self._opened(name)
            return log

    def close(self) -> None:
        self.guard.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
