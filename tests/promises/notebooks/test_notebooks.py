# SPDX-License-Identifier: Apache-2.0
"""The notebooks of the docs: one for each package, each runs from top to bottom and gives its stored outputs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import run_sync

from tests.promises.notebooks.reading import check_kept, check_run, notebooks

WITHOUT_SPARK, WITH_SPARK = notebooks(with_spark=False), notebooks(with_spark=True)


# It replays long loads.
LONG = ("blobstore-policies",)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, AsyncKernelManager]]:
    """One for all notebooks, which import the same, and its folder."""
    manager = AsyncKernelManager(kernel_name="python3")
    yield tmp_path_factory.mktemp("notebooks"), manager
    if manager.has_kernel:
        run_sync(manager.shutdown_kernel)(now=True)


@pytest.mark.parametrize("path", [pytest.param(path, marks=pytest.mark.cluster) if path.stem in LONG else path
                                  for path in WITHOUT_SPARK], ids=lambda path: path.stem)
def test_a_run_from_top_to_bottom_gives_the_stored_outputs(
        path: Path, process: tuple[Path, AsyncKernelManager]) -> None:
    check_run(path, *process)


@pytest.mark.parametrize("path", WITHOUT_SPARK + WITH_SPARK, ids=lambda path: path.stem)
def test_a_notebook_has_tables_and_plots_and_exercises(path: Path) -> None:
    check_kept(path)


@pytest.mark.parametrize("package", ["blobstore", "catalog", "raftlog", "scheduler", "staging"])
def test_every_package_has_a_notebook(package: str) -> None:
    assert [path for path in WITHOUT_SPARK + WITH_SPARK if path.name.startswith(f"{package}-")]
