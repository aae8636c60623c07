# SPDX-License-Identifier: Apache-2.0
"""`Wal`: the file to which all logs of a store append, with an fsync for the queued writes of many threads.

Writes are queued in the order of each log, and made durable by `sync`: the first thread that syncs writes the whole
queue, the others wait for it. Frames leave the queue when they are durable. A batch that the disk refuses for lack of
space is cut off the file again. Any other failure, or an interrupt within a batch, closes the store: the outcome is
unknown, and opening reads it from the disk. The guard's lock is held during a batch.

A file that exceeds its limit is closed, and the next file is begun; each file names the logs of its frames. Closed
files are removed, oldest first, after their entries are durable in segments.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence

from compactlib.errors import DiskFull, StorageError
from compactlib.files.disk import OutFile, StrPath, look_at, may_be_there, write_durably
from compactlib.files.zeros_ahead import ZerosAhead
from compactlib.guard import Guard
from compactlib.indexset import IndexSet
from compactlib.raftlog.options import StoreOptions
from compactlib.raftlog.wal.frames import (
    FILE_HEADER,
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    MARK,
    WAL_TEMPORARY_SUFFIX,
    Frame,
    RecoveredWal,
    log_frame,
    salt_of,
    wal_name,
)

_LAST_SECOND = 1.8e10
"""The last second whose nanoseconds fit into 64 bits, rounded down."""


class Wal:
    """The write-ahead log of a store. Thread-safe.

    Args:
        folder: the folder of the WAL files, locked by this process.
        guard: the guard of the store, which a failure in the WAL closes.
        options: the store's settings: the limits of a file, the disk, and the clock that stamps the files.
        recovered: the content of the folder.

    Attributes:
        smallest_live: by log, the index below which everything is dead; a log sets it with each snapshot.
        queued_bytes: bytes that are not durable yet.
        number: the number of the current file.
        closed_files: count of the files before the current file.
        durable_ticket: everything up to this ticket is durable.
        size_bytes: durable bytes of the current file.
        is_overfull: whether it has twice its limit, because the disk has refused the next file.
    """

    def __init__(self, folder: StrPath, guard: Guard, options: StoreOptions, recovered: RecoveredWal) -> None:
        self._folder = os.fspath(folder)
        self.guard = guard
        self._options = options
        self._files = options.log.files
        self._queueing = threading.Lock()
        self._queue: list[tuple[str, Frame]] = []  # with the ids of their logs
        # Each file repeats the frames of damaged logs; the first file also those that are not proven durable.
        self._held = dict(recovered.frames)
        self._tail = recovered.unproven
        numbers = recovered.numbers or (0,)
        self._oldest = numbers[0] or 1
        self._out: OutFile | None = None
        self.smallest_live: dict[str, int] = {}
        self.queued_bytes: int = 0
        self.number: int = numbers[-1]
        self.closed_files: int = max(self.number - self._oldest, 0)
        self.durable_ticket: int = 0
        self.size_bytes: int = recovered.last_end
        self.is_overfull: bool = False
        guard.keep(self)

    # -- files

    def begin(self, damaged: Collection[str] = ()) -> None:
        """Begin the first file. On a full disk the store can be read, and the first sync begins the file.

        Args:
            damaged: ids of damaged logs: each new file repeats their frames, so that old files can be removed.
        """
        self._held = {log_id: frames for log_id, frames in self._held.items() if log_id in damaged}
        self._tail = tuple(each for each in self._tail if each[0] not in damaged)
        with contextlib.suppress(DiskFull):
            self._begin_file()

    @property
    def is_begun(self) -> bool:
        """Whether everything that opening has found in the WAL is durable."""
        return self._out is not None

    @property
    def is_synced(self) -> bool:
        """Whether every queued write is durable; not while a thread writes a batch, which the disk may refuse."""
        return not self._queue

    def _begin_file(self) -> None:
        """Create the next file durably; it repeats the frames that were not proven durable, and those of damaged logs.

        If the disk refuses, the current file stays, or the store is closed.
        """
        number = self.number + 1
        # The clock may return any time. The time serves people who inspect the file, and the salt of its frames.
        created_ns = int(min(max(self._options.log.clock.now(), 0.0), _LAST_SECOND) * 1e9)
        header = FILE_HEADER.encode(number, self.size_bytes, created_ns)
        salt = salt_of(header)
        held = [(log_id, frame) for log_id, frames in self._held.items() for frame in frames]
        pieces, size, numbers = _encoded([*held, *self._tail], {}, FILE_HEADER_BYTES, salt, repeated=self._held)
        end = FILE_HEADER_BYTES + size
        if pieces:
            # Durable before the file has its name: what is not whole later was not torn, but damaged.
            pieces += MARK.encode(0, end, salt)
        pieces.insert(0, header)
        path = os.path.join(self._folder, wal_name(number))
        try:
            write_durably(self._files, path, pieces, temporary_suffix=WAL_TEMPORARY_SUFFIX)
            out = self._files.open(path)
        except StorageError as error:
            if self._out is not None and may_be_there(path):
                # After a crash the new file may exist or not: neither file may be written any more. (Opening writes
                # to neither, and the next sync begins the new file again.)
                self.guard.fail(error)
            raise
        before, self._out = self._out, out
        self.number, self._salt, self._numbers, self._tail = number, salt, numbers, ()
        self.size_bytes = self._begun = end
        self._entries = 0
        self.is_overfull = False
        self._ahead = ZerosAhead(self._begun, self._begun)
        self.closed_files = number - self._oldest
        if before is not None:
            # Its writes are durable; an error of closing it has no meaning.
            with contextlib.suppress(StorageError):
                before.close()

    def roll_over(self) -> None:
        """Close the current file and begin the next. On a full disk, the current file stays."""
        with self.guard.lock:
            self.guard.begin("the beginning of a WAL file")
            try:
                self._begin_file()
            except StorageError:
                self.guard.undone()
                raise
            self.guard.done()

    def remove_through(self, number: int) -> None:
        """Remove the closed files up to `number`: everything in them is durable in segments. One call at a time.

        Frames of damaged logs are in no segment: the current file has to repeat them first, also where a full disk has
        not taken it yet. The folder is synced after each removal: an older file that reappeared without its successor
        would be damage.

        Raises:
            StorageError: the disk refused.
        """
        self.guard.require_open()
        assert number < self.number, "the current file"
        if self._held:
            self.sync(0)
        while self._oldest <= number:
            path = os.path.join(self._folder, wal_name(self._oldest))
            if look_at(path) is not None:
                self._files.unlink(path)
            self._files.sync_folder(self._folder)
            self._oldest += 1
            self.closed_files = self.number - self._oldest

    # -- queueing

    def queue(self, log_id: str, frame: Frame) -> int:
        """Queue a frame of a log, and return its ticket for `sync`. Called under the log's lock."""
        self.guard.require_open()
        with self._queueing:
            self.queued_bytes += FRAME_HEADER_BYTES + len(frame.data)
            # Last: an interrupt before this statement leaves nothing queued.
            self._queue += ((log_id, frame),)
            return self.durable_ticket + len(self._queue)

    def unconfirmed(self, log_id: str) -> IndexSet:
        """Indexes of a log's entries that are not durable yet. O(queued frames of all logs)."""
        with self._queueing:
            frames = [frame for each, frame in self._queue if each == log_id]
        runs: list[tuple[int, int]] = []
        for frame in frames:
            # It truncates what it does not follow.
            while runs and runs[-1][1] >= frame.first:
                first, _ = runs.pop()
                if first < frame.first:
                    runs.append((first, frame.first - 1))
            if frame.is_sparse:
                runs += ((index, index) for index, _, _ in frame.runs())
            elif frame.entries:
                runs.append((frame.first, frame.last))
        return IndexSet.from_runs(runs)

    def forget(self, log_id: str) -> None:
        """Forget a removed log, without queued writes: later files do not name it."""
        with self.guard.lock:
            self.smallest_live.pop(log_id, None)
            self._held.pop(log_id, None)

    # -- committing

    def sync(self, ticket: int | None = None) -> None:
        """Make the writes up to `ticket` (default: the whole queue) durable.

        Raises:
            StorageError: the disk is full, and the writes stay queued; or the store is closed: the outcome is unknown.
            Closed: the store was closed, or closed itself.
        """
        self.guard.require_open()
        if ticket is None:
            with self._queueing:
                ticket = self.durable_ticket + len(self._queue)
        while self._out is None or self.durable_ticket < ticket:
            with self.guard.lock:
                if self._out is None:
                    self.roll_over()
                if self.durable_ticket < ticket:
                    self._commit()

    def _commit(self) -> None:
        out = self._out
        assert out is not None, "begun by `sync`"
        self.guard.begin("a batch")
        with self._queueing:
            taken, taken_bytes = self._queue[:], self.queued_bytes
        # Truncations are kept, and entries that did not die by a snapshot since they were queued.
        smallest = self.smallest_live
        kept = [(log_id, frame) for log_id, frame in taken if frame.cuts or frame.last >= smallest.get(log_id, 0)]
        if kept:
            try:
                self._write_batch(out, kept)
            except StorageError:
                self.guard.undone()
                raise
        with self._queueing:
            del self._queue[:len(taken)]
            self.queued_bytes -= taken_bytes
            self.durable_ticket += len(taken)
        if kept and not self._queue:
            # The mark proves that everything before is durable. The next batch proves it too, and overwrites the mark.
            with contextlib.suppress(StorageError):
                out.write_at(self.size_bytes, MARK.encode(0, self.size_bytes, self._salt))
        self.guard.done()
        # Without the held frames, which the next file would repeat.
        size = self.size_bytes - (self._begun if self._held else 0)
        filled = max(size / self._options.max_wal_bytes, self._entries / self._options.max_wal_entries)
        if filled > 1:
            # The batch is durable. On a full disk, the next batch retries.
            try:
                self.roll_over()
            except StorageError:
                self.is_overfull = filled > 2

    def _write_batch(self, out: OutFile, batch: Sequence[tuple[str, Frame]]) -> None:
        """Make frames durable. After a `StorageError` that leaves the store open, none of them counts."""
        end = self.size_bytes
        pieces, size, named = _encoded(batch, self._numbers, end, self._salt)
        try:
            out.write_at(end, pieces)
        except StorageError:
            # Whole frames may be in the file. They would count behind a shorter next batch.
            self._ahead = ZerosAhead(self._begun, end)
            try:
                out.truncate(end)
            except StorageError as error:
                self.guard.fail(error)
            raise
        self._ahead.follow(out, end + size)
        try:
            out.sync()
        except StorageError as error:
            self.guard.fail(error)
            raise
        self.size_bytes += size
        self._entries += sum(frame.entries for _, frame in batch)
        self._numbers.update(named)

    def close(self) -> None:
        """Close the file without another write; idempotent. Called by the store's guard."""
        if self._out is not None:
            self._out.close()


def _encoded(batch: Iterable[tuple[str, Frame]], numbers: Mapping[str, int], end: int, salt: int,
             repeated: Collection[str] = ()) -> tuple[list[bytes], int, dict[str, int]]:
    """Return the bytes of a batch, their count, and the numbers of the logs that the batch names. O(frames).

    Args:
        batch: ids of logs and frames, in the order of the queue.
        numbers: the numbers of the logs that the file names already.
        end: everything before is durable.
        salt: the salt of the file.
        repeated: the logs whose frames in earlier files do not count any more.
    """
    pieces: list[bytes] = []
    size = 0
    named: dict[str, int] = {}
    for log_id, frame in batch:
        number = numbers.get(log_id, named.get(log_id))
        if number is None:
            number = named[log_id] = len(numbers) + len(named)
            name = log_frame(log_id, repeats=log_id in repeated)
            pieces += name.encode(number, end, salt)
            size += name.frame_bytes
        pieces += frame.encode(number, end, salt)
        size += frame.frame_bytes
    return pieces, size, named
