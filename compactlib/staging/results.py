# SPDX-License-Identifier: Apache-2.0
"""What commits, moves of HEAD and resets end in: `Done` with numbers, or a `Skipped` that says why."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from compactlib.outcome import Skipped
from compactlib.report import Printed
from compactlib.staging.names import CommitId
from compactlib.staging.values import Difference


@attrs.frozen(kw_only=True)
class CommitStats(Printed):
    """A commit that was made, or a HEAD that was moved or cleared of what was uncommitted.

    Attributes:
        commit_id: the commit that was made, or that HEAD was moved to.
        added, changed, removed: how many keys differ from what HEAD was before.
        ranges_written: ranges that had to be written.
        ranges_reused: ranges taken over unread.
        rebuilds: how often the metarange was built anew, because the branch changed meanwhile.
    """

    commit_id: CommitId
    added: int = 0
    changed: int = 0
    removed: int = 0
    ranges_written: int = 0
    ranges_reused: int = 0
    rebuilds: int = 0


@attrs.frozen
class NoChanges(Skipped):
    """Nothing to commit or merge: the content is that of HEAD.

    Attributes:
        reason: in one sentence.
        commit_id: HEAD, which stays; `None` if nothing was ever committed.
    """

    commit_id: CommitId | None = None


@attrs.frozen
class AlreadyCommitted(Skipped):
    """Another writer committed meanwhile, with all that this commit would have held, unless a reset took it away.

    Attributes:
        reason: in one sentence.
        commit_id: HEAD, as the other commit has made it.
    """

    commit_id: CommitId | None = None


@attrs.frozen(kw_only=True)
class ResetStats(Printed):
    """A reset that was carried out.

    Attributes:
        tokens_dropped: staging tokens that the branch dropped.
        records_restored: records of HEAD written over uncommitted ones.
        tombstones: keys hidden again that HEAD does not have.
    """

    tokens_dropped: int = 0
    records_restored: int = 0
    tombstones: int = 0


@attrs.frozen(kw_only=True)
class Counts:
    """How many keys differ between two states.

    Attributes:
        added, changed, removed: how many of each kind.
    """

    added: int = 0
    changed: int = 0
    removed: int = 0

    @classmethod
    def of(cls, differences: Iterable[Difference]) -> Counts:
        """Count differences. O(differences)."""
        counts = {"added": 0, "changed": 0, "removed": 0}
        for difference in differences:
            counts[difference.kind] += 1
        return cls(**counts)

    @property
    def total(self) -> int:
        """Of all kinds."""
        return self.added + self.changed + self.removed
