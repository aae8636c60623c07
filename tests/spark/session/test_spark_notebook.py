# SPDX-License-Identifier: Apache-2.0
"""In a notebook: bars of a running job, tables that render, and nothing else; in a real kernel, but without Java."""

from __future__ import annotations

import importlib.util
import io
import os
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from pyspark.sql import SparkSession

from compactlib.runtime import Budget, TqdmObserver
from compactlib.runtime.observe import telling
from compactlib.spark import SparkExecutor, StoreJob, compact_stores
from tests.spark.rewrite_tasks import WaitingTask
from tests.spark.store_jobs import build_logs, job

BARS = """
from compactlib.runtime import TqdmObserver
with TqdmObserver(mininterval=0) as bars:
    bars.event("progress", work="rewrite", done=1, total=2, unit="groups")
    bars.event("progress", work="rewrite", done=2, total=5, unit="groups")   # the next store's
    bars.event("progress", work="rewrite", done=5, total=5, unit="groups")
"""
TABLE = """
from compactlib.errors import DiskFull
from compactlib.outcome import Failed, Skipped
from compactlib.report import Table
from compactlib.spark.stores.many_stores import StoreOutcome
outcomes = [StoreOutcome("orders", Failed(DiskFull(operation="write", path="/<disk>", errno=28))),
            StoreOutcome("carts", Skipped("nothing is dead"))]
Table.from_dicts([row for each in outcomes for row in each.to_dicts()], title="2 stores")
"""
ONE = "outcomes[1]"


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
    assert "nothing is dead" in html_of(one)


@pytest.mark.spark
def test_the_bars_of_running_jobs_show_groups_and_stores(spark: SparkSession, tmp_path: Path) -> None:
    folders = build_logs(tmp_path / "logs", 3)
    screen = io.StringIO()
    marker = tmp_path / "go"

    class Bars(TqdmObserver):
        """Lets the waiting tasks go on once a bar of the rewrites is on the screen."""

        def event(self, name: str, /, **fields: Any) -> None:
            super().event(name, **fields)
            if fields.get("work") == "rewrite":
                marker.touch()

    def waiting(executor: Any, budget: Budget) -> Any:
        (outcome,) = executor.run([WaitingTask("wait", str(marker))])
        return outcome

    jobs = [*map(job, folders), StoreJob("waiting", waiting)]
    with Bars(file=screen, mininterval=0, ascii=True, ncols=100) as bars:
        outcomes = list(compact_stores(jobs, SparkExecutor(spark), observer=telling(bars)))
    shown = screen.getvalue()
    for bar in ("stores: 100%", "rewrite: 100%"):
        assert bar in shown, shown
    assert len(outcomes) == 4
    assert all("<tr>" in each._repr_html_() for each in outcomes)
