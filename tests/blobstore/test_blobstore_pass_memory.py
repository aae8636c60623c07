# SPDX-License-Identifier: Apache-2.0
"""The memory of a compaction's pass over the index, however large the rest of the log is."""

from __future__ import annotations

import tracemalloc
from array import array

from compactlib.blobstore.contents import histories_in
from compactlib.blobstore.index import COLUMNS, IndexPart
from compactlib.blobstore.policy import SegmentName

STEP = (1 << 64) // 200_000


def part_of(position: int, hashes: array[int]) -> IndexPart:
    """Return the index of a segment whose records have these hashes, and ids of one byte."""
    count = len(hashes)
    columns = [array(code, bytes(array(code).itemsize * count)) for code in COLUMNS.values()]
    return IndexPart(SegmentName(position, 0), 80, 81, columns, b"x" * count, array("I", range(1, count + 1)), hashes,
                     array("I", range(count)))


def test_pass_for_a_small_victim_copies_no_column_of_the_log() -> None:
    large = part_of(0, array("Q", range(0, 200_000 * STEP, STEP)))
    small = part_of(1, array("Q", [7 * STEP, 7 * STEP + 1, 199_999 * STEP]))
    parts = [*[large] * 5, small]
    tracemalloc.start()
    try:
        histories = list(histories_in(parts, {small.segment}))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sorted(map(len, histories)) == [1, 6, 6]
    assert peak < 1_000_000, peak
