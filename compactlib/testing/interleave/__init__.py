"""Every interleaving of a few actors, and pauses of an owner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compactlib._lazy import load_lazily

if TYPE_CHECKING:
    from compactlib.testing.interleave.explore import (
        Access,
        ActorStuck,
        InterleavingFailed,
        InterleavingReport,
        Interval,
        NotDeterministic,
        Span,
        Stage,
        Step,
        SteppedObjects,
        SteppedStore,
        cell,
        explore_schedules,
        replay_schedule,
        sample_schedules,
        take_step,
    )

__all__ = [
    "Access",
    "ActorStuck",
    "InterleavingFailed",
    "InterleavingReport",
    "Interval",
    "NotDeterministic",
    "Span",
    "Stage",
    "Step",
    "SteppedObjects",
    "SteppedStore",
    "cell",
    "explore_schedules",
    "replay_schedule",
    "sample_schedules",
    "take_step",
]

load_lazily(__name__, {
    ".explore": ("Access", "ActorStuck", "Interval", "InterleavingFailed", "InterleavingReport", "NotDeterministic",
                 "Span", "Stage", "Step", "SteppedObjects", "SteppedStore", "cell", "explore_schedules", "replay_schedule", "sample_schedules",
                 "take_step"),
})
