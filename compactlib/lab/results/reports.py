# SPDX-License-Identifier: Apache-2.0
"""The report of a replay: interval by interval, and in total. One shape for all kinds of replay."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Generic, Protocol, Self

import attrs

from compactlib.errors import InvalidInput
from compactlib.lab.results.measures import Measures, MeasuresT, together
from compactlib.report import Printed

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
