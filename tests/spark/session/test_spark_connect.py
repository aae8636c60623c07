# SPDX-License-Identifier: Apache-2.0
"""SparkExecutor over Spark Connect, in a process of its own: one process has classic sessions or Connect ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from compactlib.budget import Budget
from compactlib.executors import LocalExecutor
from compactlib.testing import ExecutorConformance
from tests.spark.row_jobs import merged_block, merged_here
from tests.spark.store_jobs import build_logs, compact_log, contents

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("connect")
    script = subprocess.run([sys.executable, "-m", "tests.spark.session.connect_job", str(folder)], cwd=ROOT,
                            capture_output=True, text=True, timeout=290, check=False)
    assert script.returncode == 0, script.stderr[-4000:]
    found: dict[str, Any] = json.loads(script.stdout.splitlines()[-1])
    found["folder"] = folder
    return found


def test_the_executor_conforms(answers: dict[str, Any]) -> None:
    assert answers["passed"] == sorted(name for name in dir(ExecutorConformance) if name.startswith("test_"))


def test_outcomes_arrive_while_jobs_run_and_cancel_ends_those(answers: dict[str, Any]) -> None:
    assert len(answers["streamed"]) == 9
    assert answers["streamed"][-1] == "late"
    *done, ended = answers["cancelled"]
    assert all(each.startswith("RewriteResult(task='first ") for each in done)
    assert ended.startswith("RewriteFailure(task='late', error=BudgetSpent('the work was cancelled")


def test_workers_import_the_shipped_library(answers: dict[str, Any]) -> None:
    assert f"/{answers['archive']}/compactlib/" in answers["library"]


def test_a_log_is_compacted_from_the_library_s_own_wheel(answers: dict[str, Any], tmp_path: Path) -> None:
    """In a session of its own, whose workers have the library from nowhere else."""
    assert answers["library wheel"] != answers["archive"]
    assert f"/{answers['library wheel']}/compactlib/" in answers["wheel library"]
    assert answers["compacted"] == 1
    (twin,) = build_logs(tmp_path / "twin", 1)
    compact_log(twin, LocalExecutor(), Budget())
    assert contents(str(answers["folder"] / "logs" / "log-0")) == contents(twin)


def test_rows_are_merged_as_in_one_process(answers: dict[str, Any], spark: SparkSession, tmp_path: Path) -> None:
    assert answers["metarange"] == merged_here()
    assert answers["block"] == merged_block(spark, tmp_path / "blocks")


def test_the_data_source_gives_the_logs_rows(answers: dict[str, Any]) -> None:
    assert answers["rows equal"] is True


def test_a_master_that_never_retries_is_named(answers: dict[str, Any]) -> None:
    kind, message = answers["killed"]
    assert kind == "TaskFailed"
    assert "'deadly'" in message
    assert "tasks are not retried" in message
    assert "local[N,4]" in message


def test_a_stopped_session_gives_a_failure(answers: dict[str, Any]) -> None:
    kind, message = answers["stopped"]
    assert kind == "TaskFailed"
    assert "'late'" in message
    assert "repair the session" in message
