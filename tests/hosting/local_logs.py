# SPDX-License-Identifier: Apache-2.0
"""Command logs of small segments, opened with a machine that remembers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compactlib.clock import Clock, ManualClock
from compactlib.hosting import LocalLog
from compactlib.raftlog import LogOptions, SegmentLimits
from tests.hosting.machines import Journal

TINY = SegmentLimits(max_entries=3, max_bytes=1000)


def options(*, clock: Clock | None = None, **given: Any) -> LogOptions:
    return LogOptions(limits=TINY, clock=clock or ManualClock(1000.0), keep_links_seconds=0.0,
                      **{name: value for name, value in given.items() if value is not None})


def opened(folder: Path, machine: Journal | None = None, **given: Any) -> tuple[LocalLog, Journal]:
    machine = Journal() if machine is None else machine
    log = LocalLog(folder, options(**given))
    try:
        log.start(machine)
    except BaseException:
        log.close()
        raise
    return log, machine
