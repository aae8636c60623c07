# SPDX-License-Identifier: Apache-2.0
"""Where and when the tests of the blob store work."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactlib.clock import ManualClock
from tests.blobstore.compaction_stores import START


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder in memory where there is one: thousands of syncs on a disk take their time."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="compactlib-blobs-", dir=memory) as folder:
        yield Path(folder)


@pytest.fixture
def clock() -> ManualClock:
    """At the time at which the stores of `compaction_stores` begin."""
    return ManualClock(START)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a store that is not there yet."""
    return tmp_path / "store"
