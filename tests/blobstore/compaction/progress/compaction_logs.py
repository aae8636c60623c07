# SPDX-License-Identifier: Apache-2.0
"""Compaction logs to write, read and damage."""

from __future__ import annotations

from typing import Any

from compactlib.blobstore.compaction.progress.compaction_format import decode_log, encode_log, encode_step
from compactlib.blobstore.compaction.progress.compaction_log import CompactionLog, Target
from compactlib.blobstore.model.names import LogPosition, SegmentName
from tests.blobstore.compaction_stores import names


def begun(**changes: Any) -> CompactionLog:
    values: dict[str, Any] = {"number": 7, "started_ms": 1000, "reference_ms": 500, "is_full": True,
                              "swap_segments": 1, "victims": tuple(names("0_0", "1_0", "2_3"))}
    return CompactionLog(**{**values, **changes})


def at_all_phases() -> list[CompactionLog]:
    """One log after each of its steps, in two cycles."""
    zero, one, two = names("0_0", "1_0", "2_3")
    split = LogPosition(two, 1080)
    logs = [begun()]
    logs.append(logs[-1].start_copy((zero, one), split, (SegmentName(0, 1),), 1001))
    logs.append(logs[-1].copied(Target(SegmentName(0, 1), 2000, 9, 77, (80, 900))))
    logs.append(logs[-1].start_commit(1920, 1002))
    logs.append(logs[-1].start_cleanup(1003))
    logs.append(logs[-1].end_cycle(1004))
    logs.append(logs[-1].leave_out(two))
    logs.append(logs[-2].start_copy((two,), None, (), 1005))
    logs.append(logs[-1].start_commit(0, 1006).start_cleanup(1007).end_cycle(1008))
    logs.append(logs[1].drop())
    return logs


def with_step(data: bytes, log: CompactionLog) -> bytes:
    """The bytes of a file after one more step."""
    step = encode_step(decode_log(data, "x"), log)
    return encode_log(log) if step is None else data + step
