# SPDX-License-Identifier: Apache-2.0
"""What the page on clusters says, tried on a standalone cluster: spark-submit, executors on demand, Spark Connect."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from compactlib.budget import Budget
from compactlib.executors import LocalExecutor
from tests.harness.spark_session import QUICK_JAVA
from tests.spark.session.cluster import connect_server, standalone_cluster
from tests.spark.store_jobs import build_logs, compact_log, contents
from tests.spark.wheels import python_without_library

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "spark-cluster.md").read_text()


class Cluster:
    """A master and two workers of one core each, and the page's files."""

    def __init__(self, folder: Path, master: str) -> None:
        self.folder = folder
        self.bare = python_without_library(folder)
        (settings,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
        (program,) = re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)
        (folder / "cluster.conf").write_text(settings)
        (folder / "compact_all.py").write_text(program)
        # What this machine is too small, and a test too short for.
        self.options = ["--master", master, "--properties-file", str(folder / "cluster.conf")]
        for name, value in {
            "spark.executor.memory": "512m", "spark.dynamicAllocation.executorIdleTimeout": "2s",
            "spark.driver.extraJavaOptions": QUICK_JAVA, "spark.executor.extraJavaOptions": QUICK_JAVA,
            "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.log.level": "WARN",
            "spark.ui.port": "0", "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.pyspark.driver.python": sys.executable, "spark.pyspark.python": self.bare["PYSPARK_PYTHON"],
            **{f"spark.executorEnv.{name}": value for name, value in self.bare.items()},
        }.items():
            self.options += ["--conf", f"{name}={value}"]

    def submit(self, *arguments: str) -> str:
        """What a program says that spark-submit runs."""
        home = Path(pyspark.__file__).parent
        ran = subprocess.run([str(home / "bin" / "spark-submit"), *self.options, *arguments], cwd=self.folder,
                             env={**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1",
                                  "PYTHONPATH": str(ROOT)},
                             capture_output=True, text=True, timeout=290, check=False)
        assert ran.returncode == 0, ran.stderr[-4000:]
        return ran.stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("submitted")
    with standalone_cluster(folder, workers=2) as master:
        yield Cluster(folder, master)


def same_as_here(folders: list[str], twins: list[str]) -> None:
    for folder, twin in zip(folders, twins, strict=True):
        compact_log(twin, LocalExecutor(), Budget())
        assert contents(folder) == contents(twin)


def test_the_page_s_program_compacts_every_log(cluster: Cluster) -> None:
    folders = build_logs(cluster.folder / "page", 3)
    said = cluster.submit("compact_all.py", *folders)
    assert said.count("|done ") == 3
    assert said.count("|NULL ") == 3


def test_a_cluster_starts_with_no_executors_grows_while_stores_wait_and_shrinks(cluster: Cluster) -> None:
    folders = build_logs(cluster.folder / "demand", 12)
    said = cluster.submit(str(Path(__file__).with_name("submitted_job.py")), str(cluster.folder / "marker"), *folders)
    answers = json.loads(said.splitlines()[-1])
    assert answers == {"executors": [0, 2, 0], "outcomes": ["done"] * 12, "again": ["skipped"] * 12}


def test_over_connect_the_cluster_s_executors_do_the_work(cluster: Cluster, tmp_path: Path) -> None:
    # Any port, which its log tells.
    options = [*cluster.options, "--conf", "spark.connect.grpc.binding.port=0", "--conf", "spark.log.level=INFO"]
    # The server has the library for the functions of streams, which do not see what was shipped; executors have not.
    environment = {**cluster.bare, "PYTHONPATH": f"{cluster.bare['PYTHONPATH']}:{ROOT}"}
    with connect_server(cluster.folder / "server", options, environment) as address:
        ran = subprocess.run([sys.executable, "-m", "tests.spark.session.remote_job", address, str(cluster.folder)],
                             cwd=ROOT, capture_output=True, text=True, timeout=290, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    answers = json.loads(ran.stdout.splitlines()[-1])
    assert answers.pop("master").startswith("spark://")
    assert answers.pop("session") == "pyspark.sql.connect.session"
    assert answers.pop("live") > 0
    assert answers == {"groups": 1, "planned": 6, "outcomes": ["done"] * 6, "again": False,
                       "streamed": ["log-0 done", "log-1 done", "log-2 done"]}
    same_as_here([str(cluster.folder / "many" / f"log-{number}") for number in range(6)],
                 build_logs(tmp_path / "twins", 6))
