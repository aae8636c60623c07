# SPDX-License-Identifier: Apache-2.0
"""`compact_on_workers`: many small stores, each opened, planned, compacted and committed on a worker.

Who may change a store is for its own lock to say, and for a fence that workers reach. Opening one finishes or removes
what a worker's death has left in it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from compactlib.clock import SystemClock
from compactlib.contract import CommitFence, Policy
from compactlib.errors import BudgetSpent, Busy, NotFound
from compactlib.executors import own_error
from compactlib.files import list_folder
from compactlib.outcome import is_empty, raised
from compactlib.runtime import Budget, BudgetLimits
from compactlib.spark.executors.items import map_items
from compactlib.spark.stores.many_stores import listed_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from compactlib.contract import Compaction
    from compactlib.fences import Fence

OpenStore: TypeAlias = "Callable[[str], Compaction]"
"""Opens the store of this name, under its lock; picklable, runs on the workers."""

OpenFence: TypeAlias = Callable[[str], CommitFence]
"""The fence of the store of this name; picklable, runs on the workers, all of which must reach what it asks."""

Exists: TypeAlias = Callable[[str], bool]
"""Whether there is a store of this name; picklable, runs on the workers, changes nothing."""

OUTCOME_DDL = "store string, outcome string, reason string, bytes bigint, seconds double, error string"

DEFAULT_STORES_IN_A_TASK = 16
"""Small stores mostly wait for the disk: one after the other would leave the core idle nine tenths of the time."""


def is_path_of_something(name: str) -> bool:
    """Whether there is a file of this name, or a folder in which something lies that is not hidden."""
    if os.path.isdir(name):
        return any(not each.startswith(".") for each in list_folder(name))
    return os.path.exists(name)


@attrs.frozen
class HeldFence:
    """A `CommitFence` for who holds a store's own lock: each commit first admits the token, to any kind of `Fence`.

    The lock keeps the holder of a newer token out until the store is closed, so a commit need not be guarded to its
    end, and the fence may be one that cannot do that: `KVFence` and `ObjectFence`, which workers on any machine reach.
    The resource is the fence's name for the store, the token that of the driver, or of its job.
    """

    fence: Fence
    resource: str
    token: int

    def guard(self) -> contextlib.AbstractContextManager[object]:
        """See `CommitFence.guard`; raises what the fence's `admit` does."""
        self.fence.admit(self.resource, self.token)
        return contextlib.nullcontext()


@attrs.frozen
class WholeStore:
    """One store's compaction, from opening to closing, as `compact_on_workers` is told; what runs on a worker."""

    open_store: OpenStore
    policy: Policy[Any, Any] | None = None
    open_fence: OpenFence | None = None
    limits: BudgetLimits = attrs.field(factory=BudgetLimits)
    exists: Exists | None = None

    def __call__(self, name: str) -> tuple[str, str, str, int, float, str | None]:
        """A row of what `compact_on_workers` gives; nothing is raised that is an `Exception`."""
        clock = SystemClock()
        began, budget = clock.monotonic(), Budget.from_limits(self.limits)
        try:
            if self.exists is not None and not self.exists(name):
                raise NotFound(f"there is no store {name!r}, so none was opened; check the name, make the store first, "
                               f"or say by exists= where stores are that are no files or folders of these names")
            fence = None if self.open_fence is None else self.open_fence(name)
            with contextlib.closing(self.open_store(name)) as store:
                report = raised(store.compact(policy=self.policy, budget=budget, fence=fence))
            told: tuple[str, str, str | None] = (
                ("skipped", report.why, None) if is_empty(report) else ("done", repr(report), None))
        except Exception as error:  # a host's own code may raise anything; the other stores go on
            # Busy: another has it open, perhaps an attempt at this very task, which Spark has given up and which goes
            # on. A budget that is spent before anything was committed is a failure.
            is_skipped = isinstance(error, Busy) and not isinstance(error, BudgetSpent)
            own = own_error(name, error)
            told = ("skipped", str(error), None) if is_skipped else ("failed", str(own), type(own).__name__)
        kind, reason, error_name = told
        return name, kind, reason, budget.spent_bytes, clock.monotonic() - began, error_name


def compact_on_workers(spark: SparkSession, stores: Iterable[str] | Mapping[str, float], open_store: OpenStore, *,
                       policy: Policy[Any, Any] | None = None, open_fence: OpenFence | None = None,
                       limits: BudgetLimits | None = None, stores_at_once: int = DEFAULT_STORES_IN_A_TASK,
                       parts: int | None = None, exists: Exists | None = None) -> DataFrame:
    """Compact each store on a worker, in one Spark job that has ended when this returns; the outcomes are a DataFrame.

    It has a row a store: `store`, `outcome` (`done`, `skipped` or `failed`), `reason` (an error's message, and of what
    was done the report in one line), `bytes` (written), `seconds`, and `error` (a failure's class).

    One store's failure does not stop the others. A store that another process holds is skipped, as one that was
    committed before its worker died. Where a worker died in every attempt, its stores come as failed. One that does
    not exist comes as failed with `NotFound`: it is not opened, since `open_store` may make it.

    Args:
        stores: their names, no two the same; folders, for example, that all workers reach. A mapping gives each its
            weight in any unit: the heaviest begin first, and Spark's tasks are packed to weigh the same.
        policy: instead of the stores' own; picklable.
        limits: what each store's compaction may use up.
        stores_at_once: how many stores a Spark task has open at the same time, each in a thread, >= 1.
        parts: how many Spark tasks to make at most; see `map_items`.
        exists: says of a name whether there is a store. By default the names are paths, of files or of folders that
            are not empty.
    """
    one = WholeStore(open_store, policy, open_fence, BudgetLimits() if limits is None else limits,
                     is_path_of_something if exists is None else exists)
    weights = list(stores.values()) if isinstance(stores, Mapping) else None
    mapped = map_items(spark, listed_once(stores), one, weights=weights, parts=parts, at_once=stores_at_once)
    rows = [each.value or (each.item, "failed", str(each.error), 0, 0.0, type(each.error).__name__) for each in mapped]
    return spark.createDataFrame(rows, OUTCOME_DDL)
