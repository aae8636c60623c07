# SPDX-License-Identifier: Apache-2.0
"""compactlib on Spark: the heavy step as a DataFrame job, and logs as tables.

    spark = SparkSession.builder.master("local[2,4]").getOrCreate()    # or another one, classic or Spark Connect
    ship_library(spark)                      # not needed where compactlib is installed on the workers
    log.compact(executor=SparkExecutor(spark))
    register(spark)
    entries = spark.read.format("compactlib.raftlog").load(folder)

Importing this package does not import PySpark; what needs it raises `MissingDependency` (extra "spark").
"""

from compactlib._lazy import offer

offer(__name__)
