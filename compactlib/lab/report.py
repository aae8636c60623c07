# SPDX-License-Identifier: Apache-2.0
"""Counts of a stretch of a replay, the figures that follow from them, and the report of all stretches.

Each kind of replay counts what all have in common, and may add counts and figures of its own: `FIGURES` names them,
with their units. How the counts of two stretches become one is said at each field: most add up.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Final, Generic, Protocol, Self, TypeVar

import attrs

from compactlib.errors import InvalidInput
from compactlib.report import Printed

LAST: Final = {"joined": "last"}
"""Metadata of a count that says how things stand at the end of a stretch."""
MOST: Final = {"joined": "most"}
"""Metadata of a count that is the largest of its stretch."""
ADDED: Final = {"joined": "sum"}
"""Metadata of a count that adds up, as do those without any; tuples are put one behind the other."""
HIDDEN: Final = {"hidden": True}
"""Metadata of what figures are reckoned from, and tables leave out."""

WRITE_AMPLIFICATION: Final = "bytes written for each byte of the user"
SPACE_AMPLIFICATION: Final = "bytes used for each live byte"


def _reasons(pairs: Any) -> tuple[tuple[str, int], ...]:
    return tuple((why, count) for why, count in pairs)


@attrs.frozen(kw_only=True)
class Measures:
    """One stretch of a replay. Bytes are those of records, times are seconds.

    Attributes:
        start: when it begins, seconds since the epoch.
        end: when it ends.
        capacity_bytes: of the store; 0: it has no limit, and `peak_fill` is unknown.
        operations: how many operations were made, reads and refused ones included.
        reads: how many of them were reads.
        refused: writes for which the log had no room.
        refused_by: why a policy of the blob store made no room for them, and how many writes that cost.
        user_bytes: bytes that writes and deletes brought.
        copied_bytes: bytes that compactions copied.
        read_bytes: bytes that compactions read, if each segment that has something to copy is read whole.
        asked: how often the policy was asked.
        compactions: how often it gave a plan.
        victims: segments that the plans took.
        freed_segments: by how many segments the log got shorter; ranges, blocks, where a store has none.
        reclaimed_bytes: bytes of dead records that went.
        waited_byte_seconds: the sum of size and time from death to reclaim over what was reclaimed.
        used_bytes: used at the end.
        live_bytes: bytes at the end that a reader can still ask for.
        used_sum: the sum of used bytes over samples, one with each question to the policy and one at the end.
        live_sum: the same of live bytes.
        record_sum: the same of the bytes of all records that the log holds, dead ones included.
        peak_used_bytes: the most that was used.
        most_moved_bytes: the most that one compaction read and copied: what a pause, or its IO, is reckoned from.
    """

    FIGURES: ClassVar[Mapping[str, str]] = {
        "write_amplification": WRITE_AMPLIFICATION,
        "space_amplification": SPACE_AMPLIFICATION,
        "copied_per_reclaimed": "bytes copied for each byte reclaimed",
        "read_cost": "bytes read by compactions for each byte of the user",
        "seconds_to_reclaim": "seconds from death to reclaim",
        "peak_fill": "the most that was used, as a part of the capacity",
    }
    """The figures that such a replay is judged by: names of properties, and what they say, with the unit."""

    start: float = attrs.field(default=0.0, metadata={"joined": "first"})
    end: float = attrs.field(default=0.0, metadata=LAST)
    capacity_bytes: int = attrs.field(default=0, metadata=LAST | HIDDEN)
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
    waited_byte_seconds: float = attrs.field(default=0.0, metadata=ADDED | HIDDEN)
    used_bytes: int = attrs.field(default=0, metadata=LAST)
    live_bytes: int = attrs.field(default=0, metadata=LAST)
    used_sum: int = attrs.field(default=0, metadata=ADDED | HIDDEN)
    live_sum: int = attrs.field(default=0, metadata=ADDED | HIDDEN)
    record_sum: int = attrs.field(default=0, metadata=ADDED | HIDDEN)
    peak_used_bytes: int = attrs.field(default=0, metadata=MOST)
    most_moved_bytes: int = attrs.field(default=0, metadata=MOST)
    refused_by: tuple[tuple[str, int], ...] = attrs.field(default=(), converter=_reasons, metadata=ADDED | HIDDEN)

    @property
    def write_amplification(self) -> float:
        """Bytes written for each byte that a user wrote, 1 without compactions; NaN if nothing was written."""
        return part(self.user_bytes + self.copied_bytes, self.user_bytes)

    @property
    def space_amplification(self) -> float:
        """Bytes used for each live one, on average over the samples."""
        return part(self.used_sum, self.live_sum)

    @property
    def utilisation(self) -> float:
        """Which part of what the log holds is live, on average over the samples; what the closed forms ask for."""
        return part(self.live_sum, self.record_sum)

    @property
    def filled(self) -> float:
        """Which part of the used segments holds records, on average over the samples; the rest is what segments that
        were closed part-filled leave unused. What it is below 1, `utilisation` is above that of the whole log."""
        return part(self.record_sum, self.used_sum)

    @property
    def copied_per_reclaimed(self) -> float:
        """Bytes copied for each byte of dead records that went."""
        return part(self.copied_bytes, self.reclaimed_bytes)

    @property
    def read_cost(self) -> float:
        """Bytes that compactions read for each byte that a user wrote."""
        return part(self.read_bytes, self.user_bytes)

    @property
    def seconds_to_reclaim(self) -> float:
        """How long a byte stayed after its death, on average over those that went."""
        return part(self.waited_byte_seconds, self.reclaimed_bytes)

    @property
    def peak_fill(self) -> float:
        """The most that was used, as a part of the capacity."""
        return part(self.peak_used_bytes, self.capacity_bytes)

    def figures(self) -> dict[str, float | None]:
        """The figures of `FIGURES`; what is unknown as `None`."""
        values = {name: getattr(self, name) for name in self.FIGURES}
        return {name: None if math.isnan(value) else value for name, value in values.items()}

    def to_dict(self) -> dict[str, Any]:
        """The counts that a reader wants, and the figures; what is unknown as `None`."""
        shown = {field.name: getattr(self, field.name) for field in attrs.fields(type(self))
                 if not field.metadata.get("hidden")}
        return {**shown, **self.figures()}


MeasuresT = TypeVar("MeasuresT", bound=Measures)


def together(stretches: Sequence[MeasuresT]) -> MeasuresT:
    """Stretches of one kind that follow one another as one.

    Raises:
        InvalidInput: there is none.
    """
    if not stretches:
        raise InvalidInput("no stretch of a replay is left to add up; take more intervals, or skip less")
    kind = type(stretches[0])
    return kind(**{field.name: _joined(field.metadata.get("joined", "sum"),
                                       [getattr(each, field.name) for each in stretches])
                   for field in attrs.fields(kind)})


def _joined(how: str, values: Sequence[Any]) -> Any:
    match how:
        case "first":
            return values[0]
        case "last":
            return values[-1]
        case "most":
            return max(values)
        case _:
            return sum(values[1:], start=values[0])


def part(part: float, whole: float) -> float:
    """A part of a whole; NaN if there is no whole."""
    return part / whole if whole else math.nan


_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


class Report(Protocol):
    """What comparisons need of a report."""

    @property
    def policy(self) -> str:
        """The policy and its settings, in words."""

    @property
    def workload(self) -> str:
        """The workload and its settings, in words."""

    @property
    def intervals(self) -> Sequence[Measures]:
        """The stretches of the replay, in order."""

    @property
    def total(self) -> Measures:
        """All intervals as one."""

    def steady(self, skip: float = 0.5) -> Measures:
        """The intervals behind the first part `skip` as one."""

    def to_json(self) -> str:
        """Everything."""


@attrs.frozen(kw_only=True, repr=False)
class MeasuredReport(Printed, Generic[MeasuresT]):
    """What a policy made of a workload; a base.

    Attributes:
        policy: the policy and its settings.
        workload: the workload and its settings.
        intervals: the stretches of the replay, in order.
    """

    MEASURES: ClassVar[type[Measures]] = Measures
    """What each interval is."""

    policy: str
    workload: str
    intervals: tuple[MeasuresT, ...]

    @property
    def total(self) -> MeasuresT:
        """All intervals as one."""
        return together(self.intervals)

    def steady(self, skip: float = 0.5) -> MeasuresT:
        """The intervals behind the first part `skip` (0 to 1) as one: without how it began.

        Raises:
            InvalidInput: nothing is left.
        """
        if not 0 <= skip < 1:
            raise InvalidInput(f"skip is {skip}; it is a part of the whole, less than 1")
        return together(self.intervals[int(len(self.intervals) * skip):])

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary an interval, in order."""
        return [{"interval": number, **each.to_dict()} for number, each in enumerate(self.intervals)]

    def to_json(self) -> str:
        """Everything, so that `from_json` gives an equal report."""
        return json.dumps(attrs.asdict(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The report that `to_json` wrote."""
        found = json.loads(text)
        intervals: Any = tuple(cls.MEASURES(**each) for each in found["intervals"])
        return cls(policy=found["policy"], workload=found["workload"], intervals=intervals)


@attrs.frozen(kw_only=True, repr=False)
class ReplayReport(MeasuredReport[Measures]):
    """What a policy of the blob store or of the Raft log made of a workload. See `MeasuredReport`."""

    @property
    def refused_by(self) -> Mapping[str, int]:
        """Which gates of the policy kept it from making room, and how many writes that cost, the most first.

        A gate is told in the words in which the policy last said it, with the setting that would open it.
        """
        counts: Counter[str] = Counter()
        said: dict[str, str] = {}
        for why, count in self.total.refused_by:
            gate = _NUMBER.sub("", why)
            counts[gate] += count
            said[gate] = why
        return {said[gate]: count for gate, count in counts.most_common()}

    def _summary(self) -> str:
        total = self.total
        reasons = "".join(f"; {count:,} of them: {why}" for why, count in islice(self.refused_by.items(), 1))
        return (f"{self.policy} on {self.workload}: {total.operations:,} operations, write amplification "
                f"{total.write_amplification:.3f}, space amplification {total.space_amplification:.3f}, "
                f"{total.compactions:,} compactions, {total.refused:,} writes refused{reasons}")
