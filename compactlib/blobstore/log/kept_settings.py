# SPDX-License-Identifier: Apache-2.0
"""The file `RETENTION`: how long the owner of a store keeps deletes, for who compacts it while no owner is there.

It is one checked record (`docs/formats/blobstore-settings.md`), written before a store is opened with another one.
Where the disk has no room for that, it is removed if what it says is too short: then nobody but the owner knows.
"""

from __future__ import annotations

import contextlib
import os
from math import isfinite

from compactlib.errors import CompactlibError, CorruptData, StorageError
from compactlib.files.disk import Files, StrPath, may_be_there, read_if_there, write_durably
from compactlib.files.record_frame import RecordFrame

FILE_NAME = "RETENTION"
_FRAME = RecordFrame("retention of a blob store", b"CLBLBRET", 1, "<H6xd")


def kept_retention(folder: StrPath) -> float | None:
    """How long the owner of a store keeps deletes, seconds; `None` if that is not kept.

    Raises:
        CorruptData: the file holds something else. The next owner writes it again.
        Unsupported: another release wrote it.
        StorageError: it cannot be read.
    """
    path = os.path.join(folder, FILE_NAME)
    data = read_if_there(path, _FRAME.size + 1)
    if data is None:
        return None
    seconds, rest = _FRAME.decode(data, path)
    if rest or not (isfinite(seconds) and seconds >= 0):
        raise CorruptData(path=path, offset=0, expected="the retention of deletes, seconds", found=repr(data[:60]))
    return float(seconds)


def keep_retention(files: Files, folder: StrPath, seconds: float) -> None:
    """Keep how long deletes are kept from now on, durably. Needs no room on the disk.

    Raises:
        StorageError: the disk refuses even to remove what is there and says less.
    """
    kept: float | None = None
    with contextlib.suppress(CompactlibError):
        kept = kept_retention(folder)
    if kept == seconds:
        return
    path = os.path.join(folder, FILE_NAME)
    try:
        write_durably(files, path, [_FRAME.encode(seconds)])
    except StorageError:
        if may_be_there(path) and (kept is None or kept < seconds):
            files.unlink(path)
            files.sync_folder(os.fspath(folder))
