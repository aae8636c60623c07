# SPDX-License-Identifier: Apache-2.0
"""Run by test_spark_store_plans.py in a process of its own: compacts logs, and is killed at a given change of the disk.

    python -m tests.spark.stores.killed_stores CHANGES FOLDER...

Prints the name of each store whose outcome was handed out before.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from typing import Any

import attrs

from compactlib.executors import Executor, LocalExecutor
from compactlib.outcome import Failed
from compactlib.raftlog import SegmentLog
from compactlib.runtime import Budget
from compactlib.spark import StoreJob, compact_stores
from tests.raftlog.wrapped_files import WatchedFiles
from tests.spark.store_jobs import LIMITS


def main(changes: int, folders: list[str]) -> None:
    """Compact the logs; die before the change of this number."""
    numbers = itertools.count()

    def look(operation: str, path: str) -> None:
        if next(numbers) == changes:
            os.kill(os.getpid(), signal.SIGKILL)

    options = attrs.evolve(LIMITS, files=WatchedFiles(look))

    def job(folder: str) -> StoreJob:
        def compact(executor: Executor, budget: Budget) -> Any:
            with SegmentLog(folder, options) as log:
                return log.compact(policy=log.policy, executor=executor, budget=budget)

        return StoreJob(folder, compact)

    for each in compact_stores(map(job, folders), LocalExecutor(2), stores_at_once=6):
        assert not isinstance(each.outcome, Failed), each
        # One write, so that no part of a line is lost or left over.
        os.write(1, f"{each.name}\n".encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
