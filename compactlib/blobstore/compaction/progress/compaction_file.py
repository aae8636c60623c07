# SPDX-License-Identifier: Apache-2.0
"""The compaction log on disk: the file `COMPACTION`.

The file is there as long as a compaction is in progress. It is begun whole (temporary name, sync, rename, sync of the
folder), so that it is found whole or not at all; each step is appended to it and synced. What a crash leaves of a step
is no whole step, and does not count; so is what a disk leaves that refused one, whereupon the file is begun anew. When
the compaction is over, the file is removed. The bytes are those of `compaction_format`.
"""

from __future__ import annotations

import contextlib
import os

import attrs

from compactlib.blobstore.compaction.progress.compaction_format import StoredLog, decode_log, encode_log, encode_step
from compactlib.blobstore.compaction.progress.compaction_log import CompactionLog
from compactlib.files.disk import Files, StrPath, look_at, read_if_there, write_durably

LOG_NAME = "COMPACTION"
"""The file of the compaction in progress."""


class CompactionFile:
    """The file of a compaction in progress, open for appending. The bytes of a step do not depend on how many cycles
    there were. Holds no descriptor open.

    Args:
        files: the disk.
        folder: the store's folder.
    """

    def __init__(self, files: Files, folder: StrPath) -> None:
        self._files = files
        self._path = os.path.join(folder, LOG_NAME)
        # What the file is known to hold; nothing before the first write, and after one that was refused.
        self._stored: StoredLog | None = None

    def write(self, log: CompactionLog) -> None:
        """Make this step durable.

        Raises:
            StorageError: the disk refused; after a crash the step before may count, or this one.
        """
        stored, self._stored = self._stored, None
        step = None if stored is None else encode_step(stored, log)
        if stored is None or step is None:
            self._stored = _write_whole(self._files, self._path, log)
        else:
            self._append(step, stored.end)
            self._stored = attrs.evolve(stored, log=log, steps=stored.steps + 1, end=stored.end + len(step))

    def _append(self, step: bytes, end: int) -> None:
        with contextlib.closing(self._files.open(self._path)) as out:
            out.write_at(end, [step])
            out.sync()


def write_log(files: Files, folder: StrPath, log: CompactionLog) -> None:
    """Make a compaction durable as a whole, however long its file is; see `CompactionFile` for many steps.

    Raises:
        StorageError: the disk refused; the step before is what counts, unless only the sync of the folder was refused.
    """
    _write_whole(files, os.path.join(folder, LOG_NAME), log)


def _write_whole(files: Files, path: str, log: CompactionLog) -> StoredLog:
    data = encode_log(log)
    write_durably(files, path, [data])
    return StoredLog.whole(log, data)


def read_log(folder: StrPath) -> CompactionLog | None:
    """The compaction in progress in a store's folder, or `None`.

    Raises:
        CorruptData: the file is damaged.
        Unsupported: of another version.
        StorageError: it cannot be read.
    """
    path = os.path.join(folder, LOG_NAME)
    data = read_if_there(path)
    return None if data is None else decode_log(data, path).log


def close_log(files: Files, folder: StrPath, log: CompactionLog) -> None:
    """End the compaction: remove its log.

    What was removed before is made durable first: without the log it would not be removed again.

    Raises:
        StorageError: the disk refused; call again, also if only the last sync was refused.
    """
    path = os.path.join(folder, LOG_NAME)
    if look_at(path) is not None:
        if log.committed:
            files.sync_folder(folder)
        files.unlink(path)
    files.sync_folder(folder)
