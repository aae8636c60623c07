# SPDX-License-Identifier: Apache-2.0
"""The network in memory: deterministic, and as bad as it is told to be."""

from __future__ import annotations

import asyncio
from random import Random

from compactlib.catalog import NodeId
from compactlib.catalog.round.messages import Message, ReportRequest, RoundId
from compactlib.catalog.transport.memory import MemoryHub
from tests.catalog.simulation.network import LinkFaults, MemoryNetwork


def message(number: int) -> ReportRequest:
    return ReportRequest(RoundId(1, NodeId("a"), number))


def delivered(seed: int, faults: LinkFaults) -> list[int]:
    network = MemoryNetwork(Random(seed), faults)
    for number in range(1, 101):
        network.send("a", "b", message(number), now=0.0)
    found = [one.message for one in network.deliver(10.0)]
    return [one.round.number for one in found if isinstance(one, ReportRequest)]


def test_a_good_network_delivers_everything_in_order() -> None:
    assert delivered(1, LinkFaults()) == list(range(1, 101))


def test_a_bad_one_loses_repeats_and_reorders_the_same_way_each_time() -> None:
    faults = LinkFaults(lost=0.3, repeated=0.3, min_delay_seconds=0.0, max_delay_seconds=1.0)
    found = delivered(1, faults)
    assert found == delivered(1, faults)
    assert found != delivered(2, faults)
    assert 50 < len(set(found)) < 90
    assert len(found) > len(set(found))
    assert found != sorted(found)


def test_messages_arrive_when_their_time_has_come_and_once() -> None:
    network = MemoryNetwork(Random(1), LinkFaults(min_delay_seconds=0.5, max_delay_seconds=0.5))
    assert network.next_at() is None
    network.send("a", "b", message(1), now=1.0)
    assert (network.next_at(), len(network)) == (1.5, 1)
    assert network.deliver(1.4) == []
    assert [(one.sender, one.to, one.message) for one in network.deliver(1.5)] == [("a", "b", message(1))]
    assert network.deliver(9.0) == []


def test_a_cut_link_loses_both_ways_until_it_heals() -> None:
    network = MemoryNetwork(Random(1))
    network.cut("a", "b")
    network.send("a", "b", message(1), now=0.0)
    network.send("b", "a", message(2), now=0.0)
    network.send("a", "c", message(3), now=0.0)
    assert [one.to for one in network.deliver(1.0)] == ["c"]
    assert network.lost == 2
    network.heal()
    network.send("a", "b", message(1), now=1.0)
    assert len(network.deliver(2.0)) == 1


def test_a_hub_delivers_in_the_loop_and_loses_what_is_for_nobody() -> None:
    async def talk() -> list[tuple[str, Message]]:
        hub, found = MemoryHub(), []
        one, other = hub.transport("a"), hub.transport("b")
        await other.start(lambda sender, told: found.append((sender, told)))
        one.send("b", message(1))
        one.send("nobody", message(2))
        assert not found
        await asyncio.sleep(0)
        await other.close()
        one.send("b", message(3))
        await asyncio.sleep(0)
        return found

    assert asyncio.run(talk()) == [("a", message(1))]
