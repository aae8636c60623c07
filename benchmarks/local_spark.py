# SPDX-License-Identifier: Apache-2.0
"""The Spark session of the benchmarks: that of the tests, on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.harness.spark_session import spark_session

__all__ = ["spark_session"]
