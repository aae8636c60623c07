# SPDX-License-Identifier: Apache-2.0
"""The examples of a cluster: three processes, one of which is killed; and a time on its way to the replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.catalog_nodes import run
from examples.catalog_published import main


@pytest.mark.cluster
def test_history_is_held_by_a_dead_node_until_it_is_taken_out(tmp_path: Path) -> None:
    stations = run(tmp_path / "nodes")
    assert stations["shrunk under load"][0] > 5
    silent, freed = stations["n3 is silent"], stations["n3 was taken out"]
    assert silent[0] < silent[1] - 5
    assert freed[0] > silent[1]


def test_history_is_cut_when_every_replica_has_flushed() -> None:
    assert main() == [0, 0, 5]
