"""SparkExecutor on a standalone master with two workers, started from the pip package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.spark.cluster import standalone_cluster

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("cluster")
    with standalone_cluster(folder, workers=2) as master:
        script = subprocess.run([sys.executable, "-m", "tests.spark.cluster_job", master, str(folder)], cwd=ROOT,
                                capture_output=True, text=True, timeout=180, check=False)
    assert script.returncode == 0, script.stderr[-4000:]
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
    assert [name.partition("-")[0] for name in strays] == ["killed"]
    assert answers["spent"] == 6 * len(source)
