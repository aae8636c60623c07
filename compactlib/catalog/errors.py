# SPDX-License-Identifier: Apache-2.0
"""The errors of the catalog: leaves under the tree of `compactlib.errors`."""

from __future__ import annotations

from compactlib.errors import Busy, Conflict, CorruptData, InvalidInput, NotFound, Stale


class CatalogVersionNotFound(NotFound):
    """No catalog of this version is retained. Ask for a version between `earliest` and `latest`."""

    def __init__(self, *, version: int, earliest: int, latest: int) -> None:
        super().__init__(f"catalog version {version} is not retained; versions {earliest} to {latest} are")
        self.version = version
        self.earliest = earliest
        self.latest = latest


class TimeBeforeHistory(NotFound):
    """The time lies before the earliest retained version became active. Ask for `earliest_time` or later."""

    def __init__(self, *, time: int, earliest: int, earliest_time: int) -> None:
        super().__init__(f"no catalog version is known for time {time}: history begins with version {earliest}, active "
                         f"from {earliest_time}")
        self.time = time
        self.earliest = earliest
        self.earliest_time = earliest_time


class ObjectNotFound(NotFound):
    """A catalog version holds no object of this kind and id."""


class CommandRefused(InvalidInput):
    """A command does not fit the catalog it was checked against; the whole batch changed nothing. Correct it.

    Attributes:
        version: the catalog version it was checked against.
    """

    def __init__(self, *, command: str, reason: str, version: int) -> None:
        super().__init__(f"{command} does not fit catalog version {version}: {reason}")
        self.version = version


class RecordMissing(CorruptData):
    """The log lacks a record that must be there. Restore it from a backup.

    Attributes:
        key: its key.
        version: the version that depends on it.
    """

    def __init__(self, *, key: str, version: int, expected: str) -> None:
        super().__init__(path=key, offset=0, expected=expected, found="no such key")
        self.key = key
        self.version = version


class RecordTooLarge(InvalidInput):
    """A record would exceed what the log accepts; nothing was written. The message says which setting decides."""


class UnsafeCompaction(Conflict):
    """History was not cut to a version that somebody may need. Decide anew."""

    def __init__(self, *, target: int, detail: str) -> None:
        super().__init__(f"cutting history to version {target} is not safe: {detail}")


class CatalogMoved(Stale):
    """What a plan was made from has changed since: nothing was cut. Plan anew, and carry that plan out."""

    def __init__(self, *, what: str, target: int) -> None:
        super().__init__(f"the plan to cut history to version {target} is outdated: {what}; plan anew")


class StaleTerm(Stale):
    """A coordinator of an earlier term acts. It was refused, and changed nothing."""

    def __init__(self, *, term: int, current: int) -> None:
        super().__init__(f"term {term} is over: a coordinator of term {current} is known")


class StaleIncarnation(Stale):
    """A call names an earlier life of a partition. It changed nothing; register anew."""


class BelowLowWatermark(Stale):
    """A reader asks for a time whose data may be gone. Read at `low_watermark` or later."""

    def __init__(self, *, time: int, low_watermark: int) -> None:
        super().__init__(f"time {time} lies below the low watermark {low_watermark}; its data may be gone")
        self.low_watermark = low_watermark


class ClockSkewExceeded(InvalidInput):
    """A timestamp runs ahead of the local clock by more than what is allowed; it was not taken over."""

    def __init__(self, *, time: int, ahead_ms: int, limit_ms: int, advice: str = "") -> None:
        super().__init__(f"timestamp {time} is {ahead_ms} ms ahead of the local clock; {limit_ms} ms are allowed: "
                         f"check the clocks" + (f"; {advice}" if advice else ""))


class PinExpired(Stale):
    """The pin's time ran out, or it was released; what it held may be gone. Pin again, and check that it still is."""


class NotReady(Busy):
    """What was asked for is not there yet: a version before the deadline, or a node that has not joined. Wait longer,
    or see what holds it up.
    """
