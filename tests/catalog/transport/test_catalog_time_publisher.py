# SPDX-License-Identifier: Apache-2.0
"""A round's lowest time goes to the partitions whose primary is here by the host's rule; partitions fail apart."""

from __future__ import annotations

import pytest

from compactlib.catalog import ZoneResult
from compactlib.catalog.log.replicated import LowestTime, decode_command
from compactlib.catalog.transport.time_publisher import Propose, TimePublisher


class Logs:
    """Partitions of zone 2: the even ones have their primary here."""

    def __init__(self, failing: tuple[int, ...] = ()) -> None:
        self.proposed: list[tuple[int, int, bytes]] = []
        self.failing = failing

    def primary(self, zone: int, partition: int) -> Propose | None:
        def propose(command: bytes) -> None:
            if partition in self.failing:
                raise OSError("no majority")
            self.proposed.append((zone, partition, command))

        return None if partition % 2 else propose


def test_a_time_goes_to_the_partitions_whose_primary_is_here() -> None:
    logs = Logs()
    assert TimePublisher(logs.primary)(2, 5, 70) == ZoneResult(2, published=3, skipped=2)
    assert [(zone, partition, decode_command(command)) for zone, partition, command in logs.proposed] == [
        (2, number, LowestTime(70)) for number in (0, 2, 4)]


def test_a_partition_that_fails_keeps_the_time_from_no_other(caplog: pytest.LogCaptureFixture) -> None:
    one, two = Logs((0,)), Logs((0, 4))
    assert TimePublisher(one.primary)(2, 5, 70) == ZoneResult(2, 2, 2, "partition 0: OSError: no majority")
    assert TimePublisher(two.primary)(2, 5, 70) == ZoneResult(2, 1, 2, "partition 0: OSError: no majority (and 1 more "
                                                                      "partitions)")
    assert [partition for _, partition, _ in two.proposed] == [2]
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == 3 * ["no majority"]
