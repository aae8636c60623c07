# SPDX-License-Identifier: Apache-2.0
"""Run the notebooks of docs/ from top to bottom, and keep their outputs: `python -m tests.promises.notebooks.run`.

They are kept with their outputs, so that a reader on a code host sees tables and plots without running
anything; tests/promises/notebooks checks that a run gives the same tables and texts. Commit the written files after a
change of a notebook, or of the code that it shows. The notebook about Spark needs a Java.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import nbclient
import nbformat
from jupyter_client.manager import AsyncKernelManager

NOTEBOOKS = Path(__file__).parents[3] / "docs" / "notebooks"
_SECONDS_FOR_A_CELL = 280
# Java comes up in half the time, and says nothing of these options.
_QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def run(path: Path, folder: Path, manager: AsyncKernelManager | None = None) -> Any:
    """Run a notebook in a process without variables; gives it with its outputs, in the form in which it is kept.

    Args:
        path: the notebook, which is not changed.
        folder: an empty folder for the files of the notebook, its temporary files in `folder / "tmp"`.
        manager: of the process, for several notebooks with one folder; `None`: one of its own.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised; the message shows the cell and its traceback.
    """
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    scratch = folder / "tmp"
    scratch.mkdir(exist_ok=True)
    env = {**os.environ, "TMPDIR": str(scratch), "IPYTHONDIR": str(folder / "ipython"),
           "SPARK_SUBMIT_OPTS": _QUICK_JAVA}
    client = nbclient.NotebookClient(notebook, timeout=_SECONDS_FOR_A_CELL, kernel_name="python3", record_timing=False,
                                     km=manager, resources={"metadata": {"path": str(folder)}})
    if manager is not None:
        notebook.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))  # type: ignore[no-untyped-call]
    client.execute(env=env)
    if manager is not None and client.kc is not None:
        client.kc.stop_channels()
    if manager is not None:
        del notebook.cells[0]
    for cell in notebook.cells:
        if "SparkSession.builder" in cell.source:
            # What Java and Spark say whenever they start.
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def told(notebook: Any) -> list[list[dict[str, Any]]]:
    """The outputs of every code cell, as far as they must not differ between two runs: all but the plots' pixels."""
    return [[_without_pixels(output) for output in cell.outputs] for cell in notebook.cells if cell.cell_type == "code"]


def _without_pixels(output: Any) -> dict[str, Any]:
    if output.output_type in ("execute_result", "display_data"):
        return {kind: "" if kind.startswith("image/") else content for kind, content in output.data.items()}
    return dict(output)


def main() -> None:
    """Run the named notebooks, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all of docs/notebooks")
    for path in parser.parse_args().notebooks or sorted(NOTEBOOKS.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(run(path, Path(folder)), path)  # type: ignore[no-untyped-call]
        print(path)


if __name__ == "__main__":
    main()
