# SPDX-License-Identifier: Apache-2.0
"""How `make` finds a Java for Spark: which is refused, and the launcher for runtimes without the vector module."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts.java_home import VECTOR_MODULE, candidates, home_of, version_of


def runtime(home: Path, version: str, *, has_vector_module: bool = True) -> str:
    """A `java` that answers as a runtime of this version would, and otherwise prints its arguments, one a line."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    refuse = "" if has_vector_module else f'[ "$1" = {VECTOR_MODULE} ] && {{ echo "Module not found" >&2; exit 1; }}\n'
    java.write_text(f"""#!/bin/sh
{refuse}for last do :; done
if [ "$last" = -version ]; then echo 'openjdk version "{version}" 2025-01-01' >&2; exit 0; fi
printf '%s\\n' "$@"
exit 7
""")
    java.chmod(0o755)
    return str(java)


@pytest.mark.parametrize(("told", "version"), [("17.0.9", 17), ("1.8.0_392", 8), ("21", 21), ("25-ea", 25),
                                               ("x", None)])
def test_version_is_read_from_the_output_of_java(told: str, version: int | None, tmp_path: Path) -> None:
    assert version_of(runtime(tmp_path, told)) == version


def test_java_home_is_first_then_the_path() -> None:
    assert candidates({"JAVA_HOME": "/opt/jdk"}, "/usr/bin/java")[:2] == ["/opt/jdk/bin/java", "/usr/bin/java"]
    assert candidates({"JAVA_HOME": ""}, "/usr/bin/java")[0] == "/usr/bin/java"


def test_old_and_missing_runtimes_are_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, good = runtime(tmp_path / "old", "1.8.0_392"), runtime(tmp_path / "jdk", "17.0.9")
    link = tmp_path / "java"
    link.symlink_to(good)
    assert home_of([old, str(tmp_path / "none"), str(link)], tmp_path / "shim") == str(tmp_path / "jdk")
    assert "Java 8, and Spark needs 17" in capsys.readouterr().err
    assert home_of([old], tmp_path / "shim") is None
    assert not (tmp_path / "shim").exists()


def test_launcher_drops_one_argument_and_passes_the_others(tmp_path: Path) -> None:
    java = runtime(tmp_path / "a jdk's", "21.0.8", has_vector_module=False)
    home = home_of([java], tmp_path / "shim")
    answer = subprocess.run([f"{home}/bin/java", "-cp", "a b", VECTOR_MODULE, "--add-modules=other", "", "Main"],
                            capture_output=True, text=True, check=False)
    assert answer.stdout.split("\n") == ["-cp", "a b", "--add-modules=other", "", "Main", ""]
    assert answer.returncode == 7
    assert home_of([f"{home}/bin/java"], tmp_path / "other") == home
