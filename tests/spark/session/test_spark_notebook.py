# SPDX-License-Identifier: Apache-2.0
"""In a notebook: bars of a running job, tables that render, and nothing else; in a real kernel, but without Java."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import nbclient
import nbformat

BARS = """
from compactlib.observer import TqdmObserver
with TqdmObserver(mininterval=0) as bars:
    bars.event("progress", work="rewrite", done=1, total=2, unit="groups")
    bars.event("progress", work="rewrite", done=2, total=5, unit="groups")   # the next store's
    bars.event("progress", work="rewrite", done=5, total=5, unit="groups")
"""
TABLE = """
from compactlib.report import Table, VerifyReport
rows = [{"store": "orders", "why": "/<disk> is full"}, {"store": "carts", "why": "nothing is dead"}]
Table.from_dicts(rows, title="2 stores")
"""
ONE = "VerifyReport((), 0, 0)"


def run_cells(folder: Path, *cells: str) -> Any:
    made: Any = nbformat.v4
    notebook = made.new_notebook(cells=[made.new_code_cell(cell) for cell in cells])
    client = nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3",
                                     resources={"metadata": {"path": str(folder)}})
    client.execute(env={**os.environ, "IPYTHONDIR": str(folder / "ipython")})
    return notebook


def html_of(cell: Any) -> str:
    (output,) = cell.outputs
    return str(output["data"]["text/html"])


def test_bars_follow_a_total_that_grows_and_tables_render(tmp_path: Path) -> None:
    notebook = run_cells(tmp_path, BARS, TABLE, ONE)
    bars, table, one = notebook.cells
    if importlib.util.find_spec("ipywidgets") is not None:
        state = notebook.metadata["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]
        (widget,) = [each["state"] for each in state.values() if each["model_name"] == "FloatProgressModel"]
        assert (widget["value"], widget["max"], widget["bar_style"]) == (5, 5, "success")
        assert [output for output in bars.outputs if output.get("name") == "stderr"] == []
    else:
        told = "".join(output["text"] for output in bars.outputs)
        assert {output["name"] for output in bars.outputs} == {"stderr"}
        assert "1/2" in told
        assert "2/5" in told
        assert told.rstrip().endswith("groups/s]")
        assert "Warning" not in told
    assert "<caption>2 stores</caption>" in html_of(table)
    # What failed is no markup.
    assert "/&lt;disk&gt;" in html_of(table)
    assert "0 findings" in html_of(one)
