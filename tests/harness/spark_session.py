# SPDX-License-Identifier: Apache-2.0
"""A Spark session on this machine, for tests and benchmarks: on loopback, it retries killed workers."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Short-lived Java processes come up in half the time with the quick compiler and the small collector."""


def spark_session(name: str, *, cores: int = 2, java_options: str = "", options: Mapping[str, str] | None = None
                  ) -> SparkSession:
    """Start one, whose workers run this very Python.

    Args:
        name: shown in Spark's own logs.
        cores: tasks that run at once.
        java_options: for the Java process.
        options: more Spark options, which win over those set here.
    """
    from pyspark.sql import SparkSession

    session = SparkSession.builder.appName(name).master(f"local[{cores},4]").config(map={
        "spark.driver.extraJavaOptions": java_options,
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "OFF",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.broadcast.UDFCompressionThreshold": str(8 << 20),
        "spark.python.unix.domain.socket.enabled": str(os.name == "posix").lower(),
        **(options or {}),
    }).getOrCreate()
    session.sparkContext.pythonExec = sys.executable
    return session
