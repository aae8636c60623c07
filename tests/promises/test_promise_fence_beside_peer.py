# SPDX-License-Identifier: Apache-2.0
"""Two processes have one fence open; one is killed while it admits a token, and the other one continues."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from compactlib.errors import StorageError
from compactlib.fences import FencedOff, FileFence
from compactlib.testing import FilesInFront, Interrupted, Killed, RecordingFiles, Request, explore_crashes, record


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
    """Anywhere in `committed`, another thread meets a disk that refuses, and a peer admits a newer token."""
    refuses = False

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if refuses and request.kind == "sync folder":
            raise StorageError(operation="sync", path=request.path, errno=5)
        return act()

    for place in itertools.count(1):
        folder = tmp_path / str(place)
        peer, live = FileFence(folder), FileFence(folder, files=FilesInFront(step))
        peer.admit("table", 1)

        def others(peer: FileFence = peer, live: FileFence = live) -> None:
            nonlocal refuses
            refuses = True
            with contextlib.suppress(StorageError):
                live.admit("another table", 1)
            refuses = False
            peer.admit("table", 9)

        def meanwhile(others: Callable[[], None] = others) -> None:
            thread = threading.Thread(target=others)
            thread.start()
            thread.join()

        with Interrupted(place, meanwhile) as paused:
            live.committed("table")
        if paused.places < place:
            break
        with pytest.raises(FencedOff):
            peer.admit("table", 5)
    assert place > 30
