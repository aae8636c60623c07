# SPDX-License-Identifier: Apache-2.0
"""The process that Spark forks Python workers from, with what they all import loaded and frozen before the fork.

A session that is started with `spark.python.daemon.module=compactlib.spark.session.worker_daemon` takes it in the place
of Spark's own. Workers collect garbage after each task, and then look at every module of pandas and PyArrow, which
takes 35 ms of a core; at what is frozen here they do not look. The library must be installed where workers run.
Threads do not outlive a fork: NumPy and Arrow begin theirs anew.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import runpy
import sys


def main() -> None:
    """Be Spark's daemon, until Spark ends it."""
    for package in ("pandas", "pyarrow", "pyspark.worker"):
        with contextlib.suppress(ImportError):
            # What a task lacks is said by the task.
            importlib.import_module(package)
    for module in [name for name in sys.modules if name.partition(".")[0] == "compactlib"]:
        # A copy that is shipped to the workers goes before the one that this file is from.
        del sys.modules[module]
    gc.collect()
    gc.freeze()
    runpy.run_module("pyspark.daemon", run_name="__main__")


if __name__ == "__main__":
    main()
