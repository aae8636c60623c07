# SPDX-License-Identifier: Apache-2.0
"""Merges of rows that are four times as large as the memory that Spark is given."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.soak]


def test_merges_of_four_times_the_memory_of_spark(tmp_path: Path) -> None:
    """Two gibibytes of rows with a heap of half a gibibyte: Parquet blocks into one and into several, and changes."""
    done = subprocess.run([sys.executable, "-m", "tests.spark.rewrites.past_memory", str(tmp_path), "2048", "512m"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
