# SPDX-License-Identifier: Apache-2.0
"""`CatalogPlan`, what a compaction would do; and the policies, which choose how much of what may go is cut.

A policy chooses a version at or below what `CatalogView.decision` allows. It cannot move that bound: a choice above it
is refused by name, whatever the policy says.

>>> KeepVersions(margin=3)
KeepVersions(margin=3)
"""

from __future__ import annotations

from typing import Any, TypeAlias

import attrs

from compactlib.catalog.decision import CatalogView, Decision, decide, version_at
from compactlib.catalog.errors import UnsafeCompaction
from compactlib.catalog.timestamp import from_seconds, milliseconds, to_seconds
from compactlib.contract import Policy
from compactlib.errors import InvalidInput
from compactlib.report import PolicyRecord, Printed

# -------------------------------------------------------------------------------------------------------- policies


@attrs.frozen
class Cut:
    """What a policy chose.

    Attributes:
        target: the version that becomes the earliest one; `None`: history stays as it is.
        why: in one sentence; of an empty choice which gate is shut, its value, and the setting to change.
    """

    target: int | None
    why: str

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be cut."""
        return self.target is None


CatalogPolicy: TypeAlias = Policy[CatalogView, Cut]
"""A policy of a catalog."""


@attrs.frozen
class CutToBound:
    """Cuts all history that is not needed."""

    @property
    def name(self) -> str:
        return "cut_to_bound"

    def choose(self, view: CatalogView, now: float) -> Cut:
        decision = view.decision
        return Cut(decision.target, decision.reason() if decision.target is None else "no node needs what lies below")


@attrs.frozen
class KeepVersions:
    """Keeps a few versions more than are needed.

    Attributes:
        margin: how many, >= 0; 1 is what Ignite 3 does.
    """

    margin: int = attrs.field(default=1)

    def __attrs_post_init__(self) -> None:
        if self.margin < 0:
            raise InvalidInput(f"margin is {self.margin!r}; give a whole number of at least 0")

    @property
    def name(self) -> str:
        return "keep_versions"

    def choose(self, view: CatalogView, now: float) -> Cut:
        decision, needed = view.decision, view.needed
        if decision.target is None or needed is None:
            return Cut(None, decision.reason())
        if needed - self.margin <= view.history.earliest:
            return Cut(None, f"{len(view.history)} versions are retained, and margin={self.margin} keeps as many below "
                             f"version {needed}, which is needed; lower it, or wait")
        return Cut(min(needed - self.margin, decision.target),
                   f"margin={self.margin} versions more are kept than are needed")


@attrs.frozen
class KeepSeconds:
    """Keeps every version that was in force within the last so many seconds, so that there is time to ask about them.

    Attributes:
        seconds: how long, >= 0.
    """

    seconds: float = attrs.field(default=3600.0)

    def __attrs_post_init__(self) -> None:
        milliseconds(self.seconds, name="seconds")

    @property
    def name(self) -> str:
        return "keep_seconds"

    def choose(self, view: CatalogView, now: float) -> Cut:
        decision = view.decision
        if decision.target is None:
            return Cut(None, decision.reason())
        kept = version_at(view.history, from_seconds(max(now - self.seconds, 0.0)))
        if kept is None or kept <= view.history.earliest:
            return Cut(None, f"version {view.history.earliest} was in force within the last seconds={self.seconds}; "
                             f"lower it, or wait")
        return Cut(min(kept, decision.target), f"what was in force within the last seconds={self.seconds} is kept")


# ------------------------------------------------------------------------------------------------------------ a plan


@attrs.frozen(kw_only=True, repr=False)
class CatalogPlan(Printed):
    """What a compaction of the catalog would do, as it was safe when the view was taken.

    Attributes:
        view: what it was decided of; asked again before the cut.
        policy: the policy that chose.
        explanation: everything that keeps the target from being higher, the strongest first.
        target: the version that becomes the earliest one; `None`: nothing is cut.
        why: why this is done; of an empty plan what holds the history, and what would end that.
    """

    view: CatalogView
    policy: PolicyRecord
    explanation: Decision
    target: int | None = None
    why: str

    # A snapshot takes kilobytes, and nobody decides by them.
    bytes_to_copy = bytes_freed = bytes_needed = bytes_available = None
    is_exact = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is cut."""
        return self.target is None

    def explain(self) -> str:
        """Return some lines for an operator: what is cut, and everything that keeps the target from being higher."""
        return "\n".join([self._summary(), *(f"  {limit}" for limit in self.explanation.limits)])

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one row a limit, each with the target; one row at least."""
        head = {"target": self.target, "earliest": self.explanation.earliest}
        return [{**head, **row} for row in self.explanation.to_dicts()] or [{**head, "why": self.why}]

    def _summary(self) -> str:
        earliest, latest = self.explanation.earliest, self.explanation.latest
        if self.target is None:
            return f"nothing is cut (versions {earliest} to {latest} are retained): {self.why}"
        return f"history is cut to version {self.target} (of {earliest} to {latest}): {self.why}"


def plan_of(view: CatalogView, policy: CatalogPolicy) -> CatalogPlan:
    """Return the plan of what the policy chooses of this view.

    Raises:
        UnsafeCompaction: the policy chose a version above what the decision allows.
        InvalidInput: it answered no `Cut`, or a version that is not retained; a node is in the reports twice.
        BaseException: whatever the policy raises.
    """
    history, decision = view.history, view.decision
    plan = CatalogPlan(view=view, policy=PolicyRecord.of(policy), explanation=decision, why=decision.reason())
    if decision.target is None:
        return plan  # whatever a policy says
    choice = policy.choose(view, to_seconds(view.now))
    if not isinstance(choice, Cut):
        raise InvalidInput(f"the policy {policy.name} chose {choice!r:.100}; a policy answers a Cut")
    if choice.target is None:
        return attrs.evolve(plan, why=choice.why)
    if not history.has(choice.target):
        raise InvalidInput(f"the policy {policy.name} chose {choice.target!r:.100}; versions {history.earliest} to "
                           f"{history.latest} are retained")
    if choice.target > decision.target:
        raise UnsafeCompaction(target=choice.target, detail=f"the policy {policy.name} chose it, and version "
                               f"{decision.target} is the highest that is safe: {decision.reason()}")
    # The choice itself may be forbidden, by an index build below what is safe, for instance.
    found = decision if choice.target == decision.target else decide(view, at_most=choice.target)
    limits = {limit.factor: limit for limit in (*found.limits, *decision.limits)}
    why = choice.why if found.target is not None else (
        f"the policy {policy.name} chose version {choice.target}, and neither that nor a lower one can be the "
        f"earliest: {found.reason()}")
    return attrs.evolve(plan, explanation=attrs.evolve(decision, limits=tuple(limits.values())), target=found.target,
                        why=why)


@attrs.frozen(kw_only=True)
class CutReport(Printed):
    """What a compaction of the catalog did.

    Attributes:
        earliest: the version that is the earliest one now.
        before: the earliest one when it was planned; the same: nothing was cut.
        deleted: keys that were deleted.
        bytes_written: keys and records that were put: the snapshot, its pieces, the log's marks.
        bytes_freed: keys and records that were deleted after the cut.
        why: of a report that is empty or partial, why.
        is_partial: whether something that the cut has left behind is still to be deleted; `reclaim` goes on with it.
        policy: that chose.
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
        """Whether nothing was cut."""
        return self.earliest == self.before
