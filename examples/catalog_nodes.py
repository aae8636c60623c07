# SPDX-License-Identifier: Apache-2.0
"""Three processes share a catalog in one store, and cut its history together over streams of their own.

    python examples/catalog_nodes.py FOLDER                             # a file of SQLite in it
    python examples/catalog_nodes.py postgresql://user@host/database

`n1` changes the schema all the time, `n2` holds a transaction for a while, `n3` is killed without a word. The host is
this file: it has a port for each node, and sends each call of a round as a line of JSON. While `n3` is silent, every
round names it and cuts nothing; once the host's word takes it out, history shrinks to its last version.

The coordinator is elected by a lease in the store. `catalog_leader.py` shows a host with a leader of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from compactlib.catalog import (
    REPORTS,
    Assignments,
    CatalogNode,
    HybridClock,
    Members,
    NodeId,
    NodeReport,
    PutObject,
    Schema,
    Timestamp,
    UpdateLog,
)
from compactlib.clock import SystemClock
from compactlib.errors import CompactlibError
from compactlib.kv import KVStore, PostgresStore, SqliteStore

SKEW_SECONDS = 0.05
NAMES = ("n1", "n2", "n3")


class Database:
    """Do nothing: no node hosts a partition here. A database proposes the time in the Raft logs of its partitions."""

    def assignments(self) -> Assignments:
        return {}

    def publish(self, zone: int, partitions: int, time: Timestamp) -> int:
        return 0

    def destroy(self, table: int, partition: int) -> None:
        pass


class Peers:
    """The two calls, over a connection each.

    Args:
        ports: of all nodes, by name.
    """

    def __init__(self, ports: dict[str, int]) -> None:
        self._ports = ports

    async def _ask(self, node: NodeId, question: dict[str, Any]) -> Any:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._ports[node.name])
        try:
            writer.write(json.dumps(question).encode() + b"\n")
            answer = json.loads(await reader.readline())
        finally:
            writer.close()
        if "error" in answer:
            raise ConnectionError(answer["error"])
        return answer["value"]

    async def report(self, node: NodeId) -> NodeReport:
        return REPORTS.from_plain(await self._ask(node, {"call": "report"}))

    async def publish(self, node: NodeId, time: Timestamp) -> None:
        await self._ask(node, {"call": "publish", "time": time})


def answer(node: CatalogNode, question: dict[str, Any]) -> dict[str, Any]:
    """Return a node's answer to one line; in a worker thread, as both calls may read the store."""
    try:
        if question["call"] == "report":
            return {"value": REPORTS.to_plain(node.report())}
        node.publish(question["time"])
        return {"value": None}
    except CompactlibError as error:
        return {"error": str(error)}


async def serve(node: CatalogNode, ports: dict[str, int]) -> None:
    """Answer the coordinator, and coordinate when elected; and have the transactions and changes of the story."""
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await reader.readline()
            writer.write(json.dumps(await asyncio.to_thread(answer, node, json.loads(line))).encode() + b"\n")
            await writer.drain()
        finally:
            writer.close()

    async def change() -> None:
        number = 0
        while True:
            number += 1
            await asyncio.to_thread(node.service.execute, [PutObject(Schema(f"S{number}"), if_exists="keep")])

    async def transact() -> None:
        while True:
            transaction = node.transactions.begin()
            await asyncio.sleep(1.0)
            node.transactions.end(transaction)

    async with await asyncio.start_server(connected, "127.0.0.1", ports[node.name]), asyncio.TaskGroup() as tasks:
        tasks.create_task(node.coordinate(Peers(ports), interval_seconds=0.5, retry_seconds=0.2, seconds=2.0))
        if node.name == "n1":
            tasks.create_task(change())
        if node.name == "n2":
            tasks.create_task(transact())


def open_store(place: str) -> KVStore:
    """The store that all nodes share: of a URL, or else in a folder."""
    if place.startswith("postgresql:"):
        return PostgresStore(place, table="catalog_nodes")
    Path(place).mkdir(parents=True, exist_ok=True)
    return SqliteStore(Path(place) / "catalog.sqlite")


def run_node(place: str, name: str, ports: dict[str, int]) -> None:
    """One process, until it is killed."""
    clock = SystemClock()
    node = CatalogNode(name, UpdateLog(open_store(place), clock=clock),
                       HybridClock(clock, max_skew_seconds=SKEW_SECONDS), Database(), lease_seconds=1.0,
                       delay_seconds=SKEW_SECONDS, data_availability_seconds=0.2, upkeep_seconds=0.1)
    with node:
        asyncio.run(serve(node, ports))


def log_of(store: KVStore) -> tuple[int, int]:
    """The earliest and the latest version."""
    state = UpdateLog(store).state()
    return state.earliest, state.latest


def until(store: KVStore, is_so: Any, *, seconds: float = 60.0) -> tuple[int, int]:
    """Wait for a state of the log."""
    end = time.monotonic() + seconds
    while not is_so(*(found := log_of(store))):
        if time.monotonic() > end:
            raise TimeoutError(f"the log holds versions {found}")
        time.sleep(0.05)
    return found


def run(place: str) -> dict[str, tuple[int, int]]:
    """The story; the versions that the log held at each of its stations."""
    sockets = {name: socket.create_server(("127.0.0.1", 0)) for name in NAMES}
    ports = {name: each.getsockname()[1] for name, each in sockets.items()}
    for each in sockets.values():
        each.close()
    store = open_store(place)
    stations: dict[str, tuple[int, int]] = {}
    processes = {name: subprocess.Popen([sys.executable, __file__, place, "--node", name,
                                         "--ports", json.dumps(ports)]) for name in NAMES}
    try:
        stations["shrunk under load"] = until(store, lambda earliest, latest: earliest > 5)
        processes["n3"].kill()
        processes["n3"].wait()
        held = log_of(store)[1] + 2
        until(store, lambda earliest, latest: latest > held + 8)
        stations["n3 is silent"] = log_of(store)
        Members(store).leave("n3")  # the host's word: it has ended
        last = log_of(store)[1]
        stations["n3 was taken out"] = until(store, lambda earliest, latest: earliest > last)
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
        store.close()
    return stations


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place", metavar="FOLDER_OR_URL")
    parser.add_argument("--node", choices=NAMES)
    parser.add_argument("--ports", type=json.loads)
    given = parser.parse_args()
    if given.node:
        run_node(given.place, given.node, given.ports)
    else:
        for station, (first, latest) in run(given.place).items():
            sys.stdout.write(f"{station}: versions {first} to {latest} are kept\n")
