# SPDX-License-Identifier: Apache-2.0
"""A WAL with a memory of all that it told, for the tests of the WAL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compactlib.clock import ManualClock
from compactlib.files import Files, LocalFiles
from compactlib.raftlog.model.row import LogRows
from compactlib.raftlog.wal.batch import Confirmed
from compactlib.raftlog.wal.recovery import recover_wal
from compactlib.raftlog.wal.wal import ClosedFile, Wal, WalOptions

LOCAL = LocalFiles()


class Opened:
    """A WAL with a memory of all that it told."""

    def __init__(self, folder: Path, *, files: Files = LOCAL, max_bytes: int = 1 << 20,
                 states: LogRows | None = None, now: float = 0.0) -> None:
        self.states = LogRows() if states is None else states
        self.confirmed: list[Confirmed] = []
        self.closed: list[ClosedFile] = []
        self.found = recover_wal(files, folder)
        self.wal = Wal(folder, self.states, WalOptions(max_bytes=max_bytes, files=files, clock=ManualClock(now)),
                       recovered=self.found, confirmed=self.confirmed.extend, rolled=self.closed.append)

    def put(self, log_id: str, previous: int | None, index: int, term: int = 1, payload: bytes | None = None) -> Any:
        return self.wal.write_run(log_id, previous, index, term, [b"%d" % index if payload is None else payload])

    def told(self) -> list[tuple[str, int, list[int]]]:
        found = [(each.log_id, each.term, list(each.indexes)) for each in self.confirmed]
        self.confirmed.clear()
        return found


def entries_of(found: Any) -> list[tuple[str, int, int, bytes]]:
    rows = []
    for logged in found.frames:
        frame = logged.frame
        indexes = frame.indexes or range(frame.first, frame.first + len(frame.payloads))
        terms = frame.terms or [frame.term] * len(frame.payloads)
        rows += [(logged.log_id, *row) for row in zip(indexes, terms, frame.payloads, strict=True)]
    return rows
