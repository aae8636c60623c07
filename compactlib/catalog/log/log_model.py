# SPDX-License-Identifier: Apache-2.0
"""The results of the update log, as frozen values."""

from __future__ import annotations

import attrs


@attrs.frozen
class LogState:
    """Which versions the log holds.

    Attributes:
        earliest: the first record's version.
        latest: the last record's version.
        compacted: whether the first record is a snapshot.
    """

    earliest: int
    latest: int
    compacted: bool


@attrs.frozen
class Appended:
    """The update is in the log."""

    version: int


@attrs.frozen
class LostRace:
    """Another writer appended this version first, or the log is not where the caller thought; nothing was written.

    Attributes:
        latest: the log's latest version; `None` if it is empty.
    """

    latest: int | None


@attrs.frozen(kw_only=True)
class SnapshotSaved:
    """The log begins with this snapshot now.

    Attributes:
        version: its version.
        previous: the earliest version before.
        bytes_written: keys and records put: the snapshot, its pieces, the log's marks.
        deleted: records removed in the same step; `reclaim` removes what did not fit.
    """

    version: int
    previous: int
    bytes_written: int
    deleted: int


@attrs.frozen
class AlreadyCompacted:
    """The log begins at this version or a later one; nothing was written."""

    earliest: int
