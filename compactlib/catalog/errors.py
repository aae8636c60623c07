# SPDX-License-Identifier: Apache-2.0
"""The errors of the catalog: leaves under the tree of `compactlib.errors`."""

from __future__ import annotations

from compactlib.errors import Busy, Conflict, CorruptData, InvalidInput, NotFound, Stale


class CatalogVersionNotFound(NotFound):
    """The catalog version is not retained. Request a version between `earliest` and `latest`."""

    def __init__(self, *, version: int, earliest: int, latest: int) -> None:
        super().__init__(f"catalog version {version} is not retained; versions {earliest} to {latest} are")
        self.version = version
        self.earliest = earliest
        self.latest = latest


class TimeBeforeHistory(NotFound):
    """The time lies before the earliest retained version became active. Request `earliest_time` or later."""

    def __init__(self, *, time: int, earliest: int, earliest_time: int) -> None:
        super().__init__(f"no catalog version is known for time {time}: history begins with version {earliest}, active "
                         f"from {earliest_time}")
        self.time = time
        self.earliest = earliest
        self.earliest_time = earliest_time


class ObjectNotFound(NotFound):
    """A catalog version has no object of this kind and id."""


class CommandRefused(InvalidInput):
    """A command does not fit the catalog it was checked against; the whole batch changed nothing. Correct the command.

    Attributes:
        version: the catalog version it was checked against.
    """

    def __init__(self, *, command: str, reason: str, version: int) -> None:
        super().__init__(f"{command} does not fit catalog version {version}: {reason}")
        self.version = version


class RecordMissing(CorruptData):
    """A record of the log is missing. Restore it from a backup.

    Attributes:
        key: the key of the missing record.
        version: the version that depends on the record.
    """

    def __init__(self, *, key: str, version: int, expected: str) -> None:
        super().__init__(path=key, offset=0, expected=expected, found="no such key")
        self.key = key
        self.version = version


class UnsafeCompaction(Conflict):
    """A cut was refused, because a node or pin may need a version below the target. Make a new plan."""


class CatalogMoved(Stale):
    """The plan is outdated: the state that it was made from has changed. Nothing was cut. Make a new plan."""


class StaleTerm(Stale):
    """A coordinator of an earlier term was refused, and changed nothing."""

    def __init__(self, *, term: int, current: int) -> None:
        super().__init__(f"term {term} is over: a coordinator of term {current} is known")


class StaleIncarnation(Stale):
    """A call names an earlier incarnation of a partition, and changed nothing. Register the partition again."""


class BelowLowWatermark(Stale):
    """A reader requests a time below the low watermark. Read at `low_watermark` or later."""

    def __init__(self, *, time: int, low_watermark: int) -> None:
        super().__init__(f"time {time} lies below the low watermark {low_watermark}; its data may be deleted")
        self.low_watermark = low_watermark


class ClockSkewExceeded(InvalidInput):
    """A timestamp is ahead of the local clock by more than the skew; it was refused."""

    def __init__(self, *, time: int, ahead_ms: int, limit_ms: int, advice: str = "") -> None:
        super().__init__(f"timestamp {time} is {ahead_ms} ms ahead of the local clock; {limit_ms} ms are allowed: "
                         f"check the clocks" + (f"; {advice}" if advice else ""))


class NotReady(Busy):
    """The node has not joined, or does not coordinate."""
