"""What a stretch of a replay came to: counts that add up, and the amplifications that follow from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs

from compactlib.errors import InvalidInput


@attrs.frozen(kw_only=True)
class Measures:
    """One stretch of a replay. Bytes are those of records, times are seconds.

    Attributes:
        start: when it begins, seconds since the epoch.
        end: when it ends.
        operations: how many operations were made, reads and refused ones included.
        reads: how many of them were reads.
        refused: writes for which the log had no room.
        user_bytes: bytes that writes and deletes brought.
        copied_bytes: bytes that compactions copied.
        read_bytes: bytes that compactions read, if each segment that has something to copy is read whole.
        asked: how often the policy was asked.
        compactions: how often it gave a plan.
        victims: segments that the plans took.
        freed_segments: by how many segments the log got shorter.
        reclaimed_bytes: bytes of dead records that went.
        waited_byte_seconds: the sum of size and time from death to reclaim over what was reclaimed.
        capacity_bytes: of the log.
        used_bytes: used at the end.
        live_bytes: bytes at the end that a reader can still ask for.
        used_sum: the sum of used bytes over samples, one with each question to the policy and one at the end.
        live_sum: the same of live bytes.
        record_sum: the same of the bytes of all records that the log holds, dead ones included.
        peak_used_bytes: the most that was used.
    """

    start: float = 0.0
    end: float = 0.0
    operations: int = 0
    reads: int = 0
    refused: int = 0
    user_bytes: int = 0
    copied_bytes: int = 0
    read_bytes: int = 0
    asked: int = 0
    compactions: int = 0
    victims: int = 0
    freed_segments: int = 0
    reclaimed_bytes: int = 0
    waited_byte_seconds: float = 0.0
    capacity_bytes: int = 0
    used_bytes: int = 0
    live_bytes: int = 0
    used_sum: int = 0
    live_sum: int = 0
    record_sum: int = 0
    peak_used_bytes: int = 0

    @property
    def write_amplification(self) -> float:
        """Bytes written for each byte that a user wrote, 1 without compactions; NaN if nothing was written."""
        return _part(self.user_bytes + self.copied_bytes, self.user_bytes)

    @property
    def space_amplification(self) -> float:
        """Bytes used for each live one, on average over the samples."""
        return _part(self.used_sum, self.live_sum)

    @property
    def utilisation(self) -> float:
        """Which part of what the log holds is live, on average over the samples; what the closed forms ask for."""
        return _part(self.live_sum, self.record_sum)

    @property
    def copied_per_reclaimed(self) -> float:
        """Bytes copied for each byte of dead records that went."""
        return _part(self.copied_bytes, self.reclaimed_bytes)

    @property
    def read_cost(self) -> float:
        """Bytes that compactions read for each byte that a user wrote."""
        return _part(self.read_bytes, self.user_bytes)

    @property
    def seconds_to_reclaim(self) -> float:
        """How long a byte stayed after its death, on average over those that went."""
        return _part(self.waited_byte_seconds, self.reclaimed_bytes)

    @property
    def peak_fill(self) -> float:
        """The most that was used, as a part of the capacity."""
        return _part(self.peak_used_bytes, self.capacity_bytes)

    def to_dict(self) -> dict[str, Any]:
        """The counts that a reader wants, and the amplifications; NaN as `None`."""
        shown: dict[str, Any] = {
            "start": self.start, "end": self.end, "operations": self.operations, "reads": self.reads,
            "refused": self.refused, "user_bytes": self.user_bytes, "copied_bytes": self.copied_bytes,
            "read_bytes": self.read_bytes, "asked": self.asked, "compactions": self.compactions,
            "victims": self.victims, "freed_segments": self.freed_segments, "reclaimed_bytes": self.reclaimed_bytes,
            "used_bytes": self.used_bytes, "live_bytes": self.live_bytes}
        for name in AMPLIFICATIONS:
            value = getattr(self, name)
            shown[name] = None if math.isnan(value) else value
        return shown


AMPLIFICATIONS = ("write_amplification", "space_amplification", "copied_per_reclaimed", "read_cost",
                  "seconds_to_reclaim", "peak_fill")
"""The figures that a replay is judged by: names of properties of `Measures`, and of columns."""

_SUMS = ("operations", "reads", "refused", "user_bytes", "copied_bytes", "read_bytes", "asked", "compactions",
         "victims", "freed_segments", "reclaimed_bytes", "waited_byte_seconds", "used_sum", "live_sum",
         "record_sum")


def together(stretches: Sequence[Measures]) -> Measures:
    """Stretches that follow one another as one.

    Raises:
        InvalidInput: there is none.
    """
    if not stretches:
        raise InvalidInput("no stretch of a replay is left to add up; take more intervals, or skip less")
    sums = {name: sum(getattr(each, name) for each in stretches) for name in _SUMS}
    last = stretches[-1]
    return Measures(start=stretches[0].start, end=last.end, capacity_bytes=last.capacity_bytes,
                    used_bytes=last.used_bytes, live_bytes=last.live_bytes,
                    peak_used_bytes=max(each.peak_used_bytes for each in stretches), **sums)


def _part(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
