# SPDX-License-Identifier: Apache-2.0
"""compactlib on Spark: the heavy step as a DataFrame job, and logs as tables.

    from compactlib.executors.tasks import LocalExecutor
    from compactlib.spark import SparkExecutor, local_session, ship_library

    spark = local_session(cores=2)           # or your own session, classic or Spark Connect
    ship_library(spark)                      # not needed where compactlib is installed on the workers
    executor = SparkExecutor(spark)          # goes wherever a LocalExecutor goes
    for outcome in executor.run(tasks):      # each task once: a RewriteResult or a RewriteFailure
        ...                                  # publishing the new files stays with this process
    register(spark)
    entries = spark.read.format("compactlib.raftlog").load(folder)

Importing this package does not import PySpark; what needs it raises `MissingDependency` (extra "spark").
"""

from compactlib._lazy import offer

offer(__name__)
