# SPDX-License-Identifier: Apache-2.0
"""Where the promises of the blob store are tried."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder in memory where there is one: thousands of syncs on a disk take their time."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="compactlib-blobs-", dir=memory) as folder:
        yield Path(folder)
