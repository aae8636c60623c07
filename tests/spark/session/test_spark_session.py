# SPDX-License-Identifier: Apache-2.0
"""local_session: quiet, on loopback, retrying."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from compactlib.errors import InvalidInput
from compactlib.spark import local_session


@pytest.mark.spark
def test_it_retries_and_listens_on_loopback_only(spark: SparkSession) -> None:
    settings = {name: spark.conf.get(name) for name in (
        "spark.master", "spark.driver.host", "spark.driver.bindAddress", "spark.ui.enabled")}
    assert settings == {"spark.master": "local[2,4]", "spark.driver.host": "127.0.0.1",
                        "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": "false"}


@pytest.mark.spark
def test_a_running_session_is_returned_as_it_is(spark: SparkSession) -> None:
    assert local_session("another", cores=1) is spark
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(local_session, "another", cores=1).result() is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_at_least_one_core() -> None:
    with pytest.raises(InvalidInput, match="cores is 0"):
        local_session(cores=0)


@pytest.mark.parametrize("before", ["", "import io, os, sys; os.close(2); sys.stderr = io.StringIO()"])
def test_without_java_it_says_what_to_install(before: str) -> None:
    script = (f"{before}\nfrom compactlib.spark import local_session; from compactlib.errors import Unsupported\n"
              "try:\n    local_session()\nexcept Unsupported as error:\n    print(error)")
    answer = subprocess.run([sys.executable, "-c", script], env={**os.environ, "JAVA_HOME": "/nonexistent"},
                            capture_output=True, text=True, check=True)
    assert "install a Java 17" in answer.stdout
    # What the launcher said of it is not lost, unless there is nowhere to say it.
    assert before or "/nonexistent/bin/java" in answer.stderr


@pytest.mark.spark
def test_java_says_nothing_at_all(startup_stderr: str) -> None:
    assert startup_stderr == ""


@pytest.mark.spark
def test_workers_of_the_daemon_have_modules_frozen_and_take_the_library_that_is_shipped(tmp_path: Path) -> None:
    answer = subprocess.run([sys.executable, "-c", DAEMON_SCRIPT], cwd=tmp_path, capture_output=True, text=True,
                            check=True)
    frozen, collects, name, file = answer.stdout.split()
    assert int(frozen) > 10_000
    assert collects == "True"
    assert name in file


DAEMON_SCRIPT = """
from compactlib.spark import local_session, ship_library
spark = local_session(options={"spark.python.daemon.module": "compactlib.spark.session.worker_daemon"})
name = ship_library(spark)

def look(batches):
    import gc
    import compactlib
    import pyarrow as pa
    for batch in batches:
        seen = [f"{gc.get_freeze_count()} {gc.isenabled()} NAME {compactlib.__file__}"]
        yield pa.RecordBatch.from_pydict({"seen": seen})

print(spark.range(0, 1, 1, 1).mapInArrow(look, "seen string").first()["seen"].replace("NAME", name))
spark.stop()
"""
