# SPDX-License-Identifier: Apache-2.0
"""A quiet local Spark session for demos, notebooks and tests, and the library's data sources for any session."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile  # noqa: TID251 - scratch for Spark, no data of the library
import threading
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from compactlib._arguments import require_whole
from compactlib.errors import Unsupported
from compactlib.spark.executors.jobs import BROADCAST_FROM, require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ATTEMPTS = 4
_LOOPBACK = "127.0.0.1"
_STDERR = 2
_LAST_WORDS_SECONDS = 0.1
_SAID_AT_EVERY_START = (b"WARNING: Using incubator modules", b"NOTE: Picked up JDK_JAVA_OPTIONS")

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

    It retries killed workers, runs them under this very Python, keeps shuffles to `cores` partitions and has no web
    page. A session that this process has already is returned as it is. Starting Java takes a few seconds.

    Args:
        app_name: shown in Spark's own logs.
        cores: tasks that run at once, >= 1.
        log_level: what Spark writes to stderr: "off", "error", "warn", "info".
        java_options: more options for the Java process.
        options: more Spark options, which win over those set here.

    Raises:
        Unsupported: Java did not start; the message says what to install.
    """
    require_whole("cores", cores, 1)
    require_spark("a Spark session")
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    with contextlib.suppress(PySparkRuntimeError):
        # This thread's, or that of another.
        return SparkSession.active()
    with tempfile.TemporaryDirectory(prefix="compactlib-spark-") as folder:
        # Java reads the file while the session starts, so it may go afterwards.
        log4j = os.path.join(folder, "log4j2.properties")
        with open(log4j, "w", encoding="utf-8") as out:
            out.write(_LOG4J.format(level=log_level))
        settings: dict[str, bool | float | int | str | None] = {
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{log4j} {java_options}".strip(),
            "spark.driver.host": _LOOPBACK,
            "spark.driver.bindAddress": _LOOPBACK,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": str(cores),
            "spark.sql.execution.arrow.pyspark.enabled": "true",
            # Tasks travel with the job's function, up to some mebibytes, which costs less than a join.
            BROADCAST_FROM: str(8 << 20),
            # Over TCP a task takes some 40 ms longer; Windows has no other.
            "spark.python.unix.domain.socket.enabled": str(os.name == "posix").lower(),
            **(options or {}),
        }
        try:
            with _without_launch_warning():
                session = SparkSession.builder.appName(app_name).master(f"local[{cores},{_ATTEMPTS}]").config(
                    map=settings).getOrCreate()
        except PySparkRuntimeError as error:
            if error.getCondition() != "JAVA_GATEWAY_EXITED":
                raise
            raise Unsupported("Spark could not start Java; install a Java 17 (or later) runtime (Debian and Ubuntu: "
                              "apt-get install openjdk-17-jre-headless) and put it on the PATH") from error
    # Without PYSPARK_PYTHON Spark would run whatever `python3` the PATH gives.
    session.sparkContext.pythonExec = sys.executable
    return session


@contextlib.contextmanager
def _without_launch_warning() -> Iterator[None]:
    """Have Java inherit a pipe for standard error, of which a thread passes on all but what it says at every start."""
    own: int | None = None
    with contextlib.suppress(OSError):  # where the descriptor is closed
        own = None if sys.stderr is None else os.dup(_STDERR)
    if own is None:
        yield
        return
    reading, writing = os.pipe()
    told = threading.Thread(target=_pass_on, args=(reading, os.dup(own)), name="compactlib-java-stderr", daemon=True)
    told.start()
    os.dup2(writing, _STDERR)
    os.close(writing)
    try:
        yield
    finally:
        os.dup2(own, _STDERR)
        os.close(own)
        # Where Java has ended already, what it said is worth the wait.
        told.join(_LAST_WORDS_SECONDS)


def _pass_on(reading: int, writing: int) -> None:
    with open(reading, "rb") as lines, open(writing, "wb", buffering=0) as out:
        out.writelines(line for line in lines if not line.startswith(_SAID_AT_EVERY_START))


def register(spark: SparkSession) -> None:
    """Make `spark.read.format(...).load(folder)` work in this session for `compactlib.raftlog`, `compactlib.blobstore`
    and `compactlib.staging`; `docs/spark.md` has their columns and options.

    A DataFrame sees the files that it found when it was first executed; after a compaction it may fail with `Stale`.
    With `payload=false` and `damaged=column` payloads are checked but not passed on.
    """
    require_spark("a data source of compactlib")
    from compactlib.spark.sources.blobstore import BlobStoreSource
    from compactlib.spark.sources.raftlog import RaftLogSource
    from compactlib.spark.sources.staging import StagingSource

    for source in (RaftLogSource, BlobStoreSource, StagingSource):
        spark.dataSource.register(source)


def notebook_session(app_name: str = "notebook", *, cores: int = 2, options: Mapping[str, str] | None = None
                     ) -> SparkSession:
    """`local_session` for a notebook, quiet also in its warnings, and with this library's data sources.

    A DataFrame that ends a cell is shown as a table, its first 20 rows. Arguments and errors: see `local_session`.
    """
    # PySpark warns of what it does with other packages, at every session and many calls.
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    warnings.filterwarnings("ignore", category=UserWarning, module="pyspark")
    session = local_session(app_name, cores=cores,
                            options={"spark.sql.repl.eagerEval.enabled": "true", **(options or {})})
    register(session)
    return session
