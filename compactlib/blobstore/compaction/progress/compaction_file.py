# SPDX-License-Identifier: Apache-2.0
"""The compaction log on disk: the file `COMPACTION`, and the history of those that are done.

The file is there as long as a compaction is in progress. It is begun whole (temporary name, sync, rename, sync of the
folder), so that it is found whole or not at all; each step is appended to it and synced. What a crash leaves of a step
is no whole step, and does not count; so is what a disk leaves that refused one, whereupon the file is begun anew. When
the compaction is over, it gets the name `compaction-<number>.done`, so that its end is one rename. What a name says is
only its number; times are inside. The bytes are those of `compaction_format`.
"""

from __future__ import annotations

import contextlib
import os
import re

import attrs

from compactlib.blobstore.compaction.progress.compaction_format import StoredLog, decode_log, encode_log, encode_step
from compactlib.blobstore.compaction.progress.compaction_log import CompactionLog, Phase
from compactlib.errors import CorruptData
from compactlib.files.disk import Files, StrPath, list_folder, look_at, read_if_there, write_durably

LOG_NAME = "COMPACTION"
"""The file of the compaction in progress."""

_DONE_NAME = re.compile(r"compaction-([0-9]{16})\.done")


def done_name(number: int) -> str:
    """The name under which the history keeps the compaction whose first cycle has this number."""
    return f"compaction-{number:016d}.done"


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
    return _read(os.path.join(folder, LOG_NAME))


def _read(path: str) -> CompactionLog | None:
    data = read_if_there(path)
    return None if data is None else decode_log(data, path).log


def close_log(files: Files, folder: StrPath, log: CompactionLog) -> None:
    """End the compaction: its log goes to the history, or goes away if it never committed anything.

    What was removed before is made durable first: without the log it would not be removed again.

    Raises:
        StorageError: the disk refused; call again, also if only the last sync was refused.
    """
    path = os.path.join(folder, LOG_NAME)
    if look_at(path) is not None:
        if log.committed:
            files.sync_folder(folder)
            files.rename(path, os.path.join(folder, done_name(log.number)))
        else:
            files.unlink(path)
    files.sync_folder(folder)


def _read_done(path: str) -> CompactionLog | None:
    log = _read(path)
    if log is not None and log.phase is not Phase.DONE:
        raise CorruptData(path=path, offset=os.path.getsize(path), expected="a compaction that is over",
                          found=f"{log}, its last steps missing")
    return log


def next_number(folder: StrPath) -> int:
    """The number of the next compaction of the store: one more than the cycles ever committed."""
    newest = 0
    for name in list_folder(folder):
        if found := _DONE_NAME.fullmatch(name):
            newest = max(newest, int(found[1]))
    if not newest:
        return 1
    try:
        log = _read_done(os.path.join(folder, done_name(newest)))
    except CorruptData:
        log = None
    # A damaged file hides how many cycles it had: leave more room than any has.
    return newest + (1 << 20) if log is None else log.next_number


def outdated_history(folder: StrPath, before_ms: int) -> list[str]:
    """The names of logs of compactions that were started before `before_ms`; never the newest, which holds the number.

    Raises:
        StorageError: the folder, or a file of the history, cannot be read.
    """
    outdated = []
    for name in [name for name in list_folder(folder) if _DONE_NAME.fullmatch(name)][:-1]:
        # A damaged file does not say how old it is, and stays.
        with contextlib.suppress(CorruptData):
            log = _read_done(os.path.join(folder, name))
            if log is not None and log.started_ms < before_ms:
                outdated.append(name)
    return outdated
