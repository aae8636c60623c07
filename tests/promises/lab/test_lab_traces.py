# SPDX-License-Identifier: Apache-2.0
"""Real traces: the documented schema in CSV."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from compactlib.blobstore import Greedy
from compactlib.errors import CorruptData, StorageError
from compactlib.lab import BlobLogModel, CsvTrace, replay

PIECE = 8_192
LINES = ["time,op,key,size,ttl", "0,put,a,20,", "0.5,put,b,30,60", "1,read,a,20,", "2,delete,b,,"]
ROWS = [(0, 0, 20, -1, 0), (0, 1, 30, 60_000, 500), (2, 0, 20, -1, 1_000), (1, 1, 0, -1, 2_000)]


def rows(trace: CsvTrace) -> list[tuple[int, int, int, int, int]]:
    return list(trace.rows(0))


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
def test_a_csv_trace_follows_the_schema(tmp_path: Path, name: str) -> None:
    text = ("\n".join(LINES) + "\n").encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    assert rows(CsvTrace(tmp_path / name)) == ROWS
    assert rows(CsvTrace(tmp_path / name)) == ROWS


def test_a_trace_that_pandas_converted_follows_the_schema(tmp_path: Path) -> None:
    """A column with a missing number has no whole numbers there; the first column is the index of its rows."""
    lines = [",time,op,key,size,ttl", "0,0.0,put,a,20.0,", "1,0.5,put,b,30.0,60.0", "2,1.0,read,a,20.0,",
             "3,2.0,delete,b,,"]
    (tmp_path / "trace.csv").write_text("\n".join(lines) + "\n")
    assert rows(CsvTrace(tmp_path / "trace.csv")) == ROWS


@pytest.mark.parametrize(("line", "told"), [
    ("3,move,a,1,", "line"), ("x,put,a,1,", "line"), ("3,put,a,,", "line"), ("3,put,,1,", "line"),
    ("3,put,a,0,", "line"), ("1,put,a,1,", "sort the trace"), ("3,put,a,1,-5", "line"), ("3", "line"),
    ("3,put,a,1,-0.001", "line"), ("inf,put,a,1,", "line"), ("3,put,a,10.5,", "line"), ("3,put,a,nan,", "line"),
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


def test_a_csv_trace_without_its_columns_is_named(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("when,what\n1,put\n")
    with pytest.raises(CorruptData, match="time, op, key"):
        rows(CsvTrace(tmp_path / "trace.csv"))


def test_a_line_is_named_as_an_editor_counts_it(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("time,op,key,size\r\n\r\n0,put,a,1\r\n\r\n\r\n1,bad,a,1\r\n")
    with pytest.raises(CorruptData) as caught:
        rows(CsvTrace(tmp_path / "own"))
    assert caught.value.index == 6


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_keys_that_are_no_text_differ_and_a_byte_order_mark_is_skipped(tmp_path: Path, name: str) -> None:
    content = b"\xef\xbb\xbftime,op,key,size\n0,put,\xff,1\n1,put,\xfe,1\n2,put,\xff,1\n"
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert [key for _, key, *_ in rows(CsvTrace(tmp_path / name))] == [0, 1, 0]


def times(trace: CsvTrace) -> list[int]:
    return [at for *_, at in trace.rows(0)]


def test_times_are_spread_up_to_the_next_one_at_most(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("time,op,key,size\n" + "".join(
        f"{at},put,k{number},1\n" for number, at in enumerate([1, 1, 1.5, 1.5, 4, 4, 4, 4])))
    assert times(CsvTrace(tmp_path / "t.csv")) == [1_000, 1_250, 1_500, 2_000, 4_000, 4_250, 4_500, 4_750]


def test_a_tick_longer_than_a_piece_stays_together(tmp_path: Path) -> None:
    count = 3 * PIECE + 5
    (tmp_path / "t.csv").write_text("time,op,key,size\n" + "2,put,a,1\n" * count + "3,put,a,1\n")
    found = times(CsvTrace(tmp_path / "t.csv"))
    assert len(found) == count + 1
    assert found == sorted(found)
    assert found[count // 2] == pytest.approx(2_500, abs=1)


def test_a_record_replaced_within_its_second_is_dead_in_it(tmp_path: Path) -> None:
    """5,000 writes of 50 keys in one second fit a log of 200 records, which they would not at one moment."""
    (tmp_path / "t.csv").write_text("time,op,key,size\n" + "".join(
        f"1,put,k{number % 50},1\n" for number in range(5_000)))
    trace = CsvTrace(tmp_path / "t.csv")
    assert replay(trace, Greedy(min_used_fraction=0), BlobLogModel.of_slots(20, 10)).total.refused == 0


@pytest.mark.parametrize("name", ["missing.csv", "missing.csv.gz", "."])
def test_a_trace_that_cannot_be_opened_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="read "):
        rows(CsvTrace(tmp_path / name))
