# SPDX-License-Identifier: Apache-2.0
"""The results of a decision: `Compact` or `Hold`, each with its reasons."""

from __future__ import annotations

from typing import Any, TypeAlias

import attrs

from compactlib.catalog.model.timestamp import Timestamp, show
from compactlib.catalog.model.values import Culprit, Factor
from compactlib.report import Table

MAX_REASONS = 3
"""How many limits a reason in one sentence names; `explain` has all of them."""

_ADVICE = {
    Factor.ACTIVE_TRANSACTIONS: "end them, or wait",
    Factor.RAFT_RECOVERY: "flush these partitions, remove those of dropped tables, or wait",
    Factor.INDEX_BUILD: "wait until it is built, or drop the index",
    Factor.REBALANCE: "wait until it is through",
    Factor.LOW_WATERMARK: "wait until CatalogUpkeep or the host raises it, or lower data_availability_seconds",
    Factor.PIN: "release it, or wait until it expires",
    Factor.MISSING_NODE: "start the node, or assign its partitions to others",
    Factor.MISSING_PARTITION: "register the partition on its node, or assign it to another",
    Factor.DROPPED_TABLE: "wait until the low watermark has passed the drop",
    Factor.NO_ASSIGNMENTS: "look the assignments up again",
    Factor.NO_ANSWER: "give the reports of these nodes, or take them out of the topology",
    Factor.UNAVAILABLE: "wait until it is known; a low watermark is when CatalogUpkeep or the host has raised it",
}


@attrs.frozen(kw_only=True)
class Limit:
    """One factor that kept the target low.

    Attributes:
        factor: which.
        allows: the highest version that this factor alone would allow; `None` if it allows none.
        time: the time that it needs, if it is a matter of time.
        culprits: what needs it, the first few.
        more: how many culprits beyond those.
    """

    factor: Factor
    allows: int | None
    time: Timestamp | None = None
    culprits: tuple[Culprit, ...] = ()
    more: int = 0

    def __str__(self) -> str:
        at = "" if self.time is None else f" at {show(self.time)}"
        who = "; ".join(map(str, self.culprits)) + (f" and {self.more} more" if self.more else "")
        allows = "nothing" if self.allows is None else f"up to version {self.allows}"
        return f"{self.factor}{at} allows {allows}" + (f" ({who})" if who else "")

    def to_dict(self) -> dict[str, Any]:
        """One row: the factor, what it allows, its time, its culprits as text."""
        return {"factor": str(self.factor), "allows": self.allows, "time": self.time,
                "culprits": "; ".join(map(str, self.culprits)), "more": self.more}


@attrs.frozen(kw_only=True)
class Explanation:
    """Why a decision came out as it did.

    Attributes:
        earliest: the earliest version retained before.
        latest: the latest version registered.
        wanted: the version up to which history could be cut if nothing were needed.
        bound: the lowest time that any node needs; `None` if it is not known.
        limits: every factor that allows less than `wanted`, the strongest first.
    """

    earliest: int
    latest: int
    wanted: int
    bound: Timestamp | None
    limits: tuple[Limit, ...] = ()

    @property
    def factors(self) -> tuple[Factor, ...]:
        """The limiting factors, the strongest first."""
        return tuple(limit.factor for limit in self.limits)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row per limit."""
        return [limit.to_dict() for limit in self.limits]


@attrs.frozen
class Compact:
    """History can be cut: `target` becomes the earliest readable version, as a snapshot.

    Attributes:
        target: above the earliest version, not above the latest.
        why: what kept it from being higher.
    """

    target: int
    why: Explanation

    def explain(self) -> str:
        """Some lines for an operator: what is cut, and what kept the target from being higher."""
        return _told(f"compact up to version {self.target} (of {self.why.earliest} to {self.why.latest})", self.why)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row per limit, each with the target; one row at least."""
        head = {"decision": "compact", "target": self.target}
        return [{**head, **row} for row in self.why.to_dicts()] or [head]

    def _repr_html_(self) -> str:
        return Table.from_dicts(self.to_dicts(), title=self.explain().splitlines()[0])._repr_html_()


@attrs.frozen
class Hold:
    """Nothing can be cut now.

    Attributes:
        factor: the strongest limit; `None` if history is as short as it can be.
        why: all limits.
    """

    factor: Factor | None
    why: Explanation

    def reason(self) -> str:
        """One sentence: what holds the history, and what would end that."""
        if self.factor is None:
            return f"history is as short as it can be: it begins at version {self.why.earliest}, which is in force"
        return "; ".join([*map(str, self.why.limits[:MAX_REASONS]), _ADVICE[self.factor]])

    def explain(self) -> str:
        """Some lines for an operator: which factors hold the history, with their values and who they are."""
        reason = "history is as short as it can be" if self.factor is None else f"held by {self.factor}"
        return _told(f"{reason} (versions {self.why.earliest} to {self.why.latest} are retained)", self.why)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row per limit; one row at least."""
        head = {"decision": "hold", "target": None}
        return [{**head, **row} for row in self.why.to_dicts()] or [head]

    def _repr_html_(self) -> str:
        return Table.from_dicts(self.to_dicts(), title=self.explain().splitlines()[0])._repr_html_()


Decision: TypeAlias = Compact | Hold
"""What `decide` answers."""


def _told(head: str, why: Explanation) -> str:
    return "\n".join([head, *(f"  {limit}" for limit in why.limits)])
