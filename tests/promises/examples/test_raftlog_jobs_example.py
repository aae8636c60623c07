# SPDX-License-Identifier: Apache-2.0
"""`examples/raftlog_jobs.py`: three worker processes compact Raft logs; one is killed, one is woken too late."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compactlib.raftlog import LocalLog, LogOptions, SegmentLimits, SegmentLog
from compactlib.scheduler import BlockMeta, LevelConfig, Scheduler, SchedulerApplication, SchedulerConfig
from examples.raftlog_jobs import segment_block_id
from tests.promises.scheduler.serving import served

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[3]
CONFIG = SchedulerConfig(levels=(LevelConfig(max_blocks=2),), lease_seconds=2.0, cleanup_delay_seconds=0.0)
LIMITS = LogOptions(limits=SegmentLimits(max_entries=10))
LOGS = {f"log-{number}": 10 * (number + 4) for number in range(4)}


class Process:
    """A worker in its own process, and its output."""

    def __init__(self, *words: str) -> None:
        self.made = subprocess.Popen([sys.executable, "-m", "examples.raftlog_jobs", *words], cwd=ROOT,
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.said: list[list[str]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.made.stdout is not None
        for line in self.made.stdout:
            self.said.append(line.split())

    def close(self) -> None:
        """End it as its host would; an ended process is left alone."""
        assert self.made.stdin is not None
        assert self.made.stdout is not None
        self.made.send_signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):
            self.made.stdin.close()
        self.made.wait(60)
        self._reader.join(60)
        self.made.stdout.close()


@contextlib.contextmanager
def process(*words: str) -> Iterator[Process]:
    made = Process(*words)
    try:
        yield made
    finally:
        made.close()


def until(there: Callable[[], object]) -> None:
    while not there():
        threading.Event().wait(0.01)


def payloads(log: SegmentLog) -> dict[int, bytes]:
    return {entry.index: entry.payload for entry in log.entries(1)}


def made_logs(folder: Path) -> tuple[list[BlockMeta], dict[str, dict[int, bytes]]]:
    """Logs with full segments, of which every third entry is live; their segments as blocks, and what must stay."""
    folder.mkdir()
    blocks: list[BlockMeta] = []
    live: dict[str, dict[int, bytes]] = {}
    for name, last in LOGS.items():
        with SegmentLog(folder / name, LIMITS) as log:
            log.append((index, 1, f"{name}:{index}".encode() * 9) for index in range(1, last + 2))
            log.snapshot(last, live=range(1, last + 1, 3))
            live[name] = {index: payload for index, payload in payloads(log).items()
                          if index > last or index % 3 == 1}
            blocks += (BlockMeta(id=segment_block_id(each.number), tenant=name, shard=0, level=0,
                                 size_bytes=each.data_bytes) for each in log.view().segments[:-1])
    return blocks, live


def test_one_worker_is_killed_and_one_is_woken_too_late(tmp_path: Path) -> None:
    blocks, live = made_logs(tmp_path / "logs")
    with contextlib.ExitStack() as stack:
        scheduler = stack.enter_context(Scheduler(LocalLog(tmp_path / "commands"), config=CONFIG))
        url = stack.enter_context(served(SchedulerApplication(scheduler)))
        scheduler.add_blocks(blocks)

        def worker(seconds: str) -> Process:
            return stack.enter_context(process(url, str(tmp_path / "logs"), str(tmp_path / "fences"), seconds))

        killed, late = worker("600"), worker("1")
        until(lambda: ["rewritten"] in killed.said)
        killed.made.kill()
        until(lambda: ["rewritten"] in late.said)
        late.made.send_signal(signal.SIGSTOP)
        [name, token] = [said[1:] for said in late.said if said[0] == "started"][-1]
        healthy = worker("0")
        # The job goes to the worker that is awake, which shows its token and waits for the log.
        until(lambda: any(said[:2] == ["failed", name] for said in list(healthy.said)))
        assert [name, token] not in [said[1:] for said in healthy.said if said[0] == "started"]
        late.made.send_signal(signal.SIGCONT)
        until(lambda: any(said[:2] == ["failed", name] for said in list(late.said)))
        # Its fence refuses it, or the scheduler before that.
        assert [said[2] for said in late.said if said[:2] == ["failed", name]] in (["FencedOff"], ["JobLost"])
        until(lambda: scheduler.read(lambda machine: not machine.jobs))
        assert not scheduler.read(lambda machine: machine.quarantine)
    for name, expected in live.items():
        with SegmentLog(tmp_path / "logs" / name) as log:
            log.audit()
            assert payloads(log) == expected
            assert len(log.refs) < LOGS[name] // 10 + 1
