# SPDX-License-Identifier: Apache-2.0
"""Make `.venv` ready for work: create it, install uv by pip, then the project and its dependencies by uv.

Called by the Makefile with the interpreter that the user chose; needs only the standard library. A fingerprint of the
lock is kept, so that a second call returns at once.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "bootstrap.stamp"
LOCK = ROOT / "requirements.lock"
NETWORK = "check that this machine reaches a Python package registry, then run make again"


def run(what: str, *command: str | Path, advice: str) -> None:
    """Run a step; ends the program with the advice if it fails."""
    print(f"setup: {what}", flush=True)
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        sys.exit(f"setup: {what} failed; {advice}")


def main() -> None:
    """Bring `.venv` up to date."""
    lock, version = LOCK.read_text(), f"{sys.version_info.major}.{sys.version_info.minor}"
    wanted = hashlib.sha256("\0".join((version, lock, (ROOT / "pyproject.toml").read_text())).encode()).hexdigest()
    if STAMP.exists() and STAMP.read_text() == wanted:
        return
    config, python = VENV / "pyvenv.cfg", VENV / "bin" / "python"
    is_whole = config.exists() and (VENV / "bin" / "pip").exists()
    if not (is_whole and re.search(rf"^version.*= *{re.escape(version)}\.", config.read_text(), re.MULTILINE)):
        # Not sys.executable: with .venv active that is the interpreter which --clear is about to remove.
        run(f"creating .venv with Python {version}", getattr(sys, "_base_executable", sys.executable), "-m", "venv",
            "--clear", VENV, advice="install your system's package for virtual environments (Debian and Ubuntu: apt "
                                    "install python3-venv)")
    STAMP.unlink(missing_ok=True)
    pin = re.search(r"^uv==.*\n(?: .*\n)*", lock, re.MULTILINE)
    assert pin is not None, "the lock names uv"
    (VENV / "uv.txt").write_text(pin[0])
    run("installing uv", python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes",
        "-r", VENV / "uv.txt", advice=NETWORK)
    # The lock is a constraint: uv installs these versions, checks their hashes, and takes all else away.
    run("installing compactlib, editable, and its dependencies (half a gigabyte the first time, most of it Spark)",
        VENV / "bin" / "uv", "pip", "install", "--quiet", "--python", python, "--exact", "--constraints", LOCK,
        "--build-constraints", LOCK, "--group", "dev", "--editable", ".[all]", advice=NETWORK)
    STAMP.write_text(wanted)


if __name__ == "__main__":
    main()
