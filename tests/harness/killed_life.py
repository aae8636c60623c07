# SPDX-License-Identifier: Apache-2.0
"""A process that lives on a log or a store of logs until it is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def killed_life(module: str, folder: Path, seed: int, lines: int) -> list[str]:
    """Run a module with this folder and seed, kill it once it has told so many lines, and return all that it told."""
    command = [sys.executable, "-m", module, str(folder), str(seed)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(lines)]
        process.send_signal(signal.SIGKILL)
        told.extend(process.stdout.readlines())
    assert process.returncode == -signal.SIGKILL, told[-1]
    return [line.decode().rstrip("\n") for line in told if line.endswith(b"\n")]
