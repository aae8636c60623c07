# SPDX-License-Identifier: Apache-2.0
"""The report of a staging sensor's replay: bytes and space as of every replay, and what listings passed over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import attrs

from compactlib.lab.results.measures import HIDDEN, MOST, Measures, part
from compactlib.lab.results.reports import MeasuredReport


def _texts(values: object) -> tuple[str, ...]:
    return tuple(values)  # type: ignore[arg-type]


@attrs.frozen(kw_only=True)
class SensorMeasures(Measures):
    """One stretch of a sensor's replay.

    The user's bytes are those of staged values and tombstones; a compaction copies the ranges of the base that it
    changes, whole; dead are entries of the base that a staged one hides, and tombstones. What is staged over what was
    staged takes its place, and counts as dead nowhere else.

    Attributes:
        deletes: tombstones that were written.
        listed_keys: keys that listings (`reads`) gave.
        passed_tombstones: tombstones that they passed over.
        throttled: triggers that came within the window of a compaction, and waited for its end.
        moved_entries: staged entries, tombstones included, that compactions took into the base.
        peak_tombstones: the most tombstones that were staged at once.
        reasons: why each compaction came, in order.
    """

    FIGURES: ClassVar[Mapping[str, str]] = {
        **Measures.FIGURES,
        "read_amplification": "entries that listings looked at for each key that they gave",
    }

    deletes: int = 0
    listed_keys: int = 0
    passed_tombstones: int = 0
    throttled: int = 0
    moved_entries: int = 0
    peak_tombstones: int = attrs.field(default=0, metadata=MOST)
    reasons: tuple[str, ...] = attrs.field(default=(), converter=_texts, metadata=HIDDEN)

    @property
    def read_amplification(self) -> float:
        """Entries that listings looked at for each key that they gave; NaN if they gave none."""
        return part(self.listed_keys + self.passed_tombstones, self.listed_keys)


@attrs.frozen(kw_only=True, repr=False)
class SensorReport(MeasuredReport[SensorMeasures]):
    """What a sensor's policy made of a workload. See `MeasuredReport`."""

    MEASURES: ClassVar[type[Measures]] = SensorMeasures

    def _summary(self) -> str:
        total = self.total
        return (f"{self.policy} on {self.workload}: {total.operations:,} operations, {total.compactions:,} "
                f"compactions, write amplification {total.write_amplification:.3f}, listings looked at "
                f"{total.read_amplification:.3f} entries for each key")
