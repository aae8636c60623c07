"""Two policies in turn: one for every day, and a thorough one on a schedule."""

from __future__ import annotations

from typing import ClassVar

import attrs

from compactlib.blobstore.plan import CompactionPlan
from compactlib.blobstore.policies.compact_all import CompactAll
from compactlib.blobstore.policies.stats_based import StatsBased
from compactlib.blobstore.policy import CompactionPolicy, Setting, StoreView, check_seconds, why_no_plan
from compactlib.report import PolicyRecord

_DAY = 86_400.0


@attrs.frozen(kw_only=True)
class Hybrid:
    """Asks `usual`, and `thorough` instead when the last full round is long enough ago (notes 1.6).

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

    usual: CompactionPolicy = attrs.Factory(StatsBased)
    thorough: CompactionPolicy = attrs.Factory(lambda: CompactAll(skip_valid="ends"))
    every_seconds: float = 6 * _DAY
    spread_seconds: float = 0.0

    name: ClassVar[str] = "hybrid"

    def __attrs_post_init__(self) -> None:
        check_seconds("every_seconds", self.every_seconds)
        check_seconds("spread_seconds", self.spread_seconds)

    def config(self) -> dict[str, Setting]:
        """See `CompactionPolicy.config`."""
        return {"every_seconds": self.every_seconds, "spread_seconds": self.spread_seconds,
                "usual": str(PolicyRecord.of(self.usual)), "thorough": str(PolicyRecord.of(self.thorough))}

    def due_at(self, view: StoreView) -> float:
        """When the next full round is due, seconds since the epoch."""
        history = view.history
        last = history.since if history.last_full_at is None else history.last_full_at
        return last + self.every_seconds + view.spread(self.spread_seconds)

    def plan(self, view: StoreView, now: float) -> CompactionPlan | None:
        """See `CompactionPolicy.plan`. What the policy in turn takes."""
        due_at = self.due_at(view)
        if now >= due_at:
            plan = self.thorough.plan(view, now)
            if plan is not None:
                return self._own(plan, f"a full round has been due for {now - due_at:,.0f} seconds: {plan.reason}",
                                 full=True)
        plan = self.usual.plan(view, now)
        return None if plan is None else self._own(plan, plan.reason)

    def why_not(self, view: StoreView, now: float) -> str:
        """See `Explains.why_not`."""
        usual = why_no_plan(self.usual, view, now)
        if now < self.due_at(view):
            return usual
        return f"{usual}; and for the full round that is due: {why_no_plan(self.thorough, view, now)}"

    def _own(self, plan: CompactionPlan, reason: str, *, full: bool = False) -> CompactionPlan:
        kind = "full" if full else plan.kind
        return attrs.evolve(plan, policy=PolicyRecord.of(self), kind=kind, reason=reason)
