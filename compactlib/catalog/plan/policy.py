# SPDX-License-Identifier: Apache-2.0
"""Policies: how much of the history that is no longer needed is cut away.

A policy chooses a version at or below what `CatalogView.decision` allows. It cannot move that bound: a choice above it
is refused by name, whatever the policy says.

>>> KeepVersions(margin=3)
KeepVersions(margin=3)
"""

from __future__ import annotations

from typing import TypeAlias

import attrs

from compactlib.catalog.arguments import whole
from compactlib.catalog.model.timestamp import from_seconds, milliseconds
from compactlib.catalog.plan.decision import CatalogView, version_at
from compactlib.catalog.plan.verdict import Hold
from compactlib.contract import Policy


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
        """See `Policy.name`."""
        return "cut_to_bound"

    def choose(self, view: CatalogView, now: float) -> Cut:
        """See `Policy.choose`."""
        decision = view.decision
        if isinstance(decision, Hold):
            return Cut(None, decision.reason())
        return Cut(decision.target, "no node needs what lies below")


@attrs.frozen
class KeepVersions:
    """Keeps a few versions more than are needed.

    Attributes:
        margin: how many; 1 is what Ignite 3 does.

    Raises:
        InvalidInput: the margin is no whole number, or negative.
    """

    margin: int = attrs.field(default=1)

    def __attrs_post_init__(self) -> None:
        whole("margin", self.margin, lowest=0)

    @property
    def name(self) -> str:
        """See `Policy.name`."""
        return "keep_versions"

    def choose(self, view: CatalogView, now: float) -> Cut:
        """See `Policy.choose`."""
        decision = view.decision
        if isinstance(decision, Hold):
            return Cut(None, decision.reason())
        kept = view.needed
        for _ in range(self.margin):
            kept = None if kept is None else view.history.below(kept)
        if kept is None or kept <= view.history.earliest:
            return Cut(None, f"{len(view.history)} versions are retained, and margin={self.margin} keeps as many below "
                             f"version {view.needed}, which is needed; lower it, or wait")
        return Cut(min(kept, decision.target), f"margin={self.margin} versions more are kept than are needed")


@attrs.frozen
class KeepSeconds:
    """Keeps every version that was in force within the last so many seconds, so that there is time to ask about them.

    Attributes:
        seconds: how long, >= 0.

    Raises:
        InvalidInput: the seconds are negative or no number.
    """

    seconds: float = attrs.field(default=3600.0)

    def __attrs_post_init__(self) -> None:
        milliseconds(self.seconds, name="seconds")

    @property
    def name(self) -> str:
        """See `Policy.name`."""
        return "keep_seconds"

    def choose(self, view: CatalogView, now: float) -> Cut:
        """See `Policy.choose`."""
        decision = view.decision
        if isinstance(decision, Hold):
            return Cut(None, decision.reason())
        kept = version_at(view.history, from_seconds(max(now - self.seconds, 0.0)))
        if kept is None or kept <= view.history.earliest:
            return Cut(None, f"version {view.history.earliest} was in force within the last seconds={self.seconds}; "
                             f"lower it, or wait")
        return Cut(min(kept, decision.target), f"what was in force within the last seconds={self.seconds} is kept")
