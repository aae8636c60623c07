# SPDX-License-Identifier: Apache-2.0
"""SparkExecutor on a standalone master with two workers, started from the pip package."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from compactlib.budget import Budget
from compactlib.executors import LocalExecutor
from compactlib.raftlog import LogReader
from tests.spark.row_jobs import merged_block, merged_here
from tests.spark.session.cluster import standalone_cluster
from tests.spark.store_jobs import build_logs, compact_log, contents, grow, work_of

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("cluster")
    with standalone_cluster(folder, workers=2) as master:
        script = subprocess.run([sys.executable, "-m", "tests.spark.session.cluster_job", master, str(folder)],
                                cwd=ROOT,
                                capture_output=True, text=True, timeout=290, check=False)
    # It ends by being killed, once it has said everything.
    assert script.returncode == -signal.SIGKILL, script.stderr[-4000:]
    found: dict[str, Any] = json.loads(script.stdout.splitlines()[-1])
    found["folder"] = folder
    return found


def test_each_task_has_one_result(answers: dict[str, Any]) -> None:
    assert len(answers["outcomes"]) == 6
    assert sorted(answers["results"]) == [*(f"copy-{number}" for number in range(5)), "killed"], answers["outcomes"]


def test_both_workers_take_part(answers: dict[str, Any]) -> None:
    folders = [Path(told["folder"]).relative_to(answers["folder"]).parts[0] for told in answers["copied"]]
    assert len(folders) == 6
    assert set(folders) == {"worker-0", "worker-1"}


def test_the_executors_import_the_shipped_library(answers: dict[str, Any]) -> None:
    assert all(f"/{answers['archive']}/compactlib/" in told["library"] for told in answers["copied"])


def test_the_killed_attempt_left_only_a_private_file(answers: dict[str, Any]) -> None:
    source = (answers["folder"] / "source").read_bytes()
    reported = {Path(path) for path in answers["results"].values()}
    assert {path.read_bytes() for path in reported} == {source}
    strays = set(answers["private"]) - {path.name for path in reported}
    strays -= {Path(path).name for path in answers["lost"].values()}
    # The other tasks of a lost executor may have been run again as well.
    kinds = [name.partition("-")[0] for name in strays]
    assert kinds.count("killed") == 1
    assert set(kinds) <= {"killed", "lost", "beside"}
    assert answers["spent"] == 6 * len(source)


def test_tasks_of_a_lost_executor_run_again(answers: dict[str, Any]) -> None:
    source = (answers["folder"] / "source").read_bytes()
    assert sorted(answers["lost"]) == ["beside-0", "beside-1", "lost"]
    assert {Path(path).read_bytes() for path in answers["lost"].values()} == {source}
    assert (answers["folder"] / "executor-marker").exists()


def test_executors_import_from_the_library_s_own_wheel(answers: dict[str, Any]) -> None:
    assert answers["wheel"].startswith("compactlib-")
    assert answers["wheel"] != answers["archive"]
    assert f"/{answers['wheel']}/compactlib/" in answers["wheel library"]


def test_a_copy_of_a_slow_task_wins_and_the_slow_one_changes_nothing(answers: dict[str, Any], tmp_path: Path) -> None:
    """Spark's speculation: the slow attempt has its file open, and writes on when the log is published without it."""
    log = answers["folder"] / "slow" / "log-0"
    assert answers["groups"] >= 2
    assert Path(answers["straggler"]).parent == Path(answers["used"]).parent
    assert answers["straggler"] != answers["used"]
    assert answers["woke"]
    (twin,) = build_logs(tmp_path / "twin", 1)
    grow(twin)
    assert not compact_log(twin, LocalExecutor(), Budget()).is_empty
    assert contents(str(log)) == contents(twin)
    assert [path.name for path in log.iterdir() if path.is_dir()] == []


def test_the_demo_compacts_on_the_cluster_as_here(answers: dict[str, Any]) -> None:
    assert answers["demo"] == 0


def test_rows_are_merged_as_in_one_process(answers: dict[str, Any], spark: SparkSession, tmp_path: Path) -> None:
    assert answers["metarange"] == merged_here()
    assert answers["block"] == merged_block(spark, tmp_path / "blocks")


def test_a_driver_killed_between_rewrite_and_commit_loses_nothing(answers: dict[str, Any], tmp_path: Path) -> None:
    """Two logs are committed, of the third private files are there; the next run does the rest, and no more."""
    folders = [str(answers["folder"] / "logs" / f"log-{number}") for number in range(4)]
    twins = build_logs(tmp_path / "twins", 4)
    for folder, twin in zip(folders, twins, strict=True):
        with LogReader(folder) as ours, LogReader(twin) as theirs:
            assert list(ours.entries()) == list(theirs.entries())
    left = work_of(folders)
    assert left == folders[2:]
    assert [compact_log(folder, LocalExecutor(), Budget()).is_empty for folder in left] == [False, False]
    for folder, twin in zip(folders, twins, strict=True):
        compact_log(twin, LocalExecutor(), Budget())
        assert contents(folder) == contents(twin)
        assert [path.name for path in Path(folder).iterdir() if path.is_dir()] == []
