# SPDX-License-Identifier: Apache-2.0
"""`FileFence`: a fence in a folder, for the processes of one machine, which can guard changes of files (`fence.py`).

Each resource has a file, named by the SHA-256 of its name; the floor has a file; and `LOCK` is locked by a process that
makes a change or runs a guarded step. The system releases the lock when its holder dies. Records are replaced as a
whole and durably, so that a crash leaves the old record or the new one (`docs/formats/fence.md`). A record of another
process may not be durable: that process may have been killed before its sync. So a record found on disk is synced
before a call depends on it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from compactlib.clock import Clock, SystemClock
from compactlib.errors import Busy, ReadOnly
from compactlib.fences.fence import FORMATS, Admission, LockingFence, ValueT
from compactlib.files.disk import (
    Files,
    LocalFiles,
    StrPath,
    list_folder,
    local_path,
    make_missing_folder,
    require_folder,
    sync_names,
)
from compactlib.files.durable_record import DurableRecord
from compactlib.files.folder_lock import FolderLock

SUFFIX = ".fence"
FLOOR_NAME = "FLOOR"
_LOOK_AGAIN_SECONDS = 0.01
_MAX_KNOWN = 10_000


class FileFence(LockingFence):
    """A `LockingFence` with its records in a folder on a local disk.

    Not for network file systems, where a lock may end before its holder does. An admission or commit that changes a
    record costs two syncs; finding a record of another process costs one. All methods, also `committed`, lock the
    folder: they wait for a guarded step, and need the right to write. They also raise `StorageError` when the disk
    refuses; the old or the new record is then in force: call again.

    Several processes may open one folder. A forked child makes an object of its own.

    Args:
        folder: a folder for this fence alone; created if absent.
        log: id of the log of the tokens; stored, and another log is refused with `OtherLog`.
        files: the disk.
        clock: the clock for the waits.
        wait_seconds: how long a call waits for other threads and processes.
        create: whether the folder may be created. A fence in a new folder knows no token.

    Raises:
        NotFound: the folder does not exist, and `create` is not set.
        InvalidInput: `wait_seconds` is negative, or too long.
        StorageError: the folder cannot be made.
    """

    def __init__(self, folder: StrPath, *, log: str = "", files: Files | None = None, clock: Clock | None = None,
                 wait_seconds: float = 30.0, create: bool = True) -> None:
        super().__init__(wait_seconds)
        self._folder = local_path(folder)
        self._files: Files = LocalFiles() if files is None else files
        self._log = log
        self._clock: Clock = SystemClock() if clock is None else clock
        # The records that are known to be durable; and whether a sync failed, after which later syncs prove nothing.
        self._durable: dict[str, object] = {}
        self._must_write = False
        self._is_locked = False
        require_folder(self._folder, "the fence's tokens", create=create)
        make_missing_folder(self._files, self._folder)
        # Also for an existing folder: its creator may have died before this sync.
        sync_names(self._files, self._folder)
        self._floor_place = os.path.join(self._folder, FLOOR_NAME)

    def _read(self, place: str, kind: type[ValueT]) -> ValueT | None:
        with self._held():
            kept = self._kept(place, kind)
            record = kept.read()
            if record is not None:
                self._write(kept, record, record)
            return record

    def _update(self, place: str, kind: type[ValueT], change: Callable[[ValueT | None], ValueT]) -> ValueT:
        kept = self._kept(place, kind)
        before = kept.read()
        after = change(before)
        self._write(kept, after, before)
        return after

    def _place(self, resource: str) -> str:
        return os.path.join(self._folder, hashlib.sha256(resource.encode()).hexdigest()[:32] + SUFFIX)

    def _places(self) -> list[str]:
        return [os.path.join(self._folder, name) for name in list_folder(self._folder) if name.endswith(SUFFIX)]

    def _forget(self, place: str, floor: int) -> bool:
        record = self._kept(place, Admission).read()
        is_old = record is not None and record.token < floor
        if is_old:
            self._files.unlink(place)
            self._durable.pop(place, None)
        return is_old

    def _kept(self, place: str, kind: type[ValueT]) -> DurableRecord[ValueT]:
        return DurableRecord(self._files, place, FORMATS[kind])

    def _write(self, kept: DurableRecord[ValueT], record: ValueT, before: ValueT | None) -> None:
        """Make a record durable. A record found on disk may not be: its writer may have died before the last sync."""
        if record == before == self._durable.get(kept.path):
            return
        try:
            if record == before and not self._must_write:
                self._files.sync_folder(self._folder)
            else:
                kept.write(record)
        except ReadOnly:
            raise
        except BaseException:
            self._must_write = True
            raise
        if len(self._durable) >= _MAX_KNOWN:
            self._durable.clear()
        self._durable[kept.path] = record

    @contextmanager
    def _held(self) -> Iterator[None]:
        deadline = self._clock.monotonic() + self._wait_seconds
        with super()._held():
            # This thread may have locked the folder already.
            if self._is_locked:
                yield
                return
            while True:
                try:
                    folder_lock = FolderLock(self._folder)
                    break
                except Busy:
                    if self._clock.monotonic() >= deadline:
                        raise
                    self._clock.sleep(_LOOK_AGAIN_SECONDS)
            try:
                with folder_lock:
                    self._is_locked = True
                    yield
            finally:
                self._is_locked = False
                folder_lock.release()  # again, after an interrupt of the first, whose traceback would keep the lock

    def __repr__(self) -> str:
        return f"FileFence({self._folder!r})"
