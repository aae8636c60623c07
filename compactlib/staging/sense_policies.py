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
from compactlib.staging.plan import StagingChoice


@attrs.frozen(kw_only=True)
class BranchPressure(Printed):
    """What this process has seen of one branch since its last compaction or commit: the view of a sense policy.

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


_COUNTED = {"deletes": "deletes", "sealed_tokens": "sealed tokens",
            "tombstones_listed": "tombstones passed over by listings"}


@attrs.frozen(kw_only=True)
class PressurePolicy:
    """Look at a branch once one of three counts has reached its threshold.

    The first is the rule of the published design. Each sealed token is a read more for every key that is not staged.
    Tombstones that listings pass over are the cost that users feel, wherever the deletes lie.

    Attributes:
        deletes: so many tombstones written.
        sealed_tokens: so many sealed tokens.
        tombstones_listed: so many tombstones passed over by listings.
    """

    name: ClassVar[str] = "pressure"
    deletes: int = attrs.field(default=1000, validator=is_whole(1))
    sealed_tokens: int = attrs.field(default=8, validator=is_whole(1))
    tombstones_listed: int = attrs.field(default=10_000, validator=is_whole(1))

    def choose(self, view: BranchPressure, now: float) -> StagingChoice:
        counts = [(name, words, getattr(view, name), getattr(self, name)) for name, words in _COUNTED.items()]
        for _, words, count, threshold in counts:
            if count >= threshold:
                return StagingChoice(f"{count} {words}, of which {threshold} are enough")
        return StagingChoice("; ".join(f"{count} {words}, below {name}={threshold}"
                                       for name, words, count, threshold in counts) + "; lower one, or wait",
                             is_empty=True)
