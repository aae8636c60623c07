# SPDX-License-Identifier: Apache-2.0
"""The small Raft of `examples/raft_node.py`: three processes, kills, cut networks, and what clients see."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from tests.harness.linearizability import first_wrong_key
from tests.harness.raft_group import NAMES, Clients, Group, Statuses

Event = Callable[[Group, Clients, random.Random], Awaitable[None]]
SNAPSHOT_EVERY, KEEP_TRAILING = 20, 10


def caught_up(statuses: Statuses, names: tuple[str, ...] = NAMES) -> bool:
    """All of them have applied the same."""
    return set(names) <= set(statuses) and len({statuses[name]["applied"] for name in names}) == 1


async def kill_a_follower_for_long(group: Group, clients: Clients, rng: random.Random) -> None:
    """Until all that it lacks is not in the leader's log any more: it is sent a snapshot."""
    leader = await group.leader()
    gone = rng.choice([name for name in NAMES if name != leader])
    held = (await group.until(lambda found: gone in found))[gone]["last"]
    group.signal(gone, signal.SIGKILL)
    await group.until(lambda found: any(status["is_leader"] and status["snapshot"] > held + KEEP_TRAILING
                                        for status in found.values()))
    group.start(gone)
    await group.until(lambda found: gone in found and found[gone]["received"] > 0)


async def kill_the_leader(group: Group, clients: Clients, rng: random.Random) -> None:
    leader = await group.leader()
    group.signal(leader, signal.SIGKILL)
    await group.leader(other_than=leader)
    await clients.write(10)
    group.start(leader)


async def cut_the_leader_off(group: Group, clients: Clients, rng: random.Random) -> None:
    """A leader without a connection stays leader, until it receives a message of the new leader."""
    leader = await group.leader()
    await group.drop(leader, [name for name in NAMES if name != leader])
    term = (await group.statuses())[leader]["term"]
    await clients.write_at(leader)
    await group.leader(other_than=leader, term_above=term)
    await clients.write(10)
    await group.drop(leader, [])
    await group.until(lambda found: leader in found and found[leader]["term"] > term and not found[leader]["is_leader"])


async def cut_a_follower_off_and_kill_the_leader(group: Group, clients: Clients, rng: random.Random) -> None:
    """A member returns with a high term and a short log, and must not become leader."""
    leader = await group.leader()
    gone, other = rng.sample([name for name in NAMES if name != leader], 2)
    await group.drop(gone, [leader, other])
    await clients.write(10)
    term = (await group.until(lambda found: gone in found))[gone]["term"]
    await group.until(lambda found: gone in found and found[gone]["term"] > term)
    group.signal(leader, signal.SIGKILL)
    await group.drop(gone, [])
    await group.leader(other_than=leader)
    await clients.write(10)
    group.start(leader)


async def let_the_leader_sleep(group: Group, clients: Clients, rng: random.Random) -> None:
    """It wakes up in a group that has another, and knows nothing of it."""
    leader = await group.leader()
    group.signal(leader, signal.SIGSTOP)
    try:
        await group.leader(other_than=leader)
        await clients.write(10)
    finally:
        group.signal(leader, signal.SIGCONT)


async def cut_in_two(group: Group, clients: Clients, rng: random.Random) -> None:
    """Two members cannot reach each other, and both reach the third."""
    one, other = rng.sample(NAMES, 2)
    await group.drop(one, [other])
    await clients.write(10)
    await group.drop(one, [])


EVENTS = (kill_a_follower_for_long, cut_the_leader_off, cut_a_follower_off_and_kill_the_leader, kill_the_leader,
          let_the_leader_sleep, cut_in_two)


async def live(folder: Path, seed: int, chosen: Sequence[Event] = ()) -> None:
    """What happens, one event after another; twenty at random, if none are chosen."""
    rng = random.Random(seed)
    with Group(folder, snapshot_every=SNAPSHOT_EVERY, keep_trailing=KEEP_TRAILING) as group:
        clients = Clients(group)
        async with clients:
            await clients.write(15)
            for event in chosen or rng.choices(EVENTS, k=20):
                await event(group, clients, rng)
                await group.until(lambda found: len(found) == 3)
                await clients.write(10)
        found = await group.until(caught_up)
        stores = [status["keys"] for status in found.values()]
        assert stores[0] == stores[1] == stores[2]
        wrong = first_wrong_key(clients.calls)
        assert wrong is None, [call for call in clients.calls if call.key == wrong]
        # Compaction has kept the logs small.
        assert all(status["snapshot"] > 0 for status in found.values())


@pytest.mark.cluster
def test_clients_see_one_store_when_members_are_killed_or_cut_off(tmp_path: Path) -> None:
    asyncio.run(live(tmp_path, 1, EVENTS[:3]))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(4))
def test_soak_kills_and_cuts(seed: int, tmp_path: Path) -> None:
    asyncio.run(live(tmp_path, seed))
