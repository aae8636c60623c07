# SPDX-License-Identifier: Apache-2.0
"""`examples/ingest_service.py`: small blocks become large ones, and no event is lost although a worker is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")
EXAMPLE = Path(__file__).parents[3] / "examples" / "ingest_service.py"


def test_example_runs_as_a_script(tmp_path: Path) -> None:
    result = subprocess.run([sys.executable, str(EXAMPLE), str(tmp_path)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["acme: 2500 events", "globex: 2500 events", "100 batches in 4 blocks"]
    assert result.stderr == ""
