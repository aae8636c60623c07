# SPDX-License-Identifier: Apache-2.0
"""A scheduler that is closed, or whose store is, in the middle of a call takes nothing back that the next one did."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compactlib.commandlog import CommandLog, KVLog, TakenOver
from compactlib.errors import Closed, Stale
from compactlib.kv import SnapshotStore, SqliteStore
from compactlib.raftlog import LocalLog
from compactlib.scheduler import BlockMeta, PollRequest, Scheduler, SchedulerConfig
from tests.harness.closing import Closing, close_everywhere
from tests.harness.effort import Effort

CALLS: dict[str, Callable[[Scheduler], object]] = {
    "add_blocks": lambda scheduler: scheduler.add_blocks(blocks("new")),
    "add_blocks twice": lambda scheduler: [scheduler.add_blocks(blocks(name)) for name in ("before", "new")],
    "poll": lambda scheduler: scheduler.poll(PollRequest(job_capacity=1)),
    "configure": lambda scheduler: scheduler.configure(SchedulerConfig(lease_seconds=7.0)),
    "snapshot": lambda scheduler: scheduler.snapshot(),
    "status": lambda scheduler: scheduler.status(),
}


def blocks(*names: str) -> list[BlockMeta]:
    return [BlockMeta(id=name, tenant="A", shard=0, level=0) for name in names]


@contextlib.contextmanager
def opened(folder: Path, kind: str, *, snapshot_every: int = 0) -> Iterator[tuple[Scheduler, SqliteStore]]:
    with contextlib.closing(SqliteStore(folder / "kv")) as store:
        log: CommandLog = KVLog(store) if kind == "KVLog" else LocalLog(folder / "log")
        with contextlib.closing(Scheduler(log, SnapshotStore(store), snapshot_every=snapshot_every)) as scheduler:
            yield scheduler, store


@pytest.mark.parametrize("kind", ["KVLog", "LocalLog"])
@pytest.mark.parametrize("closes", ["scheduler", "store"])
@pytest.mark.parametrize("call", CALLS)
def test_no_call_takes_a_command_back_after_a_close(call: str, closes: str, kind: str, tmp_path: Path,
                                                    effort: Effort) -> None:
    def work(folder: Path) -> None:
        with opened(folder, kind) as (later, _):
            later.add_blocks(blocks("next"))
            later.snapshot()
            later.add_blocks(blocks("after its snapshot"))

    def closed_before(line: int) -> Closing:
        folder, closing, answer = tmp_path / str(line), Closing(lambda path: False), None
        folder.mkdir()
        with opened(folder, kind) as (first, _):
            first.add_blocks(blocks(*(f"block {number}" for number in range(20))))
            first.snapshot()
            first.add_blocks(blocks("block 20"))
        with opened(folder, kind, snapshot_every=3) as (scheduler, store):

            def close() -> Path:
                scheduler.close()
                if closes == "store":
                    store.close()
                return folder

            with closing.before(line, close, work), contextlib.suppress(Closed, TakenOver, Stale):
                answer = CALLS[call](scheduler)
            if closing.closed is not None:
                closing.closed.result(60)
        with opened(folder, kind) as (last, store):
            names = last.read(lambda machine: {block.id for block in machine.index.blocks()})
            wanted = {f"block {number}" for number in range(21)}
            wanted |= {"next", "after its snapshot"} if closing.closed is not None else set()
            wanted |= {"new"} if answer is not None and "add" in call else set()
            assert wanted <= names <= wanted | {"new", "before"}, f"closed before line {line}"
            store.audit()
        return closing

    close_everywhere(closed_before, effort(20, 200))
