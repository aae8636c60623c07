# SPDX-License-Identifier: Apache-2.0
"""Entries appended in runs make the same files as the same entries appended one by one, and are as durable."""

import tempfile
from pathlib import Path

from hypothesis import given, settings, strategies as st

from compactlib.raftlog import LogOptions, SegmentLimits, SegmentLog

RUNS = st.lists(st.tuples(st.integers(-40, 20), st.integers(1, 100), st.sampled_from([0, 1, 20])), min_size=1,
                max_size=5)
LIMITS = st.builds(SegmentLimits, max_entries=st.sampled_from([10, 64, 1000]),
                   max_bytes=st.sampled_from([200, 1 << 20]))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "LOCK"}


@given(runs=RUNS, limits=LIMITS)
@settings(max_examples=30)
def test_runs_and_single_entries_make_the_same_files(runs: list[tuple[int, int, int]], limits: SegmentLimits) -> None:
    options, term, last = LogOptions(limits=limits), 0, 0
    with (tempfile.TemporaryDirectory() as scratch, SegmentLog(Path(scratch, "runs"), options) as by_runs,
          SegmentLog(Path(scratch, "single"), options) as by_one):
        for step, count, length in runs:
            # Overwrites, follows, or leaves a gap; in the middle of older segments, too.
            first, term = max(last + 1 + step, 1), term + 1
            payloads = [bytes([place % 251]) * (length + place % 3) for place in range(count)]
            by_runs.append([(first + place, term, payload) for place, payload in enumerate(payloads)])
            for place, payload in enumerate(payloads):
                by_one.append([(first + place, term, payload)])
            last = first + count - 1
            by_runs.sync()
            by_one.sync()
            assert by_runs.refs == by_one.refs
            assert [by_runs.read(index) for index in (first, last)] == [by_one.read(index) for index in (first, last)]
            by_runs.audit()
        assert contents(Path(by_runs.folder)) == contents(Path(by_one.folder))
