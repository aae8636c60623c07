# SPDX-License-Identifier: Apache-2.0
"""`examples/blob_cache.py`: far more than fits is put, nothing is refused, and the store is whole."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from compactlib.blobstore import BlobReader

EXAMPLE = Path(__file__).parents[3] / "examples" / "blob_cache.py"


def test_example_runs_as_a_script(tmp_path: Path) -> None:
    result = subprocess.run([sys.executable, str(EXAMPLE), str(tmp_path / "cache")], capture_output=True, text=True,
                            check=False)
    assert result.returncode == 0, result.stderr
    counted = re.match(r"(\d+) hits, (\d+) misses\n", result.stdout)
    assert counted is not None
    hits, misses = map(int, counted.groups())
    assert hits + misses == 12_000
    # Twice the store's capacity was put, and most reads found their page.
    assert misses * 11_000 > 1.1 * (16 << 20)
    assert hits > 2 * misses
    with BlobReader(tmp_path / "cache") as reader:
        status = reader.status()
        assert status.used_bytes <= status.capacity_bytes == 16 << 20
        assert reader.verify().is_sound
