# SPDX-License-Identifier: Apache-2.0
"""A worker in a process of its own works through HTTP while the scheduler's processes are killed."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactlib.errors import Busy
from compactlib.hosting import NoAnswer
from compactlib.hosting.http.client import SchedulerClient
from tests.harness.addresses import free_addresses
from tests.hosting.workload import blocks

ROOT = Path(__file__).parent.parent.parent


@contextlib.contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A process of this Python, until the block is left; warnings end it."""
    made = subprocess.Popen([sys.executable, "-W", "error", "-m", *words], cwd=ROOT, stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True)
    assert made.stdin is not None
    assert made.stdout is not None
    try:
        yield made
    finally:
        with contextlib.suppress(BrokenPipeError):
            made.stdin.close()
        made.wait(60)
        made.stdout.close()


def line_of(made: subprocess.Popen[str]) -> str:
    assert made.stdout is not None
    line = made.stdout.readline().strip()
    assert line, "the process has ended"
    return line


def test_a_scheduler_in_a_file_is_killed_and_its_worker_goes_on(tmp_path: Path) -> None:
    [address] = free_addresses(1)
    url, done = f"http://{address}", []
    serve = ("tests.hosting.http_file", str(tmp_path / "jobs.sqlite"), address.rpartition(":")[2])
    with process("tests.hosting.http_worker", url) as worker, SchedulerClient([url]) as client:
        with process(*serve) as scheduler:
            assert line_of(scheduler) == "serving"
            client.add_blocks(blocks(0, 12))
            done = [line_of(worker)]
            client.add_blocks(blocks(12, 6))
            scheduler.kill()
        with process(*serve) as scheduler:
            line_of(scheduler)
            # Enough for nine more, also if the answers to what was reported last were lost.
            client.add_blocks(blocks(18, 24))
            while len(done) < 10:
                done.append(line_of(worker))
            assert len(set(done)) == 10
            assert client.status()["quarantine_count"] == 0
            # First, since it says how its jobs ended before it ends, and waits for an answer.
            assert worker.stdin is not None
            worker.stdin.close()
            assert worker.wait(60) == 0


@pytest.mark.cluster
def test_the_leader_is_killed_and_the_worker_follows(memory_path: Path) -> None:
    logs, ports = free_addresses(3), [address.rpartition(":")[2] for address in free_addresses(3)]
    nodes = {log: f"http://127.0.0.1:{port}" for log, port in zip(logs, ports, strict=True)}

    def node(log: str) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
        return process("examples.scheduler_group", log, nodes[log].rpartition(":")[2], json.dumps(nodes),
                       str(memory_path / log.rpartition(":")[2]))

    def leader() -> str:
        """Who answers for itself."""
        while True:
            for log, url in nodes.items():
                with SchedulerClient([url], timeout_seconds=2.0) as alone, contextlib.suppress(Busy, NoAnswer):
                    alone.status()
                    return log

    done: list[str] = []
    with contextlib.ExitStack() as stack:
        running = {log: stack.enter_context(node(log)) for log in logs}
        for made in running.values():
            assert line_of(made) == "serving"
        client = stack.enter_context(SchedulerClient(list(nodes.values()), timeout_seconds=60.0))
        worker = stack.enter_context(process("tests.hosting.http_worker", ",".join(nodes.values())))
        for turn in range(3):
            added = client.add_blocks(blocks(100 * turn, 24))
            assert sorted(added.queued + added.duplicate) == sorted(block.id for block in blocks(100 * turn, 24))
            # 24 blocks are 12 jobs, and these four more: enough, also if answers to what was reported last were lost.
            while len(done) < 8 * (turn + 1):
                done.append(line_of(worker))
            if turn < 2:
                killed = leader()
                running[killed].kill()
                if turn == 0:
                    running[killed] = stack.enter_context(node(killed))
                    assert line_of(running[killed]) == "serving"
        assert len(set(done)) == len(done), "no job was completed twice"
        assert client.status()["quarantine_count"] == 0
