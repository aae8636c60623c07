# SPDX-License-Identifier: Apache-2.0
"""Real traces: the documented schema in CSV and Parquet, and the CloudPhysics block trace when it is there."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.blobstore import Greedy
from compactlib.errors import CorruptData, InvalidInput
from compactlib.lab import LAYOUTS, BlobLogModel, CsvTrace, ParquetTrace, TraceLayout, replay

PIECE = 8_192
CLOUDPHYSICS = Path(__file__).parents[4] / "shared" / "data" / "cloudphysics_io.csv.gz"
LINES = ["time,op,key,size,ttl", "0,put,a,20,", "0.5,put,b,30,60", "1,read,a,20,", "2,delete,b,,"]
ROWS = [(0, 0, 20, -1, 0), (0, 1, 30, 60_000, 500), (2, 0, 20, -1, 1_000), (1, 1, 0, -1, 2_000)]


def rows(trace: CsvTrace) -> list[tuple[int, int, int, int, int]]:
    return list(trace.rows(0))


def published(path: Path, layout: str, **changes: Any) -> CsvTrace:
    return CsvTrace(path, attrs.evolve(LAYOUTS[layout], **changes))


def ticking(path: Path, seconds: float) -> CsvTrace:
    return CsvTrace(path, attrs.evolve(CsvTrace(path).layout, tick_seconds=seconds))


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
def test_a_csv_trace_follows_the_schema(tmp_path: Path, name: str) -> None:
    text = ("\n".join(LINES) + "\n").encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    assert rows(CsvTrace(tmp_path / name)) == ROWS
    assert rows(CsvTrace(tmp_path / name)) == ROWS


def test_a_parquet_trace_holds_the_same_operations(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"time": [0.0, 0.5, 1.0, 2.0], "op": ["put", "put", "read", "delete"],
                           "key": ["a", "b", "a", "b"], "size": [20, 30, 20, None], "ttl": [None, 60.0, None, None],
                           "host": ["x"] * 4})
    parquet.write_table(table, tmp_path / "trace.parquet")
    trace = ParquetTrace(tmp_path / "trace.parquet")
    assert list(trace.rows(0)) == ROWS
    parquet.write_table(table.drop_columns(["key"]), tmp_path / "bad.parquet")
    for name in ("bad.parquet", "none.parquet"):
        (tmp_path / "none.parquet").write_bytes(b"no such thing")
        with pytest.raises(CorruptData):
            list(ParquetTrace(tmp_path / name).rows(0))


@pytest.mark.parametrize(("changes", "told"), [
    ({"op": "move"}, "put, delete, read"), ({"key": None}, "put, delete, read"), ({"size": -1}, "put, delete, read"),
    ({"size": 10.5}, "put, delete, read"),
    ({"time": 0.25}, "sort the trace"), ({"time": None}, "put, delete, read"), ({"ttl": -1.0}, "put, delete, read"),
])
def test_a_row_of_a_parquet_trace_that_is_not_in_the_schema_is_named(tmp_path: Path, changes: dict[str, object],
                                                                     told: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [{"time": float(number), "op": "put", "key": f"k{number}", "size": 10, "ttl": 1.0} for number in range(5)]
    rows[3] |= changes
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "trace.parquet")
    with pytest.raises(CorruptData, match=told) as caught:
        list(ParquetTrace(tmp_path / "trace.parquet").rows(0))
    assert (caught.value.index, caught.value.path) == (4, str(tmp_path / "trace.parquet"))


@pytest.mark.parametrize(("line", "told"), [
    ("3,move,a,1,", "line"), ("x,put,a,1,", "line"), ("3,put,a,,", "line"), ("3,put,,1,", "line"),
    ("3,put,a,0,", "line"), ("1,put,a,1,", "sort the trace"), ("3,put,a,1,-5", "line"), ("3", "line"),
    ("inf,put,a,1,", "line"),
])
def test_a_line_that_is_not_in_the_schema_is_named(tmp_path: Path, line: str, told: str) -> None:
    (tmp_path / "trace.csv").write_text("\n".join([*LINES, line]) + "\n")
    with pytest.raises(CorruptData) as caught:
        rows(CsvTrace(tmp_path / "trace.csv"))
    assert caught.value.index == 6
    assert "sort the trace" in str(caught.value) or told == "line"


@pytest.mark.parametrize("line", ["1e300,put,a,1,", "3,put,a,1,1e300"])
def test_a_time_that_no_column_holds_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "trace.csv").write_text("\n".join([*LINES, line]) + "\n")
    with pytest.raises(CorruptData) as caught:
        rows(CsvTrace(tmp_path / "trace.csv"))
    assert caught.value.index == 6


def test_a_size_that_no_replay_counts_is_named(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(f"0,a,1,{1 << 32},1,set,60\n")
    with pytest.raises(CorruptData):
        list(published(tmp_path / "t", "twitter").rows(0))


@pytest.mark.parametrize("damage", ["cut", "changed", "plain", "trailing"])
def test_a_truncated_packed_trace_is_corrupt(tmp_path: Path, damage: str) -> None:
    text = "time,op,key,size\n" + "".join(f"{number},put,{number * 7_919 % 1_000},5\n" for number in range(2 * PIECE))
    packed = gzip.compress(text.encode())
    half = len(packed) // 2
    damaged = {"cut": packed[:half], "changed": packed[:half] + b"\xff" * 100 + packed[half + 100:],
               "plain": text.encode(), "trailing": packed + b"more"}
    (tmp_path / "t.csv.gz").write_bytes(damaged[damage])
    with pytest.raises(CorruptData, match=r"t\.csv\.gz"):
        rows(CsvTrace(tmp_path / "t.csv.gz"))


def test_a_line_without_an_end_is_corrupt(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("\n".join(LINES) + "\n3,put," + "a" * 200_000 + ",1,\n")
    with pytest.raises(CorruptData, match=r"t\.csv"):
        rows(CsvTrace(tmp_path / "t.csv"))


def test_every_damage_of_a_parquet_trace_is_named(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    count = PIECE + 1
    parquet.write_table(pyarrow.table({"time": [float(number) for number in range(count)], "op": ["put"] * count,
                                       "key": [str(number * 7_919 % 1_000) for number in range(count)],
                                       "size": [5] * count}), tmp_path / "t.parquet")
    content = (tmp_path / "t.parquet").read_bytes()
    named = 0
    for place in range(0, len(content), len(content) // 12):
        damaged = bytearray(content)
        damaged[place] ^= 0x80
        (tmp_path / "t.parquet").write_bytes(damaged)
        try:
            list(ParquetTrace(tmp_path / "t.parquet").rows(0))
        except CorruptData:
            named += 1
    assert named > 5
    with pytest.raises(FileNotFoundError):
        list(ParquetTrace(tmp_path / "none").rows(0))


def test_a_csv_trace_without_its_columns_is_named(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("when,what\n1,put\n")
    with pytest.raises(CorruptData, match="time, op, key"):
        rows(CsvTrace(tmp_path / "trace.csv"))


def test_a_request_touches_each_of_its_pages(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("version,time,op,size,lbn\n1,5,2a,8192,7\n1,4,28,512,0\n")
    rows = published(tmp_path / "t.csv", "cloudphysics", tick_seconds=0).rows(0)
    assert [(kind, key, at) for kind, key, _, _, at in rows] == [
        (0, 0, 5_000), (0, 1, 5_000), (0, 2, 5_000), (2, 0, 5_000)]
    (tmp_path / "t.csv").write_text("version,time,op,size,lbn\n1,5,99,8192,7\n")
    with pytest.raises(CorruptData, match="2a, 28"):
        list(published(tmp_path / "t.csv", "cloudphysics").rows(0))


@pytest.mark.parametrize(("layout", "lines"), [
    ("msr_cambridge", ["128166372003061629,src1,0,Write,8192,4096,100", "128166372013061629,src1,0,Read,8192,512,99",
                     "128166372023061629,src1,1,Write,8192,1,5"]),
    ("alibaba", ["3,W,8192,4096,12816637200306162", "3,R,8192,512,12816637201306162", "4,W,8192,1,12816637202306162"]),
    ("tencent", ["12816637200,16,8,1,1283", "12816637201,16,1,0,1283", "12816637202,16,1,1,1284"])])
@pytest.mark.parametrize("packed", [False, True])
def test_block_traces_are_read_as_they_are_published(tmp_path: Path, layout: str, lines: list[str],
                                                     packed: bool) -> None:
    text = ("\n".join(lines) + "\n").encode()
    path = tmp_path / ("t.csv.gz" if packed else "t.csv")
    path.write_bytes(gzip.compress(text) if packed else text)
    found = list(published(path, layout, tick_seconds=0).rows(0))
    assert [row[:3] for row in found] == [(0, 0, 4096), (2, 0, 4096), (0, 1, 4096)]
    assert [at - found[0][4] for *_, at in found] == [0, 1_000, 2_000]
    for damaged in ("", "1,2", lines[0].replace("W", "Q").replace(",1,", ",7,"), lines[0].replace("8192,", "-8192,")
                    .replace(",16,", ",-16,"), lines[0].replace("4096,", "9999999999,").replace(",8,", ",99999999,")):
        (tmp_path / "bad.csv").write_text(f"{lines[0]}\n{damaged}\n")
        if damaged:
            with pytest.raises(CorruptData) as caught:
                list(published(tmp_path / "bad.csv", layout).rows(0))
            assert caught.value.index == 2


def test_a_part_of_a_trace_without_its_header_begins_with_a_request(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("1,5,2a,4096,8\n1,6,28,512,0\n")
    found = list(published(tmp_path / "t.csv", "cloudphysics").rows(0))
    assert [(kind, key) for kind, key, *_ in found] == [(0, 0), (2, 1)]


def test_a_line_is_named_as_an_editor_counts_it(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("time,op,key,size\r\n\r\n0,put,a,1\r\n\r\n\r\n1,bad,a,1\r\n")
    (tmp_path / "theirs").write_text("\n0,a,1,2,3,get,0\n\n\n\n0,a,1,2,3,bad,0\n")
    for trace in (CsvTrace(tmp_path / "own"), published(tmp_path / "theirs", "twitter")):
        with pytest.raises(CorruptData) as caught:
            list(trace.rows(0))
        assert caught.value.index == 6


def test_a_cache_trace_is_read_as_it_is_published(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("0,nz:u:a,6,100,1,set,60\n0,nz:u:a,6,100,2,get,0\n1,nz:u:b,6,0,1,incr,0\n"
                                "2,nz:u:a,6,0,1,delete,0\n")
    found = list(published(tmp_path / "t", "twitter").rows(0))
    assert found == [(0, 0, 106, 60_000, 0), (2, 0, 106, -1, 500), (0, 1, 6, -1, 1_000), (1, 0, 0, -1, 2_000)]
    for damaged in ("0,a,1,1,1,flush_all,0", "0,a,x,1,1,get,0", "0,a,1,1,1,set,-1", "0,a", "nan,a,1,1,1,get,0"):
        (tmp_path / "t").write_text(damaged + "\n")
        with pytest.raises(CorruptData):
            list(published(tmp_path / "t", "twitter").rows(0))


def test_a_quote_in_a_published_trace_is_a_character_as_any_other(tmp_path: Path) -> None:
    (tmp_path / "t").write_text('0,"a,2,3,4,set,0\n1,"a,2,3,4,delete,0\n2,b",2,3,4,set,0\n')
    found = list(published(tmp_path / "t", "twitter").rows(0))
    assert [(kind, key) for kind, key, *_ in found] == [(0, 0), (1, 0), (0, 1)]


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_keys_that_are_no_text_differ_and_a_byte_order_mark_is_skipped(tmp_path: Path, name: str) -> None:
    content = b"\xef\xbb\xbftime,op,key,size\n0,put,\xff,1\n1,put,\xfe,1\n2,put,\xff,1\n"
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert [key for _, key, *_ in rows(CsvTrace(tmp_path / name))] == [0, 1, 0]


def times(trace: CsvTrace) -> list[int]:
    return [at for *_, at in trace.rows(0)]


def test_operations_of_one_second_are_spread_in_order(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("version,time,op,size,lbn\n1,5,2a,8192,7\n1,4,28,512,0\n1,7,28,512,0\n")
    assert times(published(tmp_path / "t.csv", "cloudphysics")) == [5_000, 5_000, 5_000, 5_500, 7_000]


def test_times_are_spread_up_to_the_next_one_at_most(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("time,op,key,size\n" + "".join(
        f"{at},put,k{number},1\n" for number, at in enumerate([1, 1, 1.5, 1.5, 4, 4, 4, 4])))
    assert times(CsvTrace(tmp_path / "t.csv")) == [1_000, 1_250, 1_500, 2_000, 4_000, 4_250, 4_500, 4_750]
    assert times(ticking(tmp_path / "t.csv", 2)) == [
        1_000, 1_250, 1_500, 2_500, 4_000, 4_500, 5_000, 5_500]
    assert times(ticking(tmp_path / "t.csv", 0)) == [1_000] * 2 + [1_500] * 2 + [4_000] * 4


def test_a_tick_longer_than_a_piece_stays_together(tmp_path: Path) -> None:
    count = 3 * PIECE + 5
    (tmp_path / "t.csv").write_text("time,op,key,size\n" + "2,put,a,1\n" * count + "3,put,a,1\n")
    found = times(CsvTrace(tmp_path / "t.csv"))
    assert len(found) == count + 1
    assert found == sorted(found)
    assert found[count // 2] == pytest.approx(2_500, abs=1)


@pytest.mark.parametrize("tick", [-1.0, 1e9])
def test_a_tick_is_a_length_of_time(tick: Any) -> None:
    with pytest.raises(InvalidInput, match="tick_seconds"):
        TraceLayout(name="x", tick_seconds=tick)


def test_a_record_replaced_within_its_second_is_dead_in_it(tmp_path: Path) -> None:
    """5,000 writes of 50 keys in one second fit a log of 200 records; they did not when all were made at once."""
    (tmp_path / "t.csv").write_text("time,op,key,size\n" + "".join(
        f"1,put,k{number % 50},1\n" for number in range(5_000)))
    model = BlobLogModel.of_slots(20, 10)
    policy = Greedy(min_used_fraction=0)
    assert replay(CsvTrace(tmp_path / "t.csv"), policy, model).total.refused == 0
    assert replay(ticking(tmp_path / "t.csv", 0), policy, model).total.refused > 4_000


@pytest.mark.skipif(not CLOUDPHYSICS.exists(), reason=f"{CLOUDPHYSICS} is not here")
def test_the_cloudphysics_trace_replays() -> None:
    model = BlobLogModel(capacity_bytes=1 << 31, segment_bytes=1 << 20, header_bytes=0)
    trace = published(CLOUDPHYSICS, "cloudphysics", page_bytes=1 << 16)
    report = replay(trace, Greedy(min_used_fraction=0.3, min_reclaimed_segments=8), model)
    total = report.total
    assert total.operations > 113_872
    assert total.reads > 0
    assert total.refused == 0
    assert total.user_bytes > total.live_bytes > 0
