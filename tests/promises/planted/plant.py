# SPDX-License-Identifier: Apache-2.0
"""Plant a mistake in a copy of the library, and run promise tests against that copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[3]
HAZARDS = "tests/promises/test_promise_hazards.py::test_store_keeps_its_acknowledged_state"


@attrs.frozen
class Mistake:
    """One mistake.

    Attributes:
        id: its name.
        file: in which file of the library.
        before: the text that is replaced; it occurs once in the file.
        after: the text in its place.
        tests: the promise tests that must notice it; `"store-hazard"` names that case of the everyday hazards.
        loss: the user's loss.
    """

    id: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]
    loss: str

    @property
    def nodes(self) -> list[str]:
        """The tests, as pytest names them."""
        return [test if test.startswith("tests/") else f"{HAZARDS}[little-{test}]" for test in self.tests]


def planted(mistake: Mistake | None, folder: Path) -> Path:
    """A copy of the library in a folder, with the mistake; without any if `None`."""
    shutil.copytree(ROOT / "compactlib", folder / "compactlib")
    if mistake is not None:
        path = folder / mistake.file
        path.write_text(path.read_text().replace(mistake.before, mistake.after))
    return folder


def run(copy: Path, nodes: Sequence[str], *options: str) -> subprocess.CompletedProcess[str]:
    """Run promise tests of the checkout against a copy of the library."""
    command = [sys.executable, "-P", "-m", "pytest", "-p", "no:cacheprovider", "-p", "tests.promises.planted.imported",
               "-o", f"pythonpath={copy}", "-q", "-m", "not cluster", *options, *nodes]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=dict(
        os.environ, PYTHONPATH=os.pathsep.join([str(copy), str(ROOT)]), PLANTED=str(copy)))
