# SPDX-License-Identifier: Apache-2.0
"""The notebooks of the docs: one for each package, each runs from top to bottom and gives what it shows."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import nbformat
import pytest

from tests.promises.notebooks.reading import ROOT, check_kept, check_run, notebooks

WITHOUT_SPARK, WITH_SPARK = notebooks(with_spark=False), notebooks(with_spark=True)


# Half of the time of all of them together: those of placement and policies, which replay long loads.
LONG = ("lab-placement", "blobstore-policies")


@pytest.mark.parametrize("path", [pytest.param(path, marks=pytest.mark.cluster) if path.stem in LONG else path
                                  for path in WITHOUT_SPARK], ids=lambda path: path.stem)
def test_a_run_from_top_to_bottom_gives_what_is_kept(path: Path, tmp_path: Path) -> None:
    check_run(path, tmp_path)


@pytest.mark.parametrize("path", WITHOUT_SPARK + WITH_SPARK, ids=lambda path: path.stem)
def test_a_reader_sees_tables_and_plots_and_what_to_try(path: Path) -> None:
    check_kept(path)


@pytest.mark.parametrize("package", ["blobstore", "catalog", "raftlog", "scheduler", "staging"])
def test_every_package_has_a_notebook(package: str) -> None:
    assert [path for path in WITHOUT_SPARK + WITH_SPARK if path.name.startswith(f"{package}-")]


def test_the_notebook_on_placement_tells_the_published_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    published_figures = importlib.import_module("lab_published")
    [path] = [path for path in WITHOUT_SPARK if path.name == "lab-placement.ipynb"]
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    told = [re.findall(r"[\w.]+", line) for cell in notebook.cells if cell.cell_type == "markdown"
            for line in cell.source.splitlines() if re.match(r"\| \w+ \| \d", line)]
    expected = zip(published_figures.SCHEMES, *(published_figures.TRACE[0.10, 64, prefers] for prefers in
                                                ("dead share", "root benefit")), strict=True)
    for (scheme, ours, published, ours_aged, published_aged), (name, by_share, by_benefit) in zip(told, expected,
                                                                                                  strict=True):
        assert (scheme, float(published), float(published_aged)) == (name, by_share, by_benefit)
        for here, there in ((ours, published), (ours_aged, published_aged)):
            assert 0.95 <= (float(here) - 1) / (float(there) - 1) <= 1.05
