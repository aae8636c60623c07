# SPDX-License-Identifier: Apache-2.0
"""A gap in which no index is missing (`docs/formats/raftlog-snapshot.md`): what lies above it does not follow the rest.

The live entries of a received snapshot come to the log before that snapshot is in force, and the first of them may lie
right behind an entry that may be another leader's. After a crash nothing in the log would tell, and the entry cannot be
taken back to leave a gap: it may be the leader's, and was acknowledged. So the place is noted first, durably.
"""

from __future__ import annotations

import os

from compactlib.files.disk import Files, StrPath, look_at, read_if_there, write_durably
from compactlib.files.record_frame import RecordFrame
from compactlib.raftlog.model.names import GAP_NAME, TEMPORARY_SUFFIX

_FRAME = RecordFrame("gap", b"CLRAFGAP", 1, "<H6xQ")


def read_gap(folder: StrPath) -> int | None:
    """The index behind which there is a gap in the log in `folder`, `None` if none was noted.

    Raises:
        CorruptData: the file is damaged.
        Unsupported: written by another release.
        StorageError: it cannot be read.
    """
    path = os.path.join(folder, GAP_NAME)
    data = read_if_there(path)
    if data is None:
        return None
    after, _ = _FRAME.decode(data, path)
    return int(after)


class KeptGap:
    """The noted gap of a log that is open. One call at a time.

    Args:
        files: the disk.
        folder: the log's, which nobody else writes.

    Attributes:
        after: what lies above this index, if anything does, does not follow it; `None` if no gap is noted.

    Raises:
        CorruptData, Unsupported, StorageError: as `read_gap`.
    """

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._path = os.path.join(folder, GAP_NAME)
        self.after: int | None = read_gap(folder)
        # No name that a compaction knows, and clears away.
        if look_at(self._path + TEMPORARY_SUFFIX) is not None:
            files.unlink(self._path + TEMPORARY_SUFFIX)

    def note(self, after: int) -> None:
        """Note a gap durably, before anything comes to lie above it; in place of another.

        Raises:
            StorageError: the disk refused; it counts in this process, and after a crash perhaps.
        """
        self.after = after
        write_durably(self._files, self._path, [_FRAME.encode(after)], temporary_suffix=TEMPORARY_SUFFIX)

    def forget(self) -> None:
        """Forget it durably, once nothing lies above it any more, or a snapshot does; before anything follows it.

        Raises:
            StorageError: the disk refused; it counts on. Call again.
        """
        if look_at(self._path) is not None:
            self._files.unlink(self._path)
        self._files.sync_folder(os.path.dirname(self._path))
        self.after = None
