# SPDX-License-Identifier: Apache-2.0
"""Where Parquet blocks lie: one file a block, in a folder that every machine sees under the same path."""

from __future__ import annotations

import contextlib
import os
from urllib.parse import quote

from compactlib.errors import StorageError
from compactlib.files.disk import Files, LocalFiles, StrPath, list_folder, local_path

PRIVATE = "merging"
_SUFFIX = ".parquet"


class BlockFolder:
    """Names the files of blocks; `<folder>/tenant-<tenant>/shard-<shard>/block-<id>.parquet`, parts percent-encoded.

    Private files, which no block's name leads to, lie in `<folder>/merging`.

    Args:
        folder: where everything lies; made, with what is below it, when the first block is written.
        files: the disk.
    """

    def __init__(self, folder: StrPath, files: Files | None = None) -> None:
        self.folder: str = local_path(folder)
        self.files: Files = LocalFiles() if files is None else files

    def path_of(self, tenant: str, shard: int, block_id: str) -> str:
        """The file of a block, whether it exists or not."""
        # The words in front keep names from beginning with "." or "_", which Spark takes for hidden and skips, and
        # quoting takes care of "=", in which it sees a partition.
        return os.path.join(self.folder, f"tenant-{quote(tenant, safe='')}", f"shard-{shard}",
                            f"block-{quote(block_id, safe='')}{_SUFFIX}")

    @property
    def private(self) -> str:
        """The folder of files that are being written."""
        return os.path.join(self.folder, PRIVATE)

    def make_folder(self, folder: str) -> None:
        """Make a folder below this one durably, with its parents; one that is there is fine."""
        if os.path.isdir(folder):
            return
        parent = os.path.dirname(folder)
        self.make_folder(parent)
        try:
            self.files.make_folder(folder)
        except StorageError:
            # Another worker may have been faster.
            if not os.path.isdir(folder):
                raise
        self.files.sync_folder(parent)

    def delete(self, tenant: str, shard: int, block_id: str) -> None:
        """Remove a block's file durably; one that is gone is fine.

        Raises:
            StorageError: the disk refused.
        """
        path = self.path_of(tenant, shard, block_id)
        if os.path.lexists(path):
            self.remove(path)
            self.files.sync_folder(os.path.dirname(path))

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it; one that is gone is fine. Not durable by itself.

        Raises:
            StorageError: the disk refused.
        """
        if not os.path.isdir(path) or os.path.islink(path):
            if os.path.lexists(path):
                self.files.unlink(path)
            return
        for name in list_folder(path):
            self.remove(os.path.join(path, name))
        self.files.remove_folder(path)

    def sweep(self, *, now: float, older_than_seconds: float) -> int:
        """Remove what attempts that died have left: private files and folders in which nothing was touched for so long.

        An attempt that lost its race may still be writing, so give more than a merge ever takes.

        Args:
            now: the time, seconds since the epoch.
            older_than_seconds: how old all of it must be.

        Returns:
            How many were removed.

        Raises:
            StorageError: the disk refused.
        """
        swept = 0
        for name in list_folder(self.private) if os.path.isdir(self.private) else ():
            path = os.path.join(self.private, name)
            below = [os.path.join(folder, each) for folder, _, names in os.walk(path) for each in ("", *names)]
            with contextlib.suppress(FileNotFoundError):
                if max(os.lstat(each).st_mtime for each in (path, *below)) < now - older_than_seconds:
                    self.remove(path)
                    swept += 1
        return swept

    def __repr__(self) -> str:
        return f"BlockFolder({self.folder!r})"
