# SPDX-License-Identifier: Apache-2.0
"""The notebooks that start Spark; "spark" in the name lets them share a process with the other tests that do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.promises.notebooks.reading import check_run, notebooks


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.parametrize("path", notebooks(with_spark=True), ids=lambda path: path.stem)
def test_a_run_from_top_to_bottom_gives_the_stored_outputs(path: Path, tmp_path: Path) -> None:
    check_run(path, tmp_path)
