# SPDX-License-Identifier: Apache-2.0
"""The page of benchmarks has every script that can be run, and no other."""

import re
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def test_the_page_of_benchmarks_names_every_script() -> None:
    scripts = {path.name for path in (_ROOT / "benchmarks").glob("*.py")
               if '__name__ == "__main__"' in path.read_text()}
    page = (_ROOT / "docs" / "benchmarks.md").read_text()
    assert set(re.findall(r"^\| `(\w+\.py)`", page, re.MULTILINE)) == scripts
