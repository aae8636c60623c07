# SPDX-License-Identifier: Apache-2.0
"""The memory that a compaction keeps for the next one does not grow with what it has copied."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest

from compactlib.raftlog import LogOptions, SeedPolicy, SegmentLimits, SegmentLog

MIB = 1 << 20
OPTIONS = LogOptions(limits=SegmentLimits(max_entries=100_000, max_bytes=64 * MIB))


def compact(folder: Path, payloads: Sequence[bytes]) -> None:
    last = len(payloads) + 1
    with SegmentLog(folder, OPTIONS) as log:
        log.append_run(1, 1, [*payloads, b"dead"])
        log.end_segment()
        log.append([(last + 1, 1, b"newest")])
        log.snapshot(last, live=range(1, last))
        assert log.compact(policy=SeedPolicy(reclaim_fraction=0.0)).done


@pytest.mark.parametrize("payloads", [[bytes(16 * MIB)], [b"x"] * 50_000], ids=["a_large_one", "many_of_a_byte"])
def test_compaction_keeps_no_memory_for_what_it_has_copied(payloads: Sequence[bytes], tmp_path: Path) -> None:
    # What is imported by the first one, and its own buffers, stay.
    compact(tmp_path / "small", [b"x"])
    tracemalloc.start()
    try:
        compact(tmp_path / "log", payloads)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 4 * MIB
    finally:
        tracemalloc.stop()
