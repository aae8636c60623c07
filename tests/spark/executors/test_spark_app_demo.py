# SPDX-License-Identifier: Apache-2.0
"""The console script on Spark, in the session that these tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from compactlib.app.cli import main
from compactlib.app.demo_log import LogSize
from compactlib.app.proof import differing_files
from tests.app.log_folders import contents, make_log, run_compactlib

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


def test_the_demo_compacts_here_and_on_spark_and_both_are_the_same(spark: SparkSession, tmp_path: Path,
                                                                 capsys: pytest.CaptureFixture[str]) -> None:
    source, kept = tmp_path / "input", tmp_path / "kept"
    source.mkdir()
    for number in range(60):
        (source / f"{number}.txt").write_bytes(b"line %d\n" % number * number)
    assert main(["demo", "--input", str(source), "--folder", str(kept), "--workers", "2"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "\nverified  " in said.out
    assert "the segments of local and spark are the same, byte by byte\n" in said.out
    assert differing_files(str(kept / "local"), str(kept / "spark")) == []
    assert LogSize.of(str(kept / "spark")).file_bytes < LogSize.of(str(kept / "written")).file_bytes / 2
    # The session is not the demo's own.
    assert spark.range(3).count() == 3


def test_a_process_starts_and_ends_a_session_of_its_own(tmp_path: Path) -> None:
    folder = make_log(tmp_path / "log")
    done = run_compactlib("compact", "--policy", "seed", "--executor", "spark", "--workers", "1", folder)
    assert done.returncode == 0, done.stderr
    assert "dropped 2, rewrote 4 segments into 1" in done.stdout
    assert main(["verify", str(folder)]) == 0


def test_without_java_one_line_says_what_to_install(tmp_path: Path) -> None:
    folder = make_log(tmp_path / "log")
    before = contents(folder)
    without = f"import os; os.environ['PATH'] = '/bin:/usr/bin'; os.environ['JAVA_HOME'] = {str(tmp_path)!r}"
    done = run_compactlib("compact", "--executor", "spark", folder, before=without)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].startswith("compactlib: Spark could not start Java; install a Java 17")
    assert "Traceback" not in done.stderr
    assert contents(folder) == before
