"""What a compaction of one branch ended in: `Done[CompactionStats]`, one of three ways of being `Skipped`, or `Failed`.

Sources: `notes/staging.md` 1.14 and 1.17.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import attrs

from compactlib.outcome import Done, Failed, Skipped
from compactlib.staging.model import Applied, MetaRangeId


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
class Throttled(Skipped):
    """Another compaction of the branch started within the window.

    Attributes:
        started_at: when, in seconds since the epoch.
        window_ends_at: when the next one may start.
    """

    started_at: float
    window_ends_at: float

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row: `outcome: throttled`, the reason, and the times."""
        return [{"outcome": "throttled", "reason": self.reason, "started_at": self.started_at,
                 "window_ends_at": self.window_ends_at}]


@attrs.frozen
class NothingToDo(Skipped):
    """The branch holds nothing that a compaction would change. Its record was not touched."""

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row: `outcome: nothing_to_do` and the reason."""
        return [{"outcome": "nothing_to_do", "reason": self.reason}]


@attrs.frozen
class LostRace(Skipped):
    """Somebody else changed the branch, and the compaction gave way. Nothing is lost; the next run starts over.

    Attributes:
        step: `"seal"` or `"swap"`, the compare-and-set that was lost.
    """

    step: str

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row: `outcome: lost_race`, the reason and the step."""
        return [{"outcome": "lost_race", "reason": self.reason, "step": self.step}]


CompactionOutcome: TypeAlias = Done[CompactionStats] | Throttled | NothingToDo | LostRace | Failed
"""What `Compactor.compact` gives; `match` on the class."""


def outcome_name(outcome: CompactionOutcome) -> str:
    """`compacted`, `throttled`, `nothing_to_do`, `lost_race` or `error`: the label in metrics."""
    match outcome:
        case Done():
            return "compacted"
        case Throttled():
            return "throttled"
        case NothingToDo():
            return "nothing_to_do"
        case LostRace():
            return "lost_race"
        case _:
            return "error"
