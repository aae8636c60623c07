# SPDX-License-Identifier: Apache-2.0
"""Writes each Python example of README.md as a file, for mypy: `python scripts/readme_examples.py FOLDER`."""

import re
import sys
from pathlib import Path

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
for left in folder.glob("*.py"):
    left.unlink()
text = (Path(__file__).parents[1] / "README.md").read_text()
for number, example in enumerate(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL), start=1):
    (folder / f"example_{number}.py").write_text(example)
