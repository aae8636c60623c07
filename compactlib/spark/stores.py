# SPDX-License-Identifier: Apache-2.0
"""Many stores: `plan_many` plans them in this process, `compact_on_workers` compacts each on a Spark worker.

A store's own lock decides which process may change the store. Opening a store finishes or removes the leftovers of a
worker that died.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

from compactlib._arguments import require_whole
from compactlib.budget import Budget, BudgetLimits
from compactlib.clock import SystemClock
from compactlib.errors import BudgetSpent, Busy, InvalidInput, NotFound
from compactlib.executors import own_error
from compactlib.files import list_folder
from compactlib.report import Table
from compactlib.spark.jobs import on_workers, require_spark, slots_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from compactlib.contract import Compaction, Plan

OpenStore: TypeAlias = "Callable[[str], Compaction]"
"""Open the named store and take its lock. Picklable; runs on the workers. Must not create a store (`create=False`)."""

OUTCOME_DDL = ("store string, outcome string, reason string, bytes_written bigint, bytes_freed bigint, seconds double, "
               "error string")

_MOST_STORES_IN_A_TASK = 64
_STORES_AT_ONCE = 16
"""How many stores a Spark task has open at the same time, each in a thread: small stores mostly wait for the disk."""


def is_nonempty_path(name: str) -> bool:
    """Return whether `name` is a file, or a folder with an entry that is not hidden."""
    if os.path.isdir(name):
        return any(not each.startswith(".") for each in list_folder(name))
    return os.path.exists(name)


def plan_many(names: Iterable[str], plan: Callable[[str], Plan], *, threads: int = 16) -> Table:
    """Plan many stores in threads of this process. Stores are opened for reading only, and do not change.

    Returns:
        A table with a row for each store: `store`, `plan` (`work`, `nothing`, or `failed`), `bytes_to_copy`,
        `bytes_freed`, and `why` (the plan's reason, or the error's message).

    Args:
        names: the stores, without duplicates.
        plan: opens a reader of the named store and returns its plan; its exception makes the store's row `failed`.
        threads: how many stores are read at once. One is the fastest on a local disk; more of them wait together for a
            slow one, such as a network file system.
    """
    def row(name: str) -> dict[str, Any]:
        try:
            made = plan(name)
            return {"store": name, "plan": "nothing" if made.is_empty else "work",
                    "bytes_to_copy": made.bytes_to_copy, "bytes_freed": made.bytes_freed, "why": made.why}
        except Exception as error:  # a host's own code may raise anything; the other stores continue
            return {"store": name, "plan": "failed", "bytes_to_copy": None, "bytes_freed": None, "why": str(error)}

    with ThreadPoolExecutor(require_whole("threads", threads, 1), thread_name_prefix="compactlib-plan") as pool:
        return Table.from_dicts(list(pool.map(row, _listed_once(names))))


def compact_on_workers(spark: SparkSession, stores: Iterable[str], open_store: OpenStore, *, policy: Any = None,
                       limits: BudgetLimits | None = None,
                       exists: Callable[[str], bool] = is_nonempty_path) -> DataFrame:
    """Compact each store on a Spark worker; return the outcomes as a DataFrame, after all Spark jobs have ended.

    The DataFrame has a row for each store: `store`, `outcome` (`done`, `skipped` or `failed`), `reason` (the report in
    one line, or the error's message), `bytes_written` and `bytes_freed` (of the report, also of one that an error
    carries), `seconds`, and `error` (the class of the error).

    A store's failure does not stop the others. A store is `skipped` if another process holds its lock, or if an earlier
    attempt committed before its worker died. A store is `failed` if its worker died in every attempt. A store that does
    not exist is `failed` with `NotFound`, and is not opened, since `open_store` might create it.

    Args:
        stores: the names, without duplicates; for example folders that all workers reach.
        policy: used in place of the stores' own policies; picklable.
        limits: the budget of each store's compaction.
        exists: returns whether the named store exists; runs on the workers. By default names are paths, and a file or
            a folder that is not empty is a store.
    """
    require_spark("compact_on_workers")
    names, slots = _listed_once(stores), slots_of(spark)

    def compact_one(name: str) -> tuple[str, str, int, int | None, float, str | None]:
        # On a worker: the columns from `outcome` to `error`.
        clock = SystemClock()
        began, budget = clock.monotonic(), Budget.from_limits(limits or BudgetLimits())
        kind, report = None, None
        try:
            if not exists(name):
                raise NotFound(f"there is no store {name!r}; check the name, or create the store first; if names "
                               f"are not paths, give exists=, a function that returns whether the store exists")
            with contextlib.closing(open_store(name)) as store:
                report = store.compact(policy=policy, budget=budget)
            outcome, reason = ("skipped", report.why) if report.is_empty else ("done", repr(report))
        except Exception as error:  # a host's own code may raise anything; the other stores continue
            own, report = own_error(name, error), getattr(error, "report", None)
            # Busy: another process holds the store, perhaps an earlier attempt that Spark gave up but that still runs.
            # A budget that is spent before the first commit is a failure.
            is_held = isinstance(error, Busy) and not isinstance(error, BudgetSpent)
            outcome, reason, kind = ("skipped", str(own), None) if is_held else ("failed", str(own), type(own).__name__)
        # The bytes of the report; a staging report has none, and its budget was charged with those that were written.
        return (outcome, reason, getattr(report, "bytes_written", budget.spent_bytes),
                getattr(report, "bytes_freed", None), clock.monotonic() - began, kind)

    # Small tasks: a cluster that grows on demand grows by waiting tasks, and a killed worker repeats its whole task.
    together = max(1, min(_MOST_STORES_IN_A_TASK, len(names) // (4 * slots)))
    results = on_workers(spark, compact_one, {name: name for name in names}, slots=slots, budget=Budget(),
                         together=together, at_once=_STORES_AT_ONCE)
    rows = [(name, *(found if isinstance(found, tuple) else ("failed", str(found), 0, 0, 0.0, type(found).__name__)))
            for name, found in results]
    return spark.createDataFrame(sorted(rows), OUTCOME_DDL)


def _listed_once(names: Iterable[str]) -> list[str]:
    if isinstance(names, str):
        raise InvalidInput(f"the stores are {names!r}; give a list of names")
    listed = list(names)
    if len(set(listed)) < len(listed):
        twice = next(name for place, name in enumerate(listed) if name in listed[:place])
        raise InvalidInput(f"store {twice!r} is listed twice; give each store once")
    return listed
