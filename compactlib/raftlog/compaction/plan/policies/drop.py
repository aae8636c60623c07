# SPDX-License-Identifier: Apache-2.0
"""The policy that copies nothing: only segments in which nothing is alive go."""

from __future__ import annotations

from typing import ClassVar

import attrs

from compactlib.raftlog.compaction.plan.policy import LeftOut, LogChoice
from compactlib.raftlog.compaction.plan.view import LogView


@attrs.frozen
class DropDead:
    """Rewrites nothing: a compaction drops the segments that are wholly dead, as every one does, and that is all.

    It copies no byte and needs no room: what RabbitMQ Ra calls a minor compaction.
    """

    name: ClassVar[str] = "drop"

    def choose(self, view: LogView, now: float) -> LogChoice:
        """See `LogPolicy`. O(segments)."""
        alive = view.candidates
        return LogChoice((), tuple(LeftOut(segment.number, _holds(segment.live_entries)) for segment in alive),
                      f"{len(alive):,} hold something alive, and this policy rewrites nothing; give one that does")


def _holds(entries: int) -> str:
    return f"holds {entries:,} live {'entry' if entries == 1 else 'entries'}"
