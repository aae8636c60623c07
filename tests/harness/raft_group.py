# SPDX-License-Identifier: Apache-2.0
"""A group of `examples/raft_node.py`, each member a process, and clients that record their calls."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from examples.raft_node import Address, Client, ask
from tests.harness.linearizability import Call
from tests.harness.ports import free_ports

ROOT = Path(__file__).parents[2]
MEMBER = """
import os, sys, threading
from examples.raft_node import main
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
main()
"""
"""A member that ends with the test that has started it."""
NAMES = ("a", "b", "c")
PATIENCE_SECONDS = 180.0
"""The time limit of a wait for a state; the tests do not depend on durations."""

Statuses = dict[str, dict[str, Any]]


class Group:
    """Three members on this machine.

    Args:
        folder: the parent of their folders.
        snapshot_every: entries between two snapshots.
        keep_trailing: trailing entries that a snapshot keeps for followers.
    """

    def __init__(self, folder: Path, *, snapshot_every: int, keep_trailing: int) -> None:
        self.members = {name: Address("127.0.0.1", port)
                        for name, port in zip(NAMES, free_ports(len(NAMES)), strict=True)}
        self._folder = folder
        self._options = ["--heartbeat", "0.1", "--snapshot-every", str(snapshot_every), "--keep-trailing",
                         str(keep_trailing)]
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """Start a member."""
        words = [f"{member}={at.host}:{at.port}" for member, at in self.members.items()]
        with open(self._folder / f"{name}.log", "ab") as told:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-c", MEMBER, name, str(self._folder / name), *words, *self._options],
                stdin=subprocess.PIPE, stdout=told, stderr=told, cwd=ROOT)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a member."""
        self._running[name].send_signal(number)
        if number == signal.SIGKILL:
            end(self._running.pop(name))

    async def drop(self, name: str, peers: Sequence[str]) -> None:
        """Partition a member from peers; without peers, connect it to all."""
        while await ask(self.members[name], {"kind": "drop", "peers": list(peers)}, seconds=10) is None:
            await asyncio.sleep(0.05)

    async def statuses(self) -> Statuses:
        """Return the statuses of the members that respond."""
        names = list(self._running)
        found = await asyncio.gather(*(ask(self.members[name], {"kind": "status"}, seconds=2) for name in names))
        return {name: status for name, status in zip(names, found, strict=True) if status is not None}

    async def until(self, holds: Callable[[Statuses], bool]) -> Statuses:
        """Wait for a state of the group."""
        found: Statuses = {}
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    found = await self.statuses()
                    if holds(found):
                        return found
                    for name, process in self._running.items():
                        assert process.poll() is None, f"{name} has ended: {self.told(name)}"
                    await asyncio.sleep(0.05)
        except TimeoutError:
            told = "\n".join(self.told(name) for name in NAMES)
            raise AssertionError(f"the group does not get there: {found}\n{told}") from None

    async def leader(self, *, other_than: str = "", term_above: int = -1) -> str:
        """Wait for the leader of the highest term, and return its name."""
        def found(statuses: Statuses) -> list[str]:
            top = max((status["term"] for status in statuses.values()), default=-1)
            return [name for name, status in statuses.items()
                    if status["is_leader"] and status["term"] == top > term_above and name != other_than]

        return found(await self.until(lambda statuses: bool(found(statuses))))[0]

    def told(self, name: str) -> str:
        """Return the end of a member's standard error."""
        return f"{name}: {(self._folder / f'{name}.log').read_text()[-3000:]}"

    def __enter__(self) -> Group:
        for name in NAMES:
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process, and close its pipe."""
    with process:
        process.kill()


class Clients:
    """Clients that write and read a few keys until they are stopped, and record their calls.

    Args:
        group: the group.
        keys: the number of keys.
        clients: the number of concurrent clients.
    """

    def __init__(self, group: Group, *, keys: int = 3, clients: int = 3) -> None:
        self.calls: list[Call] = []
        self.written = 0
        self._group = group
        self._keys = keys
        self._clock = itertools.count()
        self._count = clients
        self._stopping = False

    async def _live(self, number: int) -> None:
        client = Client(self._group.members, seconds=1.0)
        for turn in itertools.count():
            if self._stopping:
                return
            key, began = f"key {(turn * 7 + number) % self._keys}", next(self._clock)
            if (turn + number) % 2:
                value = f"{number}.{turn}"
                done = await client.put(key, value)
                self.calls.append(Call("put", key, value, began, next(self._clock) if done else float("inf")))
                self.written += done
            else:
                found = await client.get(key)
                self.calls.append(Call("get", key, found, began, next(self._clock)))
            await asyncio.sleep(0.005)

    async def _look_everywhere(self) -> None:
        """Read from each member in turn, also from a former leader: every answer must be right."""
        for turn in itertools.count():
            if self._stopping:
                return
            key, began = f"key {turn // len(NAMES) % self._keys}", next(self._clock)
            member = self._group.members[NAMES[turn % len(NAMES)]]
            found = await ask(member, {"kind": "get", "key": key, "seconds": 0.3}, seconds=1.0)
            if found is not None and "value" in found:
                self.calls.append(Call("get", key, found["value"], began, next(self._clock)))
            await asyncio.sleep(0.01)

    async def write_at(self, name: str) -> None:
        """Write each key through one member, leader or not."""
        async def put(key: str) -> None:
            began = next(self._clock)
            value = f"{name}.{began}"
            said = await ask(self._group.members[name], {"kind": "put", "key": key, "value": value, "seconds": 0.3},
                             seconds=1.0)
            is_done = said is not None and "done" in said
            self.calls.append(Call("put", key, value, began, next(self._clock) if is_done else float("inf")))

        await asyncio.gather(*(put(f"key {number}") for number in range(self._keys)))

    async def write(self, more: int) -> None:
        """Wait until `more` further writes were answered."""
        goal = self.written + more
        await self._group.until(lambda _: self.written >= goal)

    async def __aenter__(self) -> Clients:
        self._tasks = [asyncio.create_task(self._live(number)) for number in range(self._count)]
        self._tasks.append(asyncio.create_task(self._look_everywhere()))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        self._stopping = True
        if kind is not None:
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=kind is not None)
