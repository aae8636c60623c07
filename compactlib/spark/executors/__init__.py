# SPDX-License-Identifier: Apache-2.0
"""Spark jobs over pickled work: `map_items` for any, `SparkExecutor` for rewrite tasks."""
