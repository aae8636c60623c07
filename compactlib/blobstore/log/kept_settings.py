# SPDX-License-Identifier: Apache-2.0
"""The file `settings.json`: how long the owner of a store keeps deletes, for who compacts it while no owner is there.

It holds one JSON object, `{"deleted_retention_seconds": ..., "format": 1}`, and is written before a store is opened
with another retention. Where the disk has no room for that, it is removed if what it says is too short: then nobody but
the owner knows.
"""

from __future__ import annotations

import contextlib
import json
import os
from math import isfinite

from compactlib.errors import CompactlibError, CorruptData, StorageError, Unsupported
from compactlib.files.disk import Files, StrPath, write_durably

FILE_NAME = "settings.json"
_FORMAT = 1


def kept_retention(folder: StrPath) -> float | None:
    """How long the owner of a store keeps deletes, seconds; `None` if that is not kept.

    Raises:
        CorruptData: the file holds something else. The next owner writes it again.
        Unsupported: a later release wrote it.
        StorageError: it cannot be read.
    """
    path = os.path.join(folder, FILE_NAME)
    try:
        with open(path, "rb") as file:
            data = file.read(1 << 16)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError.from_os(error, "read", path) from error
    try:
        found = json.loads(data)
        told, seconds = found["format"], found["deleted_retention_seconds"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _damaged(path, data) from error
    if told != _FORMAT:
        raise Unsupported(f"{path} has format {told!r}, this release reads {_FORMAT}; use the release that wrote it")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not (isfinite(seconds) and seconds >= 0):
        raise _damaged(path, data)
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
        write_durably(files, path, [json.dumps({"deleted_retention_seconds": seconds, "format": _FORMAT}).encode()])
    except StorageError:
        if os.path.lexists(path) and (kept is None or kept < seconds):
            files.unlink(path)
            files.sync_folder(os.fspath(folder))


def _damaged(path: str, data: bytes) -> CorruptData:
    return CorruptData(path=path, offset=0, expected="a JSON object with the retention of deletes in seconds",
                       found=repr(data[:60]))
