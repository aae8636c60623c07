"""What the update log answers, as frozen values."""

from __future__ import annotations

import attrs

from compactlib.kv import Condition


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
        snapshot_bytes: how long the snapshot is.
        deleted: records removed in the same step; `reclaim` removes what did not fit.
    """

    version: int
    previous: int
    snapshot_bytes: int
    deleted: int


@attrs.frozen
class AlreadyCompacted:
    """The log begins at this version or a later one; nothing was written."""

    earliest: int


@attrs.frozen(kw_only=True)
class Fence:
    """What must still hold when a snapshot is written, or else it is refused.

    Attributes:
        term: the coordinator's term; recorded, and refused if a later one is. `None`: no term is looked at.
        conditions: states of keys on which the decision was based: epochs of topology and assignments, ...
    """

    term: int | None = None
    conditions: tuple[Condition, ...] = ()
