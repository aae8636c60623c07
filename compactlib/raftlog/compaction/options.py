# SPDX-License-Identifier: Apache-2.0
"""`LogOptions`: everything about a log that a host may choose."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import attrs

from compactlib._arguments import is_seconds, is_whole
from compactlib.clock import Clock, SystemClock
from compactlib.executors.tasks import new_attempt_id
from compactlib.files.disk import Files, LocalFiles
from compactlib.observer import Observer, Observers
from compactlib.raftlog.compaction.policies import SeedPolicy
from compactlib.raftlog.compaction.policy import LogPolicy
from compactlib.raftlog.compaction.report import SegmentChanges
from compactlib.raftlog.compaction.triggers import DeadRatio, EveryNMinors, Trigger
from compactlib.raftlog.model.values import SegmentLimits
from compactlib.raftlog.segment.segment_list import DEFAULT_MAX_OPEN


@attrs.frozen(kw_only=True)
class LogOptions:
    """How a log is kept. Everything has a default; hosts replace what they need.

    Attributes:
        limits: how large a segment may become.
        policy: what is rewritten when the trigger asks for it.
        trigger: when `compact()`, given neither a plan nor a policy, asks the policy; `DropDead` is asked otherwise.
        keep_links_seconds: how long the names of merged segments stay readable for other processes.
        max_open_segments: files kept open for reading, in all logs of a store together.
        files: the disk.
        clock: where time comes from.
        observer: notified of progress, counters and events.
        on_changes: called with each change of the list of segments (`SegmentChanges`), by the compaction or the reclaim
            that is about to remove files. If it raises, the files stay, and the next reclaim calls it again.
        run_id: gives each compaction run an id of its own, for tests that need names to repeat.
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
    run_id: Callable[[], str] = new_attempt_id
