# SPDX-License-Identifier: Apache-2.0
"""The console on Spark: the demo in a session that is there, and a session of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from compactlib.cli import main
from compactlib.demo import differing_files
from tests.promises.console.stores import run_console

pytestmark = [pytest.mark.spark, pytest.mark.cluster]


def test_demo_compacts_here_and_on_spark_to_the_same_bytes(spark: SparkSession, tmp_path: Path,
                                                           capsys: pytest.CaptureFixture[str]) -> None:
    source, kept = tmp_path / "input", tmp_path / "kept"
    source.mkdir()
    for number in range(60):
        (source / f"{number}.txt").write_bytes(b"line %d\n" % number * number)
    assert main(["demo", "--input", str(source), "--folder", str(kept)]) == 0
    said = capsys.readouterr()
    assert "the segments of local and spark are the same, byte by byte\n" in said.out
    assert differing_files(str(kept / "local"), str(kept / "spark")) == []
    assert spark.range(3).count() == 3, "the session is not the demo's own"


def test_process_starts_and_ends_its_own_session(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a line\n" * 100)
    done = run_console("demo", "--executor", "spark", "--input", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\nverified  1 live values identical by SHA-256" in done.stdout


def test_without_java_one_line_advises_to_install_java(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a line\n")
    without = f"os.environ['PATH'] = '/bin:/usr/bin'; os.environ['JAVA_HOME'] = {str(tmp_path)!r}"
    done = run_console("demo", "--executor", "spark", "--input", tmp_path, before=without)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("compactlib: Spark could not start Java; install a Java 17")
