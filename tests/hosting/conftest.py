# SPDX-License-Identifier: Apache-2.0
"""Folders for tests that sync thousands of times."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """As `tmp_path`, in memory where the machine has a folder there: nothing here depends on what a sync costs."""
    if not os.path.isdir("/dev/shm"):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="compactlib-hosting-", dir="/dev/shm") as folder:
        yield Path(folder)
