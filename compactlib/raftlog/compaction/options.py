# SPDX-License-Identifier: Apache-2.0
"""`LogOptions`: the settings of a log."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import attrs

from compactlib._arguments import is_seconds, is_whole
from compactlib.clock import Clock, SystemClock
from compactlib.files.disk import Files, LocalFiles
from compactlib.observer import Observer, Observers
from compactlib.raftlog.compaction.policies import SeedPolicy
from compactlib.raftlog.compaction.policy import LogPolicy
from compactlib.raftlog.compaction.report import SegmentChanges
from compactlib.raftlog.compaction.triggers import DeadRatio, EveryNMinors, Trigger
from compactlib.raftlog.model.values import SegmentLimits
from compactlib.raftlog.segment.segments import DEFAULT_MAX_OPEN


@attrs.frozen(kw_only=True)
class LogOptions:
    """The settings of a log.

    Attributes:
        limits: of a segment.
        policy: chooses the victims when the trigger is due.
        trigger: decides whether `compact()`, without a plan or a policy, uses `policy` or only drops (`DropDead`).
        keep_links_seconds: how long the names of merged segments stay readable for other processes.
        max_open_segments: limit of the files open for reading, in all logs of a store together.
        files: the disk.
        clock: of the log.
        observer: receives progress, counters and events.
        on_changes: called with each change of the list of segments (`SegmentChanges`), by the compaction or the reclaim
            that is about to remove files. If it raises, the files stay, and the next reclaim calls it again.
    """

    limits: SegmentLimits = attrs.field(factory=SegmentLimits)
    policy: LogPolicy = attrs.field(factory=SeedPolicy)
    trigger: Trigger = DeadRatio(1.0) | EveryNMinors(8)
    keep_links_seconds: float = attrs.field(default=60.0, validator=is_seconds(0, inf))
    max_open_segments: int = attrs.field(default=DEFAULT_MAX_OPEN, validator=is_whole(1))
    files: Files = attrs.field(factory=LocalFiles)
    clock: Clock = attrs.field(factory=SystemClock)
    observer: Observer = attrs.field(factory=Observers)
    on_changes: Callable[[SegmentChanges], object] | None = None
