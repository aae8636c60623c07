# SPDX-License-Identifier: Apache-2.0
"""Two processes have one fence open; one is killed while it admits a token, and the other one continues."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from compactlib.errors import Busy, StorageError
from compactlib.fences import FencedOff, FileFence
from compactlib.testing import FilesInFront, Killed, RecordingFiles, Request, explore_crashes, record


def test_live_fence_answers_by_durable_records(tmp_path: Path) -> None:
    """An admission based on a killed peer's record still refuses an older token after a power failure."""
    crashes = 0
    for killed_at in itertools.count(1):
        changes = itertools.count(1)

        def step(request: Request, act: Callable[[], Any]) -> Any:
            if request.changes and next(changes) == killed_at:  # noqa: B023 - used in this turn alone
                raise Killed(str(request))
            return act()

        def work(folder: Path, files: RecordingFiles) -> None:
            live = FileFence(folder / "fence", files=files)
            live.admit("table", 1)
            files.acknowledge(1)
            with contextlib.suppress(Killed):
                FileFence(folder / "fence", files=FilesInFront(step, files)).admit("table", 2)
            with contextlib.suppress(FencedOff):
                live.admit("table", 1)
                return  # the peer's token never came to be
            live.admit("table", 2)
            files.acknowledge(2)

        def check(folder: Path, notes: Sequence[Any]) -> None:
            fence = FileFence(folder / "fence")
            if 2 in notes:
                with pytest.raises(FencedOff):
                    fence.admit("table", 1)
            if notes:
                with pytest.raises(FencedOff):
                    fence.admit("table", 0)

        folder = tmp_path / str(killed_at)
        folder.mkdir()
        crashes += explore_crashes(record(folder, work), check)
        if next(changes) <= killed_at:
            break
    assert killed_at > 4
    assert crashes > 20


def test_reading_a_commit_never_brings_an_old_record_back(tmp_path: Path) -> None:
    """After a disk error, records are written again; a peer has admitted a newer token meanwhile."""
    refuses = False

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if refuses and request.kind == "sync folder":
            raise StorageError(operation="sync", path=request.path, errno=5)
        return act()

    peer = FileFence(tmp_path, wait_seconds=0)
    live = FileFence(tmp_path, files=FilesInFront(step), wait_seconds=0)
    live.admit("table", 1)
    refuses = True
    with pytest.raises(StorageError):
        live.admit("another table", 1)
    refuses = False
    with peer.guard("table", 9), pytest.raises(Busy):
        live.committed("table")
    assert live.committed("table") is None
    with pytest.raises(FencedOff):
        peer.admit("table", 5)
