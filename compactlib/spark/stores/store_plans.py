# SPDX-License-Identifier: Apache-2.0
"""`plan_stores`: which of many stores have work, found out on the workers in one job, before anything begins."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from compactlib.blobstore.errors import NotAStore as NotABlobStore
from compactlib.errors import Busy, InvalidInput, NotFound
from compactlib.kv.errors import NotAStore as NotAKeyValueStore
from compactlib.outcome import Failed, Skipped
from compactlib.raftlog import LogPolicy, LogReader, SeedPolicy
from compactlib.raftlog.errors import NotALog
from compactlib.report import Printed
from compactlib.rewrite import Executor
from compactlib.runtime import Budget
from compactlib.spark.executors.items import map_items
from compactlib.spark.stores.many_stores import StoreJob, listed_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_MISSING = (NotFound, NotALog, NotABlobStore, NotAKeyValueStore)
"""What a look raises where there is no store of the name."""


@attrs.frozen
class StoreWork:
    """A store has something to do: so much, in any unit (bytes to copy, for example), >= 0; and what, in words."""

    weight: float
    reason: str = ""

    def __attrs_post_init__(self) -> None:
        if not self.weight >= 0:
            raise InvalidInput(f"the weight of a store's work is {self.weight}; give 0 or more")
        object.__setattr__(self, "weight", float(self.weight))


PlanStore: TypeAlias = Callable[[str], StoreWork | Skipped]
"""Looks at the store of this name from outside, and says what there is to do; picklable, runs on the workers.

What a crash has left in a store is work too, if opening the store removes it.
"""

CompactStore: TypeAlias = Callable[[str, Executor, Budget], object]
"""Opens the store of this name, compacts it on this executor under this budget, commits, closes it; its outcome."""


@attrs.frozen
class StorePlan:
    """What one store has to do, or why nothing; `Failed` if it could not be looked at, or does not exist."""

    name: str
    found: StoreWork | Skipped | Failed

    @property
    def kind(self) -> str:
        """`work`, `skipped`, `failed`, or `missing`: where it was looked for is nothing, or something else."""
        if isinstance(self.found, Failed) and isinstance(self.found.error, _MISSING):
            return "missing"
        return type(self.found).__name__.removeprefix("Store").lower()

    @property
    def weight(self) -> float | None:
        """That of the work, `None` if there is none or it is unknown."""
        return self.found.weight if isinstance(self.found, StoreWork) else None

    @property
    def reason(self) -> str:
        """Why, in one sentence; an error's message."""
        return str(self.found.error) if isinstance(self.found, Failed) else self.found.reason


@attrs.frozen(repr=False)
class StoresPlan(Printed):
    """What many stores have to do: those that do not exist, those that could not be looked at, then those with work,
    the heaviest first."""

    stores: tuple[StorePlan, ...]

    @property
    def work(self) -> dict[str, float]:
        """The stores that are left, each with its weight, in the order in which they begin; for `compact_on_workers`.

        Stores that could not be looked at are among them: opening one may finish or repair what a look from outside
        cannot go through. Those that are missing are not: opening one would make it.
        """
        heaviest = max((each.weight or 0.0 for each in self.stores), default=0.0)
        return {each.name: heaviest if each.weight is None else each.weight
                for each in self.stores if each.kind in ("work", "failed")}

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of which there is no store: check them, and let the run fail."""
        return tuple(each.name for each in self.stores if each.kind == "missing")

    def jobs(self, compact: CompactStore) -> list[StoreJob]:
        """One job for each store with work, for `compact_stores`."""
        return [StoreJob(name, functools.partial(compact, name), weight) for name, weight in self.work.items()]

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row a store: `store`, `plan` (`work`, `skipped`, `failed` or `missing`), `weight`, `reason`."""
        return [{"store": each.name, "plan": each.kind, "weight": each.weight, "reason": each.reason}
                for each in self.stores]

    def _summary(self) -> str:
        kinds, weight = Counter(each.kind for each in self.stores), sum(each.weight or 0.0 for each in self.stores)
        return (f"{len(self.stores):,} stores: {kinds['work']:,} with work of {weight:,.0f}, "
                f"{kinds['skipped']:,} without, {kinds['failed']:,} could not be looked at"
                f"{', ' + format(kinds['missing'], ',') + ' missing' if kinds['missing'] else ''}")


def plan_stores(spark: SparkSession, names: Sequence[str], plan: PlanStore, *,
                weights: Sequence[float] | None = None, parts: int | None = None) -> StoresPlan:
    """Ask all stores in one Spark job what they have to do; nothing is opened in this process, nothing changes.

    Costs what `plan` costs, divided among the workers, and some 200 bytes a store in this process.

    Args:
        names: no two the same; folders, for example.
        plan: what it raises is that store's answer.
        weights: how long looking takes, in any unit; see `map_items`, also for `parts`.
    """
    asked: Callable[[str], object] = plan
    stores = [StorePlan(each.item, each.value if isinstance(each.value, StoreWork | Skipped) else Failed(
        each.error or InvalidInput(f"planning store {each.item} gave a {type(each.value).__name__}; it must give "
                                   "StoreWork or Skipped")))
              for each in map_items(spark, listed_once(names), asked, weights=weights, parts=parts)]
    return StoresPlan(tuple(sorted(stores, key=lambda each: (
        ("missing", "failed", "work", "skipped").index(each.kind), -(each.weight or 0.0), each.name))))


@attrs.frozen(kw_only=True)
class PlanLog:
    """A `PlanStore` for folders of Raft logs: reads their segments' indexes and the snapshot, and changes nothing.

    The weight is the bytes to copy, for a log with nothing to copy but segments to drop 0. A log in which a
    crash has left something has work as well: opening it finishes or removes that. It is planned under the limits with
    which its newest segment was begun.

    Attributes:
        policy: the one that it is going to be compacted with; `DropDead()` for drops alone.
    """

    policy: LogPolicy = attrs.field(factory=SeedPolicy)

    def __call__(self, folder: str) -> StoreWork | Skipped:
        """What this log has to do; raises what `LogReader` does."""
        try:
            with LogReader(folder) as log:
                left = log.leftovers()
                plan = log.plan(self.policy)
        except NotFound as error:
            raise Busy(f"{folder} changes while it is looked at: {error}") from error
        told = plan.table().title
        if left:
            return StoreWork(plan.bytes_to_copy, f"{told}; left by an interrupted run: {', '.join(left[:3])}"
                                                 f"{', ...' if len(left) > 3 else ''}")
        return Skipped(told) if plan.is_empty else StoreWork(plan.bytes_to_copy, told)
