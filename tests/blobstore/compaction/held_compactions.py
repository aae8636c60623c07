# SPDX-License-Identifier: Apache-2.0
"""A store's work held at one of its changes to the disk, while another thread does something else with the store."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import attrs

from compactlib.blobstore import BlobStore
from compactlib.clock import ManualClock
from tests.blobstore.compaction_stores import START, answers, delete_some, fill, open_store
from tests.tools.interleave.access import Access
from tests.tools.interleave.stage import Stage
from tests.tools.interleave.stepped_files import SteppedFiles

COUNT = 24
PATIENCE = 60.0
SETTINGS: dict[str, Any] = {"swap_segments": 2, "compaction_buffer_bytes": 1, "deleted_retention_seconds": 10.0,
                            "max_blob_bytes": 0, "stats_entries_per_second": None}


class Held:
    """Counts the changes of the threads that it is told to, and holds the one that makes a certain change."""

    def __init__(self, at: int) -> None:
        self.count: int = 0
        self._at = at
        self._threads: set[int] = set()
        self._reached = threading.Event()
        self._released = threading.Event()

    def counts_me(self) -> None:
        """Changes of this thread count from now on."""
        self._threads.add(threading.get_ident())

    def step(self, access: Access) -> None:
        """Called by `SteppedFiles` before each change."""
        if threading.get_ident() in self._threads:
            self.count += 1
            if self.count == self._at:
                self._reached.set()
                assert self._released.wait(PATIENCE), "nobody let it go on"

    def is_reached(self, thread: threading.Thread) -> bool:
        """Whether the change was reached before the thread ended; waits for either."""
        while not self._reached.wait(0.001):
            if not thread.is_alive():
                return self._reached.is_set()
        return True

    def release(self) -> None:
        """Let it go on."""
        self._released.set()

    def files(self) -> SteppedFiles:
        """A disk whose changes count."""
        return SteppedFiles(None, cast(Stage, self))


@attrs.define
class Working:
    """A call in a thread of its own.

    Attributes:
        call: what to do.
        answer: what it returned, or raised.
    """

    call: Callable[[], Any]
    answer: Any = None
    thread: threading.Thread = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        try:
            self.answer = self.call()
        except BaseException as error:
            self.answer = error

    def join(self) -> Any:
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "it does not end"
        return self.answer


def build(folder: Path) -> list[Any]:
    """A store with dead and dying blobs; the answers that it gives."""
    clock = ManualClock(START)
    with open_store(folder, clock, **SETTINGS) as store:
        fill(store, 3, random.Random(6), largest=400)
        for number in range(COUNT, COUNT + 6):
            store.put(f"b{number}", b"dying" * 20, ttl_seconds=100)
            fill(store, 1, random.Random(number), largest=400, first=number - COUNT + 3)
        fill(store, COUNT - 9, random.Random(7), largest=400, first=9)
        delete_some(store, range(0, COUNT, 2), clock)
        fill(store, 4, random.Random(8), largest=400, first=COUNT + 6)
        return answers(store, COUNT + 10)


def open_held(folder: Path, held: Held | None = None, *, clock: ManualClock | None = None) -> BlobStore:
    """The store that `build` has made; its dying blobs live for some time yet."""
    return open_store(folder, ManualClock(START + 20) if clock is None else clock,
                      files=None if held is None else held.files(), **SETTINGS)


def check(store: BlobStore, before: list[Any]) -> None:
    """What was acknowledged is there, and nothing is damaged; what was about to expire may have."""
    for number, (then, now) in enumerate(zip(before, answers(store, len(before)), strict=True)):
        assert now == then or (now in ("Missing", "Expired") and (
            then in ("Deleted", "Expired") or COUNT <= number < COUNT + 6)), (number, then, now)
    report = store.verify()
    assert report.is_sound, str(report)
    store.audit()
