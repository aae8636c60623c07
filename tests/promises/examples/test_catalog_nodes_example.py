# SPDX-License-Identifier: Apache-2.0
"""The examples of a cluster: three processes, one of which is killed; a time on its way to the replicas; a leader."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.catalog_leader import main as rounds_of_leaders
from examples.catalog_nodes import run
from examples.catalog_published import main
from tests.harness.kv.postgres_server import postgres


def check(stations: dict[str, tuple[int, int]]) -> None:
    assert stations["shrunk under load"][0] > 5
    silent, freed = stations["n3 is silent"], stations["n3 was taken out"]
    assert silent[0] < silent[1] - 5
    assert freed[0] > silent[1]


@pytest.mark.cluster
def test_history_is_held_by_a_dead_node_until_it_is_taken_out(tmp_path: Path) -> None:
    check(run(str(tmp_path / "nodes")))


@pytest.mark.cluster
def test_dead_node_holds_history_in_postgresql_until_removed() -> None:
    with postgres() as url:
        check(run(url))


def test_history_is_cut_when_every_replica_has_flushed() -> None:
    assert main() == [0, 0, 5]


@pytest.mark.cluster
def test_leader_of_a_raft_group_coordinates_and_a_former_one_cannot() -> None:
    (first, second), refused = rounds_of_leaders()
    assert second[0] > first[0]
    assert (first[1], second[1]) == (3, 6)
    assert refused == f"term {first[0]} is over: a coordinator of term {second[0]} is known"
