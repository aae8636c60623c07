# SPDX-License-Identifier: Apache-2.0
"""`examples/scheduler_group.py`: three nodes in processes of their own; a worker follows when the leader is killed."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from compactlib.commandlog import NoAnswer
from compactlib.errors import Busy
from compactlib.scheduler import (
    BlockMeta,
    CompactedBlocks,
    NoOutput,
    RunningJob,
    SchedulerClient,
    Worker,
    WorkerOptions,
)
from tests.harness.addresses import free_addresses

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[3]


class Node:
    """One node; it serves once this is made."""

    def __init__(self, *words: str) -> None:
        self.made = subprocess.Popen([sys.executable, "-m", "examples.scheduler_group", *words], cwd=ROOT,
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def require_serving(self) -> None:
        assert self.made.stdout is not None
        assert self.made.stdout.readline() == "serving\n"

    def close(self) -> None:
        self.made.communicate(timeout=60)


def blocks(first: int) -> list[BlockMeta]:
    return [BlockMeta(id=f"block-{number:04}", tenant="acme", shard=0, level=0) for number in range(first, first + 24)]


def leader(nodes: dict[str, str]) -> str:
    """Who answers for itself."""
    while True:
        for log, url in nodes.items():
            with SchedulerClient([url], timeout_seconds=2.0) as alone, contextlib.suppress(Busy, NoAnswer):
                alone.status()
                return log


def test_the_leader_is_killed_and_the_worker_follows(tmp_path: Path) -> None:
    logs, served = free_addresses(3), free_addresses(3)
    nodes = {log: f"http://{address}" for log, address in zip(logs, served, strict=True)}
    done: Counter[str] = Counter()

    def execute(job: RunningJob) -> CompactedBlocks:
        done[job.plan.name] += 1
        return CompactedBlocks(tenant=job.plan.tenant, shard=job.plan.shard, source_blocks=job.plan.source_blocks,
                               no_output=NoOutput.EMPTY)

    with contextlib.ExitStack() as stack:
        def node(log: str) -> Node:
            return stack.enter_context(contextlib.closing(Node(
                log, nodes[log].rpartition(":")[2], json.dumps(nodes), str(tmp_path / log.rpartition(":")[2]))))

        running = {log: node(log) for log in logs}
        for made in running.values():
            made.require_serving()
        client = stack.enter_context(SchedulerClient(list(nodes.values()), timeout_seconds=60.0))
        with Worker(client, execute, options=WorkerOptions(capacity=4, poll_seconds=0.1, max_poll_seconds=1.0)):
            for turn in range(3):
                # Twelve jobs; all of them are done before the next turn, under any leader.
                added = client.add_blocks(blocks(100 * turn))
                assert sorted(added.queued + added.duplicate) == sorted(block.id for block in blocks(100 * turn))
                while len(done) < 12 * (turn + 1):
                    threading.Event().wait(0.02)
                if turn < 2:
                    killed = leader(nodes)
                    running[killed].made.kill()
                    if turn == 0:
                        running[killed] = node(killed)
                        running[killed].require_serving()
            while client.status()["jobs"]:
                threading.Event().wait(0.02)
            assert client.status()["quarantine"] == 0
