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
    """A catalog version holds no object of this kind and id.

    Attributes:
        kind: `"schema"`, `"table"`, `"zone"` or `"index"`.
        key: the id asked for, as text.
        version: the catalog version that was asked.
    """

    def __init__(self, *, kind: str, key: str, version: int) -> None:
        super().__init__(f"catalog version {version} has no {kind} {key}")
        self.kind = kind
        self.key = key
        self.version = version


class CommandRefused(InvalidInput):
    """A command does not fit the catalog it was checked against; the whole batch changed nothing. Correct it.

    Attributes:
        command: the command, as text.
        reason: what is wrong.
        version: the catalog version it was checked against.
    """

    def __init__(self, *, command: str, reason: str, version: int) -> None:
        super().__init__(f"{command} does not fit catalog version {version}: {reason}")
        self.command = command
        self.reason = reason
        self.version = version


class RecordMissing(CorruptData):
    """A record that must exist is not in the store: a hole in the log. Restore the key from a replica or a backup.

    Attributes:
        key: the missing key; `path` is the same.
        version: the catalog version that cannot be rebuilt without it.
    """

    def __init__(self, *, key: str, version: int, expected: str) -> None:
        super().__init__(path=key, offset=0, expected=expected, found="no such key")
        self.key = key
        self.version = version


class RecordTooLarge(InvalidInput):
    """A record would exceed what the log accepts; nothing was written. The message says which setting decides."""

    def __init__(self, *, key: str, size: int, limit: int, advice: str) -> None:
        super().__init__(f"the record for {key} would take {size} bytes; the limit is {limit}: {advice}")
        self.key = key
        self.size = size
        self.limit = limit


class UnsafeCompaction(Conflict):
    """History was not cut to a version that somebody may need. Decide anew.

    Attributes:
        target: the version up to which history was to be cut.
        detail: what forbids it.
    """

    def __init__(self, *, target: int, detail: str) -> None:
        super().__init__(f"cutting history to version {target} is not safe: {detail}")
        self.target = target
        self.detail = detail


class CatalogMoved(Stale):
    """What a plan was made from has changed since: nothing was cut. Plan anew, and carry that plan out.

    Attributes:
        what: what has changed, in one sentence.
        target: the version up to which the plan cuts.
    """

    def __init__(self, *, what: str, target: int) -> None:
        super().__init__(f"the plan to cut history to version {target} is outdated: {what}; plan anew")
        self.what = what
        self.target = target


class StaleTerm(Stale):
    """A coordinator of an earlier term acts. It was refused, and changed nothing."""

    def __init__(self, *, term: int, current: int) -> None:
        super().__init__(f"term {term} is over: a coordinator of term {current} is known")
        self.term = term
        self.current = current


class StaleIncarnation(Stale):
    """A call names an earlier life of a partition. It changed nothing; register anew.

    Attributes:
        what: the partition.
        incarnation: the one named.
        current: the one in force; 0 for none.
    """

    def __init__(self, *, what: str, incarnation: int, current: int) -> None:
        super().__init__(f"{what} was called with incarnation {incarnation}; {current or 'none'} is in force")
        self.what = what
        self.incarnation = incarnation
        self.current = current


class BelowLowWatermark(Stale):
    """A reader asks for a time whose data may be gone. Read at `low_watermark` or later."""

    def __init__(self, *, time: int, low_watermark: int) -> None:
        super().__init__(f"time {time} lies below the low watermark {low_watermark}; its data may be gone")
        self.time = time
        self.low_watermark = low_watermark


class ClockSkewExceeded(InvalidInput):
    """A timestamp runs ahead of the local clock by more than what is allowed; it was not taken over.

    Attributes:
        time: the timestamp.
        ahead_ms: by how many milliseconds it runs ahead.
        limit_ms: the allowed skew.
    """

    def __init__(self, *, time: int, ahead_ms: int, limit_ms: int, advice: str = "") -> None:
        super().__init__(f"timestamp {time} is {ahead_ms} ms ahead of the local clock; {limit_ms} ms are allowed: "
                         f"check the clocks" + (f"; {advice}" if advice else ""))
        self.time = time
        self.ahead_ms = ahead_ms
        self.limit_ms = limit_ms


class PinExpired(Stale):
    """The pin's time ran out, or it was released; what it held may be gone. Pin again, and check that it still is."""

    def __init__(self, *, owner: str) -> None:
        super().__init__(f"the pin of {owner!r} has expired or was released; pin again")
        self.owner = owner


class NotReady(Busy):
    """What was asked for is not there yet: a version before the deadline, or a node that has not joined. Wait longer,
    or see what holds it up.
    """
