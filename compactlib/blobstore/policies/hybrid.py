# SPDX-License-Identifier: Apache-2.0
"""Two policies in turn: one for every day, and a thorough one on a schedule."""

from __future__ import annotations

from typing import ClassVar

import attrs

from compactlib.blobstore.policies.compact_all import CompactAll
from compactlib.blobstore.policies.stats_based import StatsBased
from compactlib.blobstore.view import BlobChoice, BlobPolicy, BlobView, seconds

_DAY = 86_400.0


@attrs.frozen(kw_only=True)
class Hybrid:
    """Asks `usual`, and `thorough` instead when the last full round is long enough ago.

    The schedule counts from the last full plan that was carried out, which the store remembers, or from the store's
    first day. A thorough round that comes to nothing, because the store is not full enough or holds nothing dead,
    uses nothing up: the usual policy is asked, and the round stays due.

    Attributes:
        usual: for every day.
        thorough: for the full round.
        every_seconds: time from one full round to the next.
        spread_seconds: up to so much later, at a time of each store's own, so that they do not all come due at once.

    Raises:
        InvalidInput: a time is negative or not finite.
    """

    usual: BlobPolicy = attrs.field(factory=StatsBased)
    thorough: BlobPolicy = attrs.field(factory=lambda: CompactAll(skip_valid="ends"))
    every_seconds: float = seconds(6 * _DAY)
    spread_seconds: float = seconds(0.0)

    name: ClassVar[str] = "hybrid"

    @property
    def needs_forecast(self) -> bool:
        """Whether one of the two does, see `BlobPolicy`."""
        return any(getattr(policy, "needs_forecast", False) for policy in (self.usual, self.thorough))

    def due_at(self, view: BlobView) -> float:
        """When the next full round is due, seconds since the epoch."""
        history = view.history
        last = history.since if history.last_full_at is None else history.last_full_at
        return last + self.every_seconds + view.spread(self.spread_seconds)

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        """See `BlobPolicy.choose`. What the policy in turn takes."""
        due_for = now - self.due_at(view)
        if due_for < 0:
            return self.usual.choose(view, now)
        full = self.thorough.choose(view, now)
        if not full.is_empty:
            return attrs.evolve(full, kind="full",
                                why=f"a full round has been due for {due_for:,.0f} seconds: {full.why}")
        usual = self.usual.choose(view, now)
        if usual.is_empty:
            return attrs.evolve(usual, kind=full.kind,
                                why=f"{usual.why}; and for the full round that is due: {full.why}")
        return usual
