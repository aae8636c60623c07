"""A quiet local Spark session for demos, notebooks and tests."""

from __future__ import annotations

import os
import sys
import tempfile  # noqa: TID251 - scratch for Spark, no data of the library
from collections.abc import Mapping
from typing import TYPE_CHECKING

from compactlib.errors import InvalidInput, Unsupported
from compactlib.spark.dependencies import require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ATTEMPTS = 4
_LOOPBACK = "127.0.0.1"

# Spark replaces a configuration without an appender by its own, which is loud; without a level for its own loggers
# it takes this for a shell, changes the level, and says so.
_LOG4J = """\
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex
logger.spark.name = org.apache.spark
logger.spark.level = {level}
"""


def local_session(app_name: str = "compactlib", *, cores: int = 2, log_level: str = "off", java_options: str = "",
                  options: Mapping[str, str] | None = None) -> SparkSession:
    """A classic session in this process that listens on loopback only and prints next to nothing.

    It retries killed workers (`local[cores,4]`; plain `local[cores]` never does), runs workers under this very Python,
    keeps shuffles to `cores` partitions and has no web page. If this process already has a session, that one is
    returned as it is. Starting Java takes a few seconds; `spark.stop()` ends it.

    Args:
        app_name: shown in Spark's own logs.
        cores: tasks that run at once, >= 1.
        log_level: what Spark writes to stderr: "off", "error", "warn", "info".
        java_options: more options for the Java process.
        options: more Spark options, which win over those set here.

    Raises:
        InvalidInput: `cores` is less than 1.
        MissingDependency: PySpark is not installed.
        Unsupported: Java did not start; the message says what to install.
    """
    if cores < 1:
        raise InvalidInput(f"a session needs at least one core, found {cores}")
    require_spark("a Spark session")
    from pyspark import SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    if SparkContext._active_spark_context is not None:
        # Active in another thread only; without options it comes back unchanged.
        return SparkSession.builder.getOrCreate()
    with tempfile.TemporaryDirectory(prefix="compactlib-spark-") as folder:
        # Java reads the file while the session starts, so it may go afterwards.
        log4j = os.path.join(folder, "log4j2.properties")
        with open(log4j, "w", encoding="utf-8") as out:
            out.write(_LOG4J.format(level=log_level))
        settings = {**_settings(cores, f"-Dlog4j2.configurationFile=file:{log4j} {java_options}"), **(options or {})}
        builder = SparkSession.builder.appName(app_name).master(f"local[{cores},{_ATTEMPTS}]")
        for name, value in settings.items():
            builder = builder.config(name, value)
        try:
            session = builder.getOrCreate()
        except PySparkRuntimeError as error:
            if error.getCondition() != "JAVA_GATEWAY_EXITED":
                raise
            raise Unsupported("Spark could not start Java; install a Java 17 (or later) runtime (Debian and Ubuntu: "
                              "apt-get install openjdk-17-jre-headless) and put it on the PATH") from error
    # Without PYSPARK_PYTHON Spark would run whatever `python3` the PATH gives.
    session.sparkContext.pythonExec = sys.executable
    return session


def notebook_session(app_name: str = "notebook", *, cores: int = 2, options: Mapping[str, str] | None = None
                     ) -> SparkSession:
    """`local_session` for a notebook, in one line: quiet also in its warnings, and with this library's data sources.

    >>> spark = notebook_session()                                        # doctest: +SKIP
    >>> spark.read.format("compactlib.raftlog").load("/data/log")         # doctest: +SKIP

    Args:
        app_name: shown in Spark's own logs.
        cores: tasks that run at once, >= 1.
        options: more Spark options.

    Raises:
        InvalidInput, MissingDependency, Unsupported: as for `local_session`.
    """
    import warnings

    from compactlib.spark.register import register

    # PySpark warns of what it does with other packages, at every session and many calls.
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    warnings.filterwarnings("ignore", category=UserWarning, module="pyspark")
    session = local_session(app_name, cores=cores, options=options)
    register(session)
    return session


def _settings(cores: int, java_options: str) -> dict[str, str]:
    return {
        "spark.driver.extraJavaOptions": java_options.strip(),
        "spark.driver.host": _LOOPBACK,
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
