# SPDX-License-Identifier: Apache-2.0
"""A folder that cannot be written, even by root: a read-only bind mount."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def read_only_copy(folder: Path) -> Iterator[Path]:
    """The same folder under another name, mounted read-only; skips the test where that cannot be done."""
    if os.geteuid():
        folder.chmod(0o555)
        try:
            yield folder
        finally:
            folder.chmod(0o755)
        return
    view = folder.with_name(folder.name + "-read-only")
    view.mkdir()
    commands: tuple[list[str | Path], ...] = (["mount", "--bind", folder, view],
                                              ["mount", "-o", "remount,ro,bind", view])
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("root writes everywhere, and there is no `mount` here to make a folder read-only")
        if done.returncode:
            subprocess.run(["umount", view], capture_output=True, check=False)
            pytest.skip(f"root writes everywhere, and a read-only mount is not allowed here: {done.stderr.strip()}")
    try:
        yield view
    finally:
        subprocess.run(["umount", view], capture_output=True, check=True)
