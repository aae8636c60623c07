# SPDX-License-Identifier: Apache-2.0
"""When is a branch worth a look? Policies are pure: what was seen of a branch in, a `StagingChoice` with why out.

There are two kinds, alike but for what they see. The sensor asks a *sense policy* with what it has counted in memory
(`BranchPressure`), which costs nothing and says when to look; a repository asks its *policy* with what lies on the
branch (`StagingView`), and that decides what is done: see `policies.py`.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

import attrs

from compactlib._arguments import is_whole
from compactlib.contract import Policy
from compactlib.report import Printed
from compactlib.staging.compaction.plan import StagingChoice


@attrs.frozen(kw_only=True)
class BranchPressure(Printed):
    """What this process has seen of one branch, and no trigger has reported yet: the view of a sense policy.

    Attributes:
        deletes: tombstones written into tokens that the branch still names.
        sealed_tokens: sealed tokens of its record.
        tombstones_listed: tombstones that listings had to pass over, each as often as it was met.
    """

    deletes: int = 0
    sealed_tokens: int = 0
    tombstones_listed: int = 0


SensePolicy: TypeAlias = Policy[BranchPressure, StagingChoice]
"""Decides, from counts alone, whether a branch should be looked at."""


def _reached(count: int, what: str, threshold: int) -> StagingChoice:
    if count < threshold:
        return StagingChoice(f"{count} {what}, below threshold={threshold}; lower it, or wait", is_empty=True)
    return StagingChoice(f"{count} {what}, of which {threshold} are enough")


@attrs.frozen
class DeletesPolicy:
    """Compact after so many tombstones were written: the rule of the published design.

    Attributes:
        threshold: how many, >= 1.
    """

    name: ClassVar[str] = "deletes"
    threshold: int = attrs.field(default=1000, validator=is_whole(1))

    def choose(self, view: BranchPressure, now: float) -> StagingChoice:
        """See `Policy.choose`."""
        return _reached(view.deletes, "deletes", self.threshold)


@attrs.frozen
class SealedTokensPolicy:
    """Compact at so many sealed tokens: each one is a read more for every key that is not staged.

    Attributes:
        threshold: how many, >= 1.
    """

    name: ClassVar[str] = "sealed tokens"
    threshold: int = attrs.field(default=8, validator=is_whole(1))

    def choose(self, view: BranchPressure, now: float) -> StagingChoice:
        """See `Policy.choose`."""
        return _reached(view.sealed_tokens, "sealed tokens", self.threshold)


@attrs.frozen
class ListingCostPolicy:
    """Compact once listings have passed over so many tombstones: the cost that users feel, wherever deletes lie.

    A thousand scattered tombstones that are never listed cost nothing; a thousand in front of the first live key cost
    every listing a thousand entries.

    Attributes:
        threshold: how many, each as often as it was met, >= 1.
    """

    name: ClassVar[str] = "listing cost"
    threshold: int = attrs.field(default=10_000, validator=is_whole(1))

    def choose(self, view: BranchPressure, now: float) -> StagingChoice:
        """See `Policy.choose`."""
        return _reached(view.tombstones_listed, "tombstones passed over by listings", self.threshold)


@attrs.frozen
class AnyOf:
    """Compact as soon as one of several policies says so.

    Attributes:
        policies: which ones, in the order in which they are asked.
    """

    policies: tuple[SensePolicy, ...] = attrs.field(
        default=(DeletesPolicy(), SealedTokensPolicy(), ListingCostPolicy()))

    @property
    def name(self) -> str:
        """See `Policy.name`."""
        return "any of " + ", ".join(policy.name for policy in self.policies)

    def choose(self, view: BranchPressure, now: float) -> StagingChoice:
        """See `Policy.choose`. The first choice that is not empty; if all are, the reasons of all."""
        choices = []
        for policy in self.policies:
            choice = policy.choose(view, now)
            if not choice.is_empty:
                return choice
            choices.append(choice.why)
        return StagingChoice("; ".join(choices) or "policies is empty; give at least one", is_empty=True)
