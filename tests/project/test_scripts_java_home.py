# SPDX-License-Identifier: Apache-2.0
"""How `make` finds a Java for Spark: what is looked at, what is refused, and the launcher for cut-down runtimes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts.java_home import (
    VECTOR_MODULE,
    Java,
    ask,
    candidates,
    find,
    parse_version,
    refusal,
    shim,
    usable_home,
)

OPENJDK_17 = """openjdk version "17.0.9" 2023-10-17
OpenJDK Runtime Environment (build 17.0.9+9-Debian-1deb12u1)
OpenJDK 64-Bit Server VM (build 17.0.9+9-Debian-1deb12u1, mixed mode, sharing)
"""


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


@pytest.mark.parametrize(("told", "version"), [
    (OPENJDK_17, 17),
    ('java version "1.8.0_392"\nJava(TM) SE Runtime Environment', 8),
    ('openjdk version "21" 2023-09-19', 21),
    ('openjdk version "25-ea" 2025-09-16', 25),
    ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "11.0.21" 2023-10-17', 11),
    ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
    ("", None),
])
def test_the_version_is_read_from_what_java_prints(told: str, version: int | None) -> None:
    assert parse_version(told) == version


@pytest.mark.parametrize(("environ", "on_path", "expected"), [
    ({"JAVA_HOME": "/opt/jdk"}, "/usr/bin/java", [("JAVA_HOME", "/opt/jdk/bin/java"), ("PATH", "/usr/bin/java")]),
    ({"JAVA_HOME": ""}, "/usr/bin/java", [("PATH", "/usr/bin/java")]),
    ({"JAVA_HOME": "/opt/jdk"}, None, [("JAVA_HOME", "/opt/jdk/bin/java")]),
    ({}, None, []),
])
def test_java_home_is_looked_at_before_the_path(environ: dict[str, str], on_path: str | None,
                                                expected: list[tuple[str, str]]) -> None:
    assert candidates(environ, on_path) == expected


@pytest.mark.parametrize(("java", "why"), [
    (Java("/j", 17, has_vector_module=True), None),
    (Java("/j", 25, has_vector_module=False), None),
    (Java("/j", 16, has_vector_module=True), "it is Java 16, older than 17"),
    (None, "it does not start"),
])
def test_old_and_broken_runtimes_are_refused_with_the_reason(java: Java | None, why: str | None) -> None:
    assert refusal(java) == why


def test_a_runtime_tells_its_version_and_whether_it_has_the_module(tmp_path: Path) -> None:
    whole = runtime(tmp_path / "whole", "17.0.9")
    cut_down = runtime(tmp_path / "cut", "21.0.8", has_vector_module=False)
    assert ask(whole) == Java(whole, 17, has_vector_module=True)
    assert ask(cut_down) == Java(cut_down, 21, has_vector_module=False)


def test_what_is_not_there_or_is_no_java_does_not_answer(tmp_path: Path) -> None:
    assert ask(str(tmp_path / "bin" / "java")) is None
    no_java = tmp_path / "java"
    no_java.write_text("#!/bin/sh\necho hello\n")
    no_java.chmod(0o755)
    assert ask(str(no_java)) is None


def test_a_whole_runtime_is_used_where_it_lies_also_through_a_link(tmp_path: Path) -> None:
    java = runtime(tmp_path / "jdk", "17.0.9")
    link = tmp_path / "java"
    link.symlink_to(java)
    home = usable_home(Java(str(link), 17, has_vector_module=True), tmp_path / "shim")
    assert home == str(tmp_path / "jdk")
    assert not (tmp_path / "shim").exists()


def test_a_whole_runtime_outside_a_bin_folder_gets_a_launcher(tmp_path: Path) -> None:
    java = runtime(tmp_path / "jdk", "17.0.9")
    odd = tmp_path / "shims" / "java"
    odd.parent.mkdir()
    odd.write_text(f'#!/bin/sh\nexec {java} "$@"\n')
    odd.chmod(0o755)
    home = usable_home(Java(str(odd), 17, has_vector_module=True), tmp_path / "shim")
    assert ask(f"{home}/bin/java") == Java(f"{home}/bin/java", 17, has_vector_module=True)


def test_the_launcher_drops_the_one_argument_and_hands_on_the_rest(tmp_path: Path) -> None:
    java = runtime(tmp_path / "a jdk", "21.0.8", has_vector_module=False)
    home = usable_home(Java(java, 21, has_vector_module=False), tmp_path / "shim")
    answer = subprocess.run([f"{home}/bin/java", "-cp", "a b", VECTOR_MODULE, "--add-modules=other", "", "Main"],
                            capture_output=True, text=True, check=False)
    assert answer.stdout.split("\n") == ["-cp", "a b", "--add-modules=other", "", "Main", ""]
    assert answer.returncode == 7


def test_a_launcher_found_through_java_home_is_used_again(tmp_path: Path) -> None:
    java = runtime(tmp_path / "jdk", "21.0.8", has_vector_module=False)
    home = usable_home(Java(java, 21, has_vector_module=False), tmp_path / "shim")
    assert find({"JAVA_HOME": home}, None) == home


def test_a_launcher_names_its_java_safely() -> None:
    assert "exec '/opt/it'\"'\"'s java' \"$@\"" in shim("/opt/it's java")


def test_a_java_home_that_will_not_do_is_told_and_the_path_is_tried(tmp_path: Path,
                                                                   capsys: pytest.CaptureFixture[str]) -> None:
    runtime(tmp_path / "old", "1.8.0_392")
    on_path = runtime(tmp_path / "new", "21.0.1")
    assert find({"JAVA_HOME": str(tmp_path / "old")}, on_path) == str(tmp_path / "new")
    told = capsys.readouterr()
    assert told.out == ""
    assert "JAVA_HOME leads to" in told.err
    assert "older than 17" in told.err
    assert "Java 21 from PATH" in told.err


def test_that_nothing_was_found_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert find({}, None) is None
    assert "JAVA_HOME is not set and there is no java on PATH" in capsys.readouterr().err
