# SPDX-License-Identifier: Apache-2.0
"""Many stores: `plan_many` asks what there is to do, `compact_on_workers` compacts each store whole on a worker.

The lock of a store decides who may change it, and a fence that the workers reach. Opening a store finishes or removes
what a worker's death has left in it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from compactlib.budget import Budget, BudgetLimits
from compactlib.clock import SystemClock
from compactlib.errors import BudgetSpent, Busy, InvalidInput, NotFound
from compactlib.executors import own_error
from compactlib.files import list_folder
from compactlib.report import Table
from compactlib.spark.jobs import on_workers, require_spark, slots_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from compactlib.contract import CommitFence, Compaction, Plan
    from compactlib.fences import Fence

OpenStore: TypeAlias = "Callable[[str], Compaction]"
"""Opens the store of this name, under its lock; picklable, runs on the workers. Give `create=False`."""

OpenFence: TypeAlias = "Callable[[str], CommitFence]"
"""The fence of the store of this name; picklable, runs on the workers, all of which must reach what it asks."""

OUTCOME_DDL = ("store string, outcome string, reason string, bytes_written bigint, bytes_freed bigint, seconds double, "
               "error string")

_MOST_STORES_IN_A_TASK = 64


def is_path_of_something(name: str) -> bool:
    """Return whether there is a file of this name, or a folder in which something lies that is not hidden."""
    if os.path.isdir(name):
        return any(not each.startswith(".") for each in list_folder(name))
    return os.path.exists(name)


def plan_many(names: Iterable[str], plan: Callable[[str], Plan], *, threads: int = 16) -> Table:
    """Plan many stores in threads of this process; nothing is opened for writing, nothing changes.

    Returns:
        A table with a row for each store: `store`, `plan` (`work`, `nothing`, or `failed`), `bytes_to_copy`,
        `bytes_freed`, and `why`, of a failure the error's message.

    Args:
        names: no two the same.
        plan: opens a reader of this store and returns what it plans; what it raises is the store's failure.
        threads: how many stores are read at once.
    """
    def row(name: str) -> dict[str, Any]:
        try:
            made = plan(name)
            return {"store": name, "plan": "nothing" if made.is_empty else "work",
                    "bytes_to_copy": made.bytes_to_copy, "bytes_freed": made.bytes_freed, "why": made.why}
        except Exception as error:  # a host's own code may raise anything; the other stores go on
            return {"store": name, "plan": "failed", "bytes_to_copy": None, "bytes_freed": None, "why": str(error)}

    with ThreadPoolExecutor(threads, thread_name_prefix="compactlib-plan") as pool:
        return Table.from_dicts(list(pool.map(row, _listed_once(names))))


def compact_on_workers(spark: SparkSession, stores: Iterable[str], open_store: OpenStore, *, policy: Any = None,
                       open_fence: OpenFence | None = None, limits: BudgetLimits | None = None,
                       stores_at_once: int = 16, exists: Callable[[str], bool] = is_path_of_something) -> DataFrame:
    """Compact each store on a worker, in Spark jobs that have ended when this returns; the outcomes are a DataFrame.

    It has a row for each store: `store`, `outcome` (`done`, `skipped` or `failed`), `reason` (of what was done the
    report in one line, of a failure the error's message), `bytes_written`, `bytes_freed`, `seconds`, and `error` (a
    failure's class).

    One store's failure stops no other. A store that another process holds is skipped, as is one that was committed
    before its worker died. Stores whose worker died in every attempt are failed. A store that does not exist is failed
    with `NotFound`, and not opened, since `open_store` might make it.

    Args:
        stores: their names, no two the same; folders, for example, that all workers reach.
        policy: instead of the stores' own; picklable.
        limits: what each store's compaction may use up.
        stores_at_once: how many stores a Spark task has open at the same time, each in a thread: small stores mostly
            wait for the disk.
        exists: returns whether there is a store of this name; runs on the workers. By default the names are paths, of
            files or of folders that are not empty.
    """
    require_spark("compact_on_workers")
    if stores_at_once < 1:
        raise InvalidInput(f"stores_at_once is {stores_at_once}; give at least 1")
    names, slots = _listed_once(stores), slots_of(spark)
    one = _OneStore(open_store, policy, open_fence, BudgetLimits() if limits is None else limits, exists)
    # A cluster that grows on demand grows by the tasks that wait; a large task repeats more when its worker dies.
    together = max(1, min(_MOST_STORES_IN_A_TASK, len(names) // (4 * slots)))
    coming = on_workers(spark, one, dict(zip(names, names, strict=True)), slots=slots, together=together,
                        at_once=stores_at_once)
    rows = [(name, *(found if isinstance(found, tuple) else ("failed", str(found), 0, 0, 0.0, type(found).__name__)))
            for name, found in coming]
    return spark.createDataFrame(sorted(rows), OUTCOME_DDL)


@attrs.frozen
class _OneStore:
    """One store's compaction on a worker, from opening to closing; returns the columns from `outcome` to `error`."""

    open_store: OpenStore
    policy: Any
    open_fence: OpenFence | None
    limits: BudgetLimits
    exists: Callable[[str], bool]

    def __call__(self, name: str) -> tuple[str, str, int, int | None, float, str | None]:
        clock = SystemClock()
        began, budget = clock.monotonic(), Budget.from_limits(self.limits)
        outcome, kind, freed = "done", None, None
        try:
            if not self.exists(name):
                raise NotFound(f"there is no store {name!r}, so none was opened; check the name, make the store first, "
                               f"or say by exists= where stores are that are no files or folders of these names")
            fence = None if self.open_fence is None else self.open_fence(name)
            with contextlib.closing(self.open_store(name)) as store:
                report = store.compact(policy=self.policy, budget=budget, fence=fence)
            outcome, reason = ("skipped", report.why) if report.is_empty else ("done", repr(report))
            freed = getattr(report, "bytes_freed", None)
        except Exception as error:  # a host's own code may raise anything; the other stores go on
            own = own_error(name, error)
            # Busy: another has it open, perhaps an attempt at this very task, which Spark has given up and which goes
            # on. A budget that is spent before anything was committed is a failure.
            is_held = isinstance(error, Busy) and not isinstance(error, BudgetSpent)
            outcome, reason, kind = ("skipped", str(own), None) if is_held else ("failed", str(own), type(own).__name__)
        return outcome, reason, budget.spent_bytes, freed, clock.monotonic() - began, kind


@attrs.frozen
class HeldFence:
    """A `CommitFence` for holders of a store's own lock: each commit first admits the token, to any kind of `Fence`.

    The lock keeps the holder of a newer token out until the store is closed, so a commit need not be guarded to its
    end, and the fence may be one that cannot do that: `KVFence` and `ObjectFence`, which workers on any machine reach.
    The resource is the fence's name for the store, the token that of the driver, or of its job.
    """

    fence: Fence
    resource: str
    token: int

    def guard(self) -> contextlib.AbstractContextManager[object]:
        self.fence.admit(self.resource, self.token)
        return contextlib.nullcontext()


def _listed_once(names: Iterable[str]) -> list[str]:
    if isinstance(names, str):
        raise InvalidInput(f"the stores are {names!r}; give a list of names")
    listed = list(names)
    if len(set(listed)) < len(listed):
        twice = next(name for place, name in enumerate(listed) if name in listed[:place])
        raise InvalidInput(f"store {twice!r} is listed twice; give each store once")
    return listed
