# SPDX-License-Identifier: Apache-2.0
"""`examples/far_behind.py`: followers get a snapshot over streams between processes; one is killed, and resumes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "far_behind.py"


def test_killed_follower_resumes_its_transfer(tmp_path: Path) -> None:
    result = subprocess.run([sys.executable, str(EXAMPLE), str(tmp_path)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    whole, killed, resumed, same = result.stdout.splitlines()
    assert whole == "first follower: 2000 values, everything up to 5000"
    assert killed == "second follower: ended by signal 9"
    behind = re.fullmatch(r"second follower: goes on behind (\d+) bytes of the state", resumed)
    assert behind is not None, resumed
    assert int(behind[1]) > 0
    assert same == "both have the same: True"
    assert result.stderr == ""
