# SPDX-License-Identifier: Apache-2.0
"""What a workload is said to ask for, and a log made for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactlib.blobstore import Greedy
from compactlib.errors import InvalidInput
from compactlib.lab import BlobSettings, CsvTrace, HotCold, Operations, TtlMix, Uniform, replay_blobs
from compactlib.lab.blobs import BlobReplay
from compactlib.lab.description import describe
from compactlib.lab.workloads import Synthetic


def test_a_small_trace_is_described_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("time,op,key,size,ttl\n0,put,a,20,\n1,put,b,30,2\n2,put,a,10,\n2.5,read,a,10,\n4,put,c,5,\n"
                    "5,delete,a,,\n5.5,delete,b,,\n6,put,c,7,60\n")
    found = describe(CsvTrace(path, tick_seconds=0))
    assert (found.puts, found.overwrites, found.deletes, found.reads, found.keys) == (5, 2, 1, 1, 3)
    assert (found.written_bytes, found.peak_live_bytes, found.largest_bytes, found.median_bytes) == (72, 50, 30, 10)
    assert (found.seconds, found.with_life, found.median_life_seconds) == (6.0, 0.4, 2.0)
    # a was replaced after 30 more bytes, its own first ones counted; c after none.
    assert found.median_overwrite_bytes == 0
    assert (found.hottest_percent, found.hottest_tenth) == (0.4, 0.4)
    assert "peak_live_bytes" in str(found)
    path.write_text("time,op,key,size,ttl\n")
    assert describe(CsvTrace(path)).puts == 0
    with pytest.raises(InvalidInput, match="puts nothing"):
        BlobSettings.for_workload(CsvTrace(path))


def test_what_expires_is_there_in_its_last_millisecond_as_in_a_store(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("time,op,key,size,ttl\n0,put,a,20,1\n1,put,b,30,1\n1,put,a,40,\n2.001,put,b,50,\n")
    trace = CsvTrace(path, tick_seconds=0)
    found = describe(trace)
    assert (found.overwrites, found.peak_live_bytes) == (1, 40 + 50)
    [piece] = trace.pieces(0)
    columns = {name: getattr(piece, name) for name in ("kinds", "keys", "sizes", "lives_ms", "times_ms")}
    for count, live in ((2, 20 + 30), (4, 40 + 50)):
        replay = BlobReplay(Greedy(), BlobSettings(capacity_bytes=1_000, segment_bytes=200, header_bytes=0,
                                                   record_overhead_bytes=0))
        replay.feed(Operations(**{name: column[:count] for name, column in columns.items()}))
        assert replay.log.live_bytes == live


def test_skew_is_seen() -> None:
    uniform = describe(Uniform(keys=2_000, writes=20_000))
    skewed = describe(HotCold(keys=2_000, writes=20_000))
    assert uniform.hottest_tenth < 0.2 < 0.7 < skewed.hottest_tenth
    assert skewed.median_overwrite_bytes < uniform.median_overwrite_bytes / 3


@pytest.mark.parametrize("workload", [Uniform(keys=3_000, writes=9_000, record_bytes=100, spread=0.5),
                                      TtlMix(keys=3_000, writes=9_000, record_bytes=100)])
@pytest.mark.parametrize("utilisation", [0.5, 0.8])
def test_a_log_for_a_workload_is_as_full_as_asked(workload: Synthetic, utilisation: float) -> None:
    settings = BlobSettings.for_workload(workload, utilisation, segments=100)
    assert 90 <= settings.segments <= 101
    assert describe(workload).peak_live_bytes / settings.capacity_bytes == pytest.approx(utilisation, rel=0.02)
    report = replay_blobs(workload, Greedy(min_used_fraction=0.0), settings)
    assert report.total.refused == 0
    # The largest record decides where segments would be too small for it.
    assert BlobSettings.for_workload(workload, utilisation, segments=100_000).segment_bytes >= 100


def test_what_records_take_beside_their_content_counts_for_each_that_lives(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("time,op,key,size\n" + "".join(
        f"{at},put,{at % 1_000},{1 if at % 2 else 100}\n" for at in range(3_000)))
    trace = CsvTrace(path)
    assert (describe(trace).peak_live_keys, describe(trace).peak_live_bytes) == (1_000, 50_500)
    settings = BlobSettings.for_workload(trace, 0.8, segments=100, record_overhead_bytes=38)
    assert (50_500 + 38 * 1_000) / settings.capacity_bytes == pytest.approx(0.8, rel=0.02)
    assert replay_blobs(trace, Greedy(min_used_fraction=0.0), settings).total.refused == 0


@pytest.mark.parametrize("utilisation", [0.0, 1.0, -1.0])
def test_a_utilisation_is_a_part(utilisation: float) -> None:
    with pytest.raises(InvalidInput, match="utilisation"):
        BlobSettings.for_workload(Uniform(keys=10, writes=0), utilisation)
