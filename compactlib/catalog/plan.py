# SPDX-License-Identifier: Apache-2.0
"""`CatalogPlan`, the effect of a compaction; and the policies, which choose how much of the unneeded history is cut.

A policy chooses a version at or below the target of `CatalogView.decision`. A choice above that target is refused, with
the name of the policy.

>>> KeepVersions(margin=3)
KeepVersions(margin=3)
"""

from __future__ import annotations

from typing import Any, TypeAlias

import attrs

from compactlib._arguments import is_seconds, is_whole
from compactlib.catalog.decision import CatalogView, Decision, decide, version_at
from compactlib.catalog.errors import UnsafeCompaction
from compactlib.catalog.timestamp import from_seconds, to_seconds
from compactlib.contract import Policy
from compactlib.errors import InvalidInput
from compactlib.report import PolicyRecord, Printed

# -------------------------------------------------------------------------------------------------------- policies


@attrs.frozen
class Cut:
    """The choice of a policy.

    Attributes:
        target: the version that becomes the earliest; `None`: nothing is cut.
        why: the reason in a sentence; for an empty choice the gate, its value, and the setting to change.
    """

    target: int | None
    why: str

    @property
    def is_empty(self) -> bool:
        """Whether nothing is cut."""
        return self.target is None


CatalogPolicy: TypeAlias = Policy[CatalogView, Cut]


@attrs.frozen
class CutToBound:
    """Cuts all unneeded history."""

    name = "cut_to_bound"

    def choose(self, view: CatalogView, now: float) -> Cut:
        decision = view.decision
        return Cut(decision.target, decision.reason() if decision.target is None else "no node needs an older version")


@attrs.frozen
class KeepVersions:
    """Keeps some versions below the lowest needed version.

    Attributes:
        margin: number of versions, >= 0; Ignite 3 keeps 1.
    """

    margin: int = attrs.field(default=1, validator=is_whole())

    name = "keep_versions"

    def choose(self, view: CatalogView, now: float) -> Cut:
        decision = view.decision
        needed = None if decision.bound is None else version_at(view.history, decision.bound)
        if decision.target is None or needed is None:
            return Cut(None, decision.reason())
        if needed - self.margin <= view.history.earliest:
            return Cut(None, f"{len(view.history)} versions are retained, and margin={self.margin} keeps that many "
                             f"below version {needed}, which is needed; lower margin, or wait")
        return Cut(min(needed - self.margin, decision.target),
                   f"margin={self.margin} versions more are kept than are needed")


@attrs.frozen
class KeepSeconds:
    """Keeps every version that was in force within the last `seconds` (>= 0), for readers of recent versions."""

    seconds: float = attrs.field(default=3600.0, validator=is_seconds())

    name = "keep_seconds"

    def choose(self, view: CatalogView, now: float) -> Cut:
        decision = view.decision
        if decision.target is None:
            return Cut(None, decision.reason())
        kept = version_at(view.history, from_seconds(max(now - self.seconds, 0.0)))
        if kept is None or kept <= view.history.earliest:
            return Cut(None, f"version {view.history.earliest} was in force within the last seconds={self.seconds}; "
                             f"lower seconds, or wait")
        return Cut(min(kept, decision.target), f"versions in force within the last seconds={self.seconds} are kept")


# ------------------------------------------------------------------------------------------------------------ a plan


@attrs.frozen(kw_only=True, repr=False)
class CatalogPlan(Printed):
    """The effect of a compaction, safe by the needs in its view.

    Attributes:
        view: the input of the decision; `compact` repeats the decision before the cut.
        explanation: every limit that prevents a higher target, the strongest first.
        target: the version that becomes the earliest; `None`: nothing is cut.
        why: the policy's reason; for an empty plan the strongest limits, and the remedy.
    """

    view: CatalogView
    policy: PolicyRecord
    explanation: Decision
    target: int | None = None
    why: str

    # Not estimated: a snapshot takes kilobytes.
    bytes_to_copy = bytes_freed = bytes_needed = bytes_available = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is cut."""
        return self.target is None

    def explain(self) -> str:
        """Return some lines for an operator: the target, and every limit that prevents a higher target."""
        return "\n".join([self._summary(), *(f"  {limit}" for limit in self.explanation.limits)])

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one row for each limit, with the target; at least one row."""
        head = {"target": self.target, "earliest": self.explanation.earliest}
        return [{**head, "factor": str(limit.factor), "allows": limit.allows, "time": limit.time,
                 "culprits": "; ".join(map(str, limit.culprits)), "more": limit.more}
                for limit in self.explanation.limits] or [{**head, "why": self.why}]

    def _summary(self) -> str:
        earliest, latest = self.explanation.earliest, self.explanation.latest
        if self.target is None:
            return f"nothing is cut (versions {earliest} to {latest} are retained): {self.why}"
        return f"history is cut to version {self.target} (of {earliest} to {latest}): {self.why}"


def plan_of(view: CatalogView, policy: CatalogPolicy) -> CatalogPlan:
    """Return the plan of the policy's choice for this view.

    Raises:
        UnsafeCompaction: the policy chose a version above the target of the decision.
        InvalidInput: the policy chose a version that is not retained; a node is in the reports twice.
        BaseException: from the policy.
    """
    history, decision = view.history, view.decision
    plan = CatalogPlan(view=view, policy=PolicyRecord.of(policy), explanation=decision, why=decision.reason())
    if decision.target is None:
        return plan
    choice = policy.choose(view, to_seconds(view.now))
    if not isinstance(choice, Cut):
        raise InvalidInput(f"the policy {policy.name} returned {choice!r:.100}; choose() returns a Cut")
    if choice.target is None:
        return attrs.evolve(plan, why=choice.why)
    if not history.has(choice.target):
        raise InvalidInput(f"the policy {policy.name} chose {choice.target!r:.100}; versions {history.earliest} to "
                           f"{history.latest} are retained")
    if choice.target > decision.target:
        raise UnsafeCompaction(f"the policy {policy.name} chose version {choice.target}, and version {decision.target} "
                               f"is the highest that is safe: {decision.reason()}")
    # A version below the decision's target may be forbidden itself, for instance by an index build.
    found = decision if choice.target == decision.target else decide(view, at_most=choice.target)
    limits = {limit.factor: limit for limit in (*found.limits, *decision.limits)}
    why = choice.why if found.target is not None else (
        f"the policy {policy.name} chose version {choice.target}, and neither that nor a lower version can be "
        f"the earliest: {found.reason()}")
    return attrs.evolve(plan, explanation=attrs.evolve(decision, limits=tuple(limits.values())), target=found.target,
                        why=why)


@attrs.frozen(kw_only=True)
class CutReport(Printed):
    """The report of a compaction or a reclaim.

    Attributes:
        earliest: the earliest version now.
        before: the earliest version before; equal to `earliest` if nothing was cut.
        deleted: number of deleted keys.
        bytes_written: bytes of keys and records that were put: the snapshot's record and pieces.
        bytes_freed: bytes of keys and records that were deleted after the cut.
        why: the reason of an empty or partial report.
        is_partial: whether leftovers of the cut remain; `reclaim` deletes them.
        policy: name of the policy.
    """

    earliest: int
    before: int
    deleted: int = 0
    bytes_written: int = 0
    bytes_freed: int = 0
    why: str = ""
    is_partial: bool = False
    policy: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was cut or deleted."""
        return self.earliest == self.before and not self.deleted and not self.is_partial
