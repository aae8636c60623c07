# SPDX-License-Identifier: Apache-2.0
"""What a compaction of a branch ended in: `Done[CompactionStats]`, `Skipped` (`LostRace`, `PutOff`), or `Failed`."""

from __future__ import annotations

from typing import Any, TypeAlias

import attrs

from compactlib.outcome import Done, Failed, Skipped
from compactlib.staging.values import Applied, MetaRangeId


@attrs.frozen(kw_only=True)
class CompactionStats:
    """A compaction that took effect.

    Attributes:
        branch: which branch.
        metarange_id: the new compacted metarange; `None` if the result equals HEAD, so that none is needed.
        sealed_before: sealed tokens when it started, the one it sealed itself included.
        sealed_after: sealed tokens it left, sealed by others meanwhile.
        applied: what the merge did, against the base it was made on.
        seconds: from the first read to the last write.
    """

    branch: str
    metarange_id: MetaRangeId | None
    sealed_before: int
    sealed_after: int
    applied: Applied
    seconds: float

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row: these numbers and those of the merge."""
        applied = {name: value for name, value in attrs.asdict(self.applied).items() if name != "metarange_id"}
        return [{"branch": self.branch, "metarange_id": self.metarange_id, "sealed_before": self.sealed_before,
                 "sealed_after": self.sealed_after, **applied, "seconds": self.seconds}]


@attrs.frozen
class LostRace(Skipped):
    """Another writer changed the branch, and the compaction yielded to it. Nothing is lost; the next run starts over.

    Attributes:
        step: `"seal"` or `"swap"`, the compare-and-set that was lost.
        is_busy: true: another writer was faster.
    """

    step: str
    is_busy: bool = attrs.field(default=True, kw_only=True)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row: `outcome: lost_race`, the reason and the step."""
        return [{"outcome": "lost_race", "reason": self.reason, "step": self.step}]


@attrs.frozen
class PutOff(Skipped):
    """What holds the compaction back passes by itself: the window of the last one, or a store without room.

    Attributes:
        again_at: when to ask again, in seconds since the epoch by the repository's clock.
    """

    again_at: float

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row: `outcome: skipped`, the reason, and when to ask again."""
        return [{"outcome": "skipped", "reason": self.reason, "again_at": self.again_at}]


CompactionOutcome: TypeAlias = Done[CompactionStats] | Skipped | Failed
"""What `Repository.compact` gives; a lost race is a `LostRace`, and what the window holds back is `PutOff`."""


def outcome_name(outcome: CompactionOutcome) -> str:
    """`compacted`, `skipped`, `lost_race` or `error`: the label in metrics."""
    match outcome:
        case Done():
            return "compacted"
        case LostRace():
            return "lost_race"
        case Skipped():
            return "skipped"
        case _:
            return "error"
