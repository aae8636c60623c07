# SPDX-License-Identifier: Apache-2.0
"""The example of real processes on loopback, with three of them and less time."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.catalog_cluster import run
from tests.harness.ports import free_ports


@pytest.mark.cluster
def test_the_log_shrinks_though_the_coordinator_is_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stations = run(tmp_path, free_ports(3), seconds=0.6)
    killed, elected = stations["coordinator n1 killed, n2 elected"], stations["n1 is back"]
    assert stations["shrunk under load"][0] > 1
    assert elected[0] > killed[0]
    earliest, latest = stations["the load is over"]
    assert earliest == latest > elected[0]
    assert "n2 elected" in capsys.readouterr().out
    assert "n1#2 is up" in (tmp_path / "n1.log").read_text()
