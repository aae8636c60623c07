"""Which disk a folder lies on, so that one disk serves one compaction at a time."""

from __future__ import annotations

import os

from compactlib.errors import StorageError
from compactlib.files import StrPath


def disk_of(folder: StrPath) -> str:
    """A name of the device that holds `folder`: equal for two folders on one file system.

    Partitions of one disk have different names; a host that knows better names its disks itself.

    Raises:
        StorageError: the folder cannot be looked at.
    """
    try:
        device = os.stat(folder).st_dev
    except OSError as error:
        raise StorageError.from_os(error, "stat", folder) from error
    return f"{os.major(device)}:{os.minor(device)}"
