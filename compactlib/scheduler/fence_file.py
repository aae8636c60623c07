"""A fence in a folder: for the processes of one machine, and able to guard changes of files (`fence.py`).

One file a resource, named by the SHA-256 of the resource's name; one for the floor; and `LOCK`, locked by whoever
changes anything or runs a guarded step. The system gives the lock back when its holder dies. Records are replaced as a
whole and durably, so that a crash at any point leaves the old one or the new one (`docs/formats/scheduler-fence.md`).
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from compactlib.clock import Clock, SystemClock
from compactlib.errors import Busy, CompactlibError, StorageError
from compactlib.files import Files, LocalFiles, StrPath, list_folder, write_durably
from compactlib.folder_lock import FolderLock
from compactlib.scheduler.fence import (
    Admission,
    Commitment,
    audit_record,
    check_admission,
    check_commit,
    check_names,
    check_token,
    decode_record,
    encode_record,
    noted,
    refuse_above_guard,
)

SUFFIX = ".fence"
FLOOR_NAME = "FLOOR"
_LOOK_AGAIN_SECONDS = 0.01


class FileFence:
    """A `LockingFence` whose records are files in a folder of their own, on a local disk.

    Not for network file systems, whose locks may end while their holder goes on. An admission or commit that changes
    something costs two syncs. Beside what `Fence` names, the methods raise `StorageError` when the disk refuses, after
    which the record is as before or as wanted: call again.

    Args:
        folder: made if it is not there; for fences alone.
        files: how the disk is changed.
        clock: for the waiting.
        wait_seconds: how long a call waits for others, in this process or another.

    Raises:
        StorageError: the folder cannot be made.
    """

    def __init__(self, folder: StrPath, *, files: Files | None = None, clock: Clock | None = None,
                 wait_seconds: float = 30.0) -> None:
        self._folder = os.path.abspath(folder)
        self._files: Files = LocalFiles() if files is None else files
        self._clock: Clock = SystemClock() if clock is None else clock
        self._wait_seconds = wait_seconds
        self._lock = threading.RLock()
        self._depth = 0
        self._guarded: dict[str, int] = {}
        if not os.path.isdir(self._folder):
            try:
                self._files.make_folder(self._folder)
            except StorageError:
                # Another process may have been faster.
                if not os.path.isdir(self._folder):
                    raise
        # Also if it was there: whoever made it may have died before this.
        self._files.sync_folder(os.path.dirname(self._folder))

    def admit(self, resource: str, token: int) -> Admission:
        """See `Fence.admit`."""
        check_names(resource, token)
        with self._held():
            refuse_above_guard(self._guarded, resource, token)
            before = self._record(resource)
            record = check_admission(resource, token, before, self._floor())
            self._write(record, before)
            return record

    def commit(self, resource: str, token: int, value: bytes) -> Admission:
        """See `Fence.commit`."""
        check_names(resource, token)
        with self._held():
            before = self._record(resource)
            record = check_commit(resource, token, bytes(value), before, self._floor())
            self._write(record, before)
            return record

    def committed(self, resource: str) -> Commitment | None:
        """See `Fence.committed`. Takes no lock."""
        check_names(resource, 0)
        record = self._record(resource)
        return None if record is None else record.committed

    def raise_floor(self, token: int) -> int:
        """See `Fence.raise_floor`. Reads every record; may be interrupted and called again."""
        check_token(token)
        with self._held():
            floor = max(token, self._floor())
            if floor > self._floor():
                write_durably(self._files, os.path.join(self._folder, FLOOR_NAME),
                              [encode_record(Admission("", floor, None))])
            old = [path for path, record in self._records() if record.token < floor]
            for path in old:
                self._files.unlink(path)
            return len(old)

    @contextmanager
    def guard(self, resource: str, token: int) -> Iterator[Admission]:
        """See `LockingFence.guard`. Guarded steps of all resources of this folder run one at a time."""
        with self._held():
            record = self.admit(resource, token)
            with noted(self._guarded, resource, token):
                yield record

    def audit(self) -> None:
        """See `Fence.audit`.

        Raises:
            CompactlibError: a record contradicts itself, or lies under another resource's name.
            CorruptData: a record is damaged.
        """
        for path, record in self._records():
            # A record below the floor is one that an interrupted removal has not come to.
            audit_record(record, 0)
            if path != self._path(record.resource):
                raise CompactlibError(f"{path} holds the record of {record.resource!r}, which belongs into "
                                      f"{self._path(record.resource)}")

    def _write(self, record: Admission, before: Admission | None) -> None:
        if record != before:
            write_durably(self._files, self._path(record.resource), [encode_record(record)])

    def _record(self, resource: str) -> Admission | None:
        path = self._path(resource)
        data = _contents(path)
        return None if data is None else decode_record(data, path)

    def _records(self) -> Iterator[tuple[str, Admission]]:
        for name in list_folder(self._folder):
            if name.endswith(SUFFIX):
                path = os.path.join(self._folder, name)
                data = _contents(path)
                if data is not None:
                    yield path, decode_record(data, path)

    def _floor(self) -> int:
        path = os.path.join(self._folder, FLOOR_NAME)
        data = _contents(path)
        return 0 if data is None else decode_record(data, path).token

    def _path(self, resource: str) -> str:
        return os.path.join(self._folder, hashlib.sha256(resource.encode()).hexdigest()[:32] + SUFFIX)

    @contextmanager
    def _held(self) -> Iterator[None]:
        deadline = self._clock.monotonic() + self._wait_seconds
        if not self._lock.acquire(timeout=self._wait_seconds):
            raise Busy(f"a guarded step of this process has been running for more than {self._wait_seconds} seconds "
                       f"in {self._folder}; wait for it")
        try:
            # Within a guarded step, the thread that runs it holds the folder already.
            if self._depth:
                yield
                return
            with self._folder_lock(deadline):
                self._depth += 1
                try:
                    yield
                finally:
                    self._depth -= 1
        finally:
            self._lock.release()

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


def _contents(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError.from_os(error, "read", path) from error
