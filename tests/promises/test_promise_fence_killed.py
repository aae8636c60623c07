# SPDX-License-Identifier: Apache-2.0
"""A process dies while another one has the same fence open, and continues."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compactlib.errors import Busy, StorageError
from compactlib.fences import Commitment, FencedOff, FileFence, KVFence, OtherLog
from compactlib.files import LocalFiles, StrPath
from compactlib.kv import MemoryStore, SqliteStore
from compactlib.testing import FilesInFront, Killed, RecordingFiles, Request, explore_crashes, record

# ---- killed for real, within a guarded step

HOLDER = """
import sys
from compactlib.fences import FileFence

with FileFence(sys.argv[1]).guard("log", 5):
    print("inside", flush=True)
    sys.stdin.read()
"""
ADMITTING = """
import itertools, sys
from compactlib.fences import FileFence, KVFence
from compactlib.kv import SqliteStore

fence = FileFence(sys.argv[1]) if sys.argv[2] == "file" else KVFence(SqliteStore(sys.argv[1]))
for token in itertools.count(1):
    fence.admit("log", 2 * token)
    fence.commit("log", 2 * token, b"%d" % token)
    print(2 * token, flush=True)
"""


def started(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            text=True)


def killed(process: subprocess.Popen[str]) -> str:
    """Kill a process, and return its last output."""
    process.send_signal(signal.SIGKILL)
    return process.communicate()[0]


def test_guarded_step_ends_with_its_process(tmp_path: Path) -> None:
    live = FileFence(tmp_path / "fence", wait_seconds=0)
    assert live.admit("log", 3).token == 3
    holder = started(HOLDER, str(tmp_path / "fence"))
    assert holder.stdout is not None
    assert holder.stdout.readline() == "inside\n"
    with pytest.raises(Busy):
        live.admit("log", 9)
    killed(holder)
    with pytest.raises(FencedOff):
        live.admit("log", 4)
    with live.guard("log", 9) as admitted:
        assert admitted.token == 9


@pytest.mark.parametrize("kind", ["file", "kv"])
def test_a_killed_processs_admission_counts_for_a_live_process(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "fence"
    for heard in (1, 7, 30):
        store = None if kind == "file" else SqliteStore(path)
        live: Any = FileFence(path) if store is None else KVFence(store)
        worker = started(ADMITTING, str(path), kind)
        assert worker.stdout is not None
        # It begins at token 2 again, which it must not be let in with once it is beyond that.
        acknowledged = [line for line in itertools.islice(worker.stdout, heard) if line.strip()]
        rest = killed(worker).splitlines()
        lines = [*acknowledged, *(line for line in rest if line.isdigit())]
        if lines:
            highest = int(lines[-1])
            done = live.committed("log")
            assert done is not None
            assert done.token >= highest
            with pytest.raises(FencedOff):
                live.admit("log", highest - 1)
            with pytest.raises(FencedOff):
                live.commit("log", highest - 1, b"late")
        if store is not None:
            store.close()
        path = tmp_path / f"fence after {heard}"


# ---- killed before each change of the disk, and then the power fails


class Kill:
    """The process ends before its n-th change; every later operation raises `Killed`."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, request: Request, act: Callable[[], Any]) -> Any:
        self.left -= request.changes
        if self.left <= 0:
            raise Killed(str(request))
        return act()


def peer_works(fence: FileFence) -> None:
    fence.admit("log", 5)
    fence.commit("log", 5, b"peer")
    fence.raise_floor(4)


def live_answers(fence: FileFence, files: RecordingFiles) -> None:
    """The live process bases its answers on the records it finds, and each answer must stay true."""
    done = fence.committed("log")
    if done is not None:
        files.acknowledge(("committed", done.token))
    for token in (4, 5):
        try:
            fence.admit("log", token)
        except FencedOff:
            continue
        files.acknowledge(("admitted", token))


def answers_stay(folder: Path, acknowledged: object) -> None:
    fence = FileFence(folder / "fence")
    for kind, token in acknowledged:  # type: ignore[attr-defined]
        if kind == "admitted":
            with pytest.raises(FencedOff):
                fence.admit("log", token - 1)
        else:
            done = fence.committed("log")
            assert done in (Commitment(3, b"live"), Commitment(5, b"peer"))
            assert done is not None
            assert done.token >= token


def test_answers_based_on_a_killed_process_survive_a_power_failure(tmp_path: Path) -> None:
    for number in itertools.count(1):
        kill = Kill(number)

        def history(folder: Path, files: RecordingFiles, kill: Kill = kill) -> None:
            live = FileFence(folder / "fence", files=files)
            live.admit("log", 3)
            live.commit("log", 3, b"live")
            files.acknowledge(("committed", 3))
            with contextlib.suppress(Killed):
                peer_works(FileFence(folder / "fence", files=FilesInFront(kill, files)))
            live_answers(live, files)

        folder = tmp_path / str(number)
        folder.mkdir()
        explore_crashes(record(folder, history), answers_stay)
        if kill.left > 0:
            assert number > 10
            return


# ---- tokens of another log


def test_tokens_of_another_log_are_refused(tmp_path: Path) -> None:
    store = MemoryStore()
    makers: list[Callable[[str], Any]] = [lambda log: FileFence(tmp_path / "fence", log=log),
                                          lambda log: KVFence(store, log=log)]
    for make in makers:
        fence = make("first")
        fence.admit("table", 900)
        calls: list[Callable[[Any], Any]] = [
            lambda fence: fence.admit("table", 1000), lambda fence: fence.raise_floor(1000),
            lambda fence: fence.commit("table", 900, b"v")]
        for call in calls:
            for other in ("second", ""):
                with pytest.raises(OtherLog, match="'first'"):
                    call(make(other))
        assert make("first").admit("table", 901).token == 901


def test_after_a_failed_sync_a_later_one_proves_nothing(tmp_path: Path) -> None:
    """Linux may report a lost write once, and then no more: the record is written again."""
    class Failing(LocalFiles):
        fails, writes = False, 0

        def sync_folder(self, path: StrPath) -> None:
            if self.fails:
                raise StorageError(operation="sync", path=str(path), errno=5)
            super().sync_folder(path)

        def rename(self, source: StrPath, target: StrPath) -> None:
            self.writes += 1
            super().rename(source, target)

    files = Failing()
    fence = FileFence(tmp_path, files=files)
    files.fails = True
    with pytest.raises(StorageError):
        fence.admit("log", 5)
    files.fails, files.writes = False, 0
    fence.committed("log")
    assert files.writes == 1
    fence.admit("log", 5)
    assert files.writes == 1


def test_a_killed_forks_admission_counts_for_its_parent(tmp_path: Path) -> None:
    fence = FileFence(tmp_path / "fence")
    fence.admit("log", 3)
    child = os.fork()
    if not child:
        try:
            fence.admit("log", 7)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    with pytest.raises(FencedOff):
        fence.admit("log", 6)
