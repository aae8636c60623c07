# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C anywhere in a log's work: the log goes on, from what is durable at least, and its files are whole."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from pathlib import Path

from compactlib.errors import StorageError
from compactlib.outcome import Failed, Skipped
from compactlib.raftlog import Entry, LogOptions, SeedPolicy, SegmentLimits, SegmentLog
from compactlib.raftlog.model.names import segment_number
from compactlib.testing.interrupts import interruptions
from tests.harness.effort import Effort

OPTIONS = LogOptions(limits=SegmentLimits(max_entries=4))


def write(log: SegmentLog, synced: list[int]) -> None:
    """Entries one by one and in runs, a sync, an overwrite, a snapshot and a compaction."""
    for index in range(1, 7):
        log.append(index, 1, b"%d" % index)
    log.extend((index, 1, b"%d" % index) for index in range(7, 16))
    log.sync()
    synced.append(12)
    log.append(14, 1, b"14")
    log.record_snapshot(12, live=[2, 3, 11])
    log.compact(policy=SeedPolicy())
    log.reclaim()


def check(log: SegmentLog, synced: list[int]) -> None:
    """It takes an entry from another thread, holds what was synced, and can be compacted to its end."""
    # What an interrupted compaction or snapshot has lost is said once.
    with contextlib.suppress(StorageError):
        log.sync()
    thread = threading.Thread(target=lambda: log.append((log.last_index or 0) + 1, 1, b"more"), daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "a lock was left behind"
    log.sync()
    log.audit()
    assert log.verify().is_sound
    if synced:
        assert [log.read(index) for index in (2, 3, 11)] == [Entry(index, 1, b"%d" % index) for index in (2, 3, 11)]
        assert (log.last_index or 0) > synced[-1]
    outcome = log.compact(policy=SeedPolicy())
    assert not isinstance(outcome, Failed), outcome
    assert not (isinstance(outcome, Skipped) and outcome.is_busy), outcome
    files = {segment_number(name) for name in os.listdir(log.folder)
             if not os.path.islink(os.path.join(log.folder, name))} - {None}
    assert files == {ref.number for ref in log.refs}, "a file that is not listed stays for as long as the log is open"


def test_an_interrupt_anywhere_leaves_a_log_that_goes_on(tmp_path: Path, effort: Effort) -> None:
    numbers = itertools.count()

    def opened() -> SegmentLog:
        return SegmentLog(tmp_path / str(next(numbers)), OPTIONS)

    with opened() as log:
        plan = list(interruptions(lambda: write(log, []), effort(80, 4_000)))
    for interrupt in plan:
        synced: list[int] = []
        with opened() as log:
            folder = log.folder
            with contextlib.suppress(KeyboardInterrupt), interrupt:
                write(log, synced)
            check(log, synced)
        with SegmentLog(folder, OPTIONS) as log:
            check(log, synced)
