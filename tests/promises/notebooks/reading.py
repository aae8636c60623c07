# SPDX-License-Identifier: Apache-2.0
"""What must hold of every notebook of the docs, and of a run of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import AsyncKernelManager

from tests.promises.notebooks.run import NOTEBOOKS, run, told

ROOT = NOTEBOOKS.parents[1]
MAX_BYTES = 150_000
_PATH_OF_A_MACHINE = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|Users|var)/")


def notebooks(*, with_spark: bool) -> list[Path]:
    """Return the notebooks that start Spark, or the others."""
    return sorted(path for path in NOTEBOOKS.glob("*.ipynb")
                  if ("SparkSession.builder" in path.read_text()) is with_spark)


def check_run(path: Path, folder: Path, manager: AsyncKernelManager | None = None) -> None:
    """A run from top to bottom gives the outputs that are kept in the file, and leaves nothing behind."""
    kept = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    for number, (was, gives) in enumerate(zip(told(kept), told(run(path, folder, manager)), strict=True), start=1):
        assert gives == was, (f"cell [{number}] gives {gives}, and {was} is kept; if that is meant, "
                              f"run python -m tests.promises.notebooks.run {path.relative_to(ROOT)}")
    assert list((folder / "tmp").iterdir()) == []
    # Hypothesis, which tries policies, keeps its own folder next to a notebook.
    assert {each.name for each in folder.iterdir()} <= {"tmp", "ipython", ".hypothesis"}


def check_kept(path: Path) -> None:
    """Check the stored notebook: cells in order, with plots, small, without traces of the machine it ran on."""
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs: list[Any] = [output for cell in cells for output in cell.outputs]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert notebook.cells[0].source.startswith("# ")
    assert notebook.cells[-1].source.startswith("## Try\n")
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert any("<table" in output.get("data", {}).get("text/html", "") for output in outputs)
    assert [output for output in outputs if output.get("name") == "stderr" or output.output_type == "error"] == []
    assert len(path.read_bytes()) <= MAX_BYTES
    texts = [text for output in outputs for kind, text in {"": output.get("text", ""), **output.get("data", {})}.items()
             if not kind.startswith("image/")]
    assert not [text for text in texts if _PATH_OF_A_MACHINE.search(text)]
