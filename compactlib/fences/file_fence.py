# SPDX-License-Identifier: Apache-2.0
"""A fence in a folder: for the processes of one machine, and able to guard changes of files (`fence.py`).

One file a resource, named by the SHA-256 of the resource's name; one for the floor; and `LOCK`, locked by the process
that changes anything or runs a guarded step. The system gives the lock back when its holder dies. Records are replaced
as a whole and durably, so that a crash at any point leaves the old one or the new one
(`docs/formats/fence.md`). A record that another process wrote may not be durable yet: that process may have
been killed before its sync. So whatever is found is synced before anything is answered on top of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from compactlib._forks import OfOneProcess
from compactlib.clock import Clock, SystemClock
from compactlib.errors import Busy, CorruptData, ReadOnly, StorageError, Unsupported
from compactlib.fences.fence import (
    FLOORS,
    RECORDS,
    Admission,
    Floor,
    GuardingFence,
    Rule,
    check_log,
)
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

RecordT = TypeVar("RecordT", Admission, Floor)

SUFFIX = ".fence"
FLOOR_NAME = "FLOOR"
_LOOK_AGAIN_SECONDS = 0.01
_MAX_KNOWN = 10_000


class FileFence(OfOneProcess, GuardingFence):
    """A `LockingFence` whose records are files in a folder of their own, on a local disk.

    Not for network file systems, whose locks may end while their holder goes on. An admission or commit that changes
    something costs two syncs, one that finds what another process wrote costs one. Beside what `Fence` names, the
    methods raise `StorageError` when the disk refuses, after which the record is as before or as wanted: call again.

    Any process may make one for a folder, and a fork may go on with that of its parent.

    Args:
        folder: made if it is not there; for this fence alone.
        log: the id of the log whose tokens it admits, which it stores; those of another one are `OtherLog`.
        files: how the disk is changed.
        clock: for the waiting.
        wait_seconds: how long a call waits for others, in this process or another.
        create: whether the folder may be made. A fence in another folder than before knows no token.

    Raises:
        NotFound: the folder is not there, and `create` is not set.
        InvalidInput: `wait_seconds` is negative, or no finite number.
        StorageError: the folder cannot be made.
    """

    def __init__(self, folder: StrPath, *, log: str = "", files: Files | None = None, clock: Clock | None = None,
                 wait_seconds: float = 30.0, create: bool = True) -> None:
        GuardingFence.__init__(self, wait_seconds)
        self._folder = local_path(folder)
        self._files: Files = LocalFiles() if files is None else files
        self._log = log
        self._clock: Clock = SystemClock() if clock is None else clock
        # What is known to be durable, and what may be half so because this process's own sync failed.
        self._durable: dict[str, Admission | Floor] = {}
        self._doubtful: set[str] = set()
        require_folder(self._folder, "the fence's tokens", create=create)
        OfOneProcess.__init__(self)
        make_missing_folder(self._files, self._folder)
        # Also if it was there: its maker may have died before this.
        sync_names(self._files, self._folder)
        self._floors = DurableRecord(self._files, os.path.join(self._folder, FLOOR_NAME), FLOORS)

    def _inherit(self) -> None:
        # A fork may use it: locks that its parent's threads hold are not its own, and are never released here.
        self._begin()

    def _begin(self) -> None:
        super()._begin()
        self._depth = 0

    def _replace(self, resource: str, rule: Rule) -> Admission:
        kept = self._kept(resource)
        before = kept.read()
        record = rule(before, self._stored_floor().token)
        self._write(kept, record, before)
        return record

    def _record(self, resource: str) -> Admission | None:
        """Return the record, made durable. Takes no lock, except after a write that the disk refused."""
        kept = self._kept(resource)
        is_doubtful = kept.path in self._doubtful
        with self._held() if is_doubtful else contextlib.nullcontext():
            record = kept.read()
            if record is not None and is_doubtful:
                self._write(kept, record, record)
            elif record is not None:
                # A disk that is mounted for reading keeps what it has.
                with contextlib.suppress(ReadOnly):
                    self._make_durable(kept.path, record)
            return record

    def _raise_floor(self, token: int) -> int:
        with self._held():
            before = self._floors.read()
            floor = check_log(before, self._log, self._folder)
            floor = Floor(floor.log, max(token, floor.token))
            # Before any record goes: below a floor that a power failure takes back, they are wanted.
            if floor.token:
                self._write(self._floors, floor, before)
            return floor.token

    def _forget_below(self, floor: int) -> int:
        wrong: list[Exception] = []
        forgotten = 0
        with self._held():
            for path in self._paths():
                try:
                    record = DurableRecord(self._files, path, RECORDS).read()
                except (CorruptData, Unsupported) as error:
                    wrong.append(error)
                    continue
                if record is not None and record.token < floor:
                    self._files.unlink(path)
                    self._durable.pop(path, None)
                    forgotten += 1
        if wrong:
            raise wrong[0]
        return forgotten

    def _write(self, kept: DurableRecord[RecordT], record: RecordT, before: RecordT | None) -> None:
        if record == before and kept.path not in self._doubtful:
            self._make_durable(kept.path, record)
            return
        try:
            kept.write(record)
        except BaseException:
            self._doubtful.add(kept.path)
            raise
        self._doubtful.discard(kept.path)
        self._note_durable(kept.path, record)

    def _make_durable(self, path: str, record: Admission | Floor) -> None:
        """The record was found: its writer may have been killed before the name was durable."""
        if self._durable.get(path) == record:
            return
        try:
            self._files.sync_folder(self._folder)
        except ReadOnly:
            raise
        except StorageError:
            # A later sync is no proof: it is to be written anew.
            self._doubtful.add(path)
            raise
        self._note_durable(path, record)

    def _note_durable(self, path: str, record: Admission | Floor) -> None:
        if len(self._durable) >= _MAX_KNOWN:
            self._durable.clear()
        self._durable[path] = record

    def _paths(self) -> list[str]:
        return [os.path.join(self._folder, name) for name in list_folder(self._folder) if name.endswith(SUFFIX)]

    def _kept(self, resource: str) -> DurableRecord[Admission]:
        name = hashlib.sha256(resource.encode()).hexdigest()[:32] + SUFFIX
        return DurableRecord(self._files, os.path.join(self._folder, name), RECORDS)

    def _stored_floor(self) -> Floor:
        """Return the floor. It names the log, and is stored before the first token of a log that has an id."""
        before = self._floors.read()
        floor = check_log(before, self._log, self._folder)
        if self._log:
            self._write(self._floors, floor, before)
        return floor

    @contextmanager
    def _held(self) -> Iterator[None]:
        deadline = self._clock.monotonic() + self._wait_seconds
        with super()._held():
            # Within a guarded step, the thread that runs it holds the folder already.
            if self._depth:
                yield
                return
            folder_lock = self._folder_lock(deadline)
            try:
                self._depth = 1
                try:
                    yield
                finally:
                    self._depth = 0
            finally:
                try:
                    folder_lock.release()
                except BaseException:
                    # An interrupt at its beginning; who keeps the traceback keeps the lock from being collected.
                    folder_lock.release()
                    raise

    def _folder_lock(self, deadline: float) -> FolderLock:
        while True:
            try:
                return FolderLock(self._folder)
            except Busy:
                if self._clock.monotonic() >= deadline:
                    raise
                self._clock.sleep(_LOOK_AGAIN_SECONDS)

    def __repr__(self) -> str:
        return f"FileFence({self._folder!r})"
