# SPDX-License-Identifier: Apache-2.0
"""Make `.venv` ready for work: create it, install uv by pip, what the lock names by uv, then the project itself.

Called by the Makefile with the interpreter that the user chose; needs only the standard library. What was done is
remembered as a fingerprint of the locks' content, so that a second call returns at once.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "bootstrap.stamp"
# pyproject.toml counts too: the console script and the version of the editable install come from it.
SOURCES = ("requirements/bootstrap.lock", "requirements/build.lock", "requirements/dev.lock", "pyproject.toml")


class SetupFailed(Exception):
    """A step could not be carried out; the message says what to do about it."""


def fingerprint(sources: list[bytes], version: str) -> str:
    """What the environment is made from, as one line: the locks' content and the interpreter's version."""
    digest = hashlib.sha256(version.encode())
    for source in sources:
        digest.update(len(source).to_bytes(8, "big"))
        digest.update(source)
    return digest.hexdigest()


def fits(config: str, version: str) -> bool:
    """Whether a `pyvenv.cfg` belongs to an environment of Python `version`, for example `"3.11"`."""
    found = dict(line.replace(" ", "").split("=", 1) for line in config.splitlines() if "=" in line)
    return found.get("version", found.get("version_info", "")).split(".")[:2] == version.split(".")


def _run(what: str, *command: str | Path, advice: str) -> None:
    print(f"setup: {what}", flush=True)
    if subprocess.run([str(part) for part in command], cwd=ROOT, check=False).returncode:
        raise SetupFailed(f"{what} failed; {advice}")


def _create(version: str) -> None:
    config = VENV / "pyvenv.cfg"
    if config.exists() and fits(config.read_text(), version) and (VENV / "bin" / "pip").exists():
        return
    # Not sys.executable: with .venv active that is the interpreter which --clear is about to remove.
    python = getattr(sys, "_base_executable", sys.executable)
    _run(f"creating .venv with Python {version}", python, "-m", "venv", "--clear", VENV,
         advice="install your system's package for virtual environments (Debian and Ubuntu: apt install python3-venv)")


def _install() -> None:
    python, uv = VENV / "bin" / "python", VENV / "bin" / "uv"
    network = "check that this machine reaches a Python package registry, then run make again"
    _run("installing uv", python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes",
         "-r", "requirements/bootstrap.lock", advice=network)
    _run("installing what requirements/dev.lock names (half a gigabyte the first time, most of it Spark)",
         uv, "pip", "sync", "--quiet", "--python", python, "--require-hashes",
         "--build-constraints", "requirements/build.lock", "requirements/dev.lock", advice=network)
    _run("installing compactlib itself, editable", uv, "pip", "install", "--quiet", "--python", python, "--no-deps",
         "--no-build-isolation", "--editable", ".", advice="see the build's message above")


def main() -> int:
    """Bring `.venv` up to date; returns the exit code."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    wanted = fingerprint([(ROOT / source).read_bytes() for source in SOURCES], version)
    if STAMP.exists() and STAMP.read_text() == wanted:
        return 0
    try:
        _create(version)
        STAMP.unlink(missing_ok=True)
        _install()
    except SetupFailed as failure:
        print(f"setup: {failure}", file=sys.stderr)
        return 1
    STAMP.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
