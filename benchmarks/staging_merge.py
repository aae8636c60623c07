# SPDX-License-Identifier: Apache-2.0
"""Applying changes to committed records, against a plain merge and write of the same rows; a part of `staging.py`.

The plain merges read the same Parquet files and the changes (from one more file), leave out replaced
and removed rows, sort, write one Parquet file of the same compression, and sync it. Ours takes the changes as Python
objects one by one, as a compaction does, and also hashes, cuts, seals and publishes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from measure import Figure, alternate

from compactlib.objects import LocalObjects
from compactlib.staging import CommittedRanges, ParquetFormat, Record

Changes = list[tuple[bytes, Record | None]]


def key(number: int) -> bytes:
    return b"collections/a/part-%08d.parquet" % number


def record(number: int, version: int) -> Record:
    return Record(b"%020d" % (number * 7 + version),
                  b'{"path":"s3://bucket/data/%08d/%d","size":%d}' % (number, version, number * 31 + version))


def base_records(count: int) -> Iterator[tuple[bytes, Record]]:
    for number in range(count):
        yield key(2 * number), record(number, 0)


def spread_changes(count: int) -> Changes:
    """One change for five records, all over the keys: as many added, changed and removed."""
    return [(key(2 * number + (number % 3 == 0)), None if number % 3 == 1 else record(number, 1))
            for number in range(0, count, 5)]


def narrow_changes(count: int) -> Changes:
    """As many changes, next to each other."""
    first = count // 2
    return [(key(2 * number), record(number, 1)) for number in range(first, first + count // 5)]


class Bench:
    """A committed set of records in a folder, and the changes to be made to it."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.count = count
        self.base = self.layer().apply(None, base_records(count)).metarange_id
        self.kept = {entry.range_id for entry in self.layer().ranges_of(self.base)}
        self.paths = [str(folder / "objects" / "ranges" / entry.range_id)
                      for entry in self.layer().ranges_of(self.base)]

    def layer(self) -> CommittedRanges:
        return CommittedRanges(LocalObjects(self.folder / "objects"), range_format=ParquetFormat(), cache_bytes=0)

    def ours(self, changes: Changes, rows: int | None = None) -> float:
        layer = self.layer()
        began = time.perf_counter()
        applied = layer.apply(self.base, changes)
        seconds = time.perf_counter() - began
        assert rows is None or sum(entry.count for entry in layer.ranges_of(applied.metarange_id)) == rows
        for file in layer.list("ranges/"):
            if file.key not in self.kept:
                os.unlink(self.folder / "objects" / "ranges" / file.key)
        os.unlink(self.folder / "objects" / "metaranges" / applied.metarange_id)
        return seconds

    def plain(self, changes: Changes) -> dict[str, Callable[[], float]]:
        """Return the plain merges of the installed tools, by name."""
        staged = self.folder / "changes.parquet"
        columns: dict[str, list[bytes | None]] = {
            "key": [name for name, _ in changes],
            "identity": [None if each is None else each.identity for _, each in changes],
            "data": [None if each is None else each.data for _, each in changes]}
        pq.write_table(pa.table({name: pa.array(column, pa.binary()) for name, column in columns.items()}), staged,
                       compression="zstd")
        tools: dict[str, Callable[[str, Path], None]] = {"pyarrow": self._with_pyarrow}
        for name, tool in (("duckdb", self._with_duckdb), ("polars", self._with_polars)):
            try:
                __import__(name)
            except ImportError:
                print(f"{name} is not installed: left out")
            else:
                tools[name] = tool
        return {name: lambda tool=tool: self._timed(tool, str(staged)) for name, tool in tools.items()}  # type: ignore[misc]

    def _timed(self, tool: Callable[[str, Path], None], staged: str) -> float:
        out = self.folder / "out.parquet"
        began = time.perf_counter()
        tool(staged, out)
        with out.open("rb") as file:
            os.fsync(file.fileno())
        seconds = time.perf_counter() - began
        out.unlink()
        return seconds

    def _with_pyarrow(self, staged: str, out: Path) -> None:
        import pyarrow.compute as pc

        base, changes = pq.read_table(self.paths), pq.read_table(staged)
        rest = base.filter(pc.invert(pc.is_in(base["key"], value_set=changes["key"]))).cast(changes.schema)
        both = pa.concat_tables([rest, changes.filter(pc.is_valid(changes["identity"]))])
        pq.write_table(both.sort_by("key"), out, compression="zstd", compression_level=1, use_dictionary=False)

    def _with_duckdb(self, staged: str, out: Path) -> None:
        import duckdb

        with duckdb.connect() as connection:
            connection.execute(f"SET threads={os.cpu_count() or 1}")
            connection.execute(
                f"COPY (SELECT key, identity, data FROM (SELECT * FROM read_parquet({self.paths!r}) base WHERE NOT "
                f"EXISTS (SELECT 1 FROM read_parquet('{staged}') change WHERE change.key = base.key) UNION ALL "
                f"SELECT * FROM read_parquet('{staged}') WHERE identity IS NOT NULL) ORDER BY key) "
                f"TO '{out}' (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)")

    def _with_polars(self, staged: str, out: Path) -> None:
        import polars as pl

        base, changes = pl.scan_parquet(self.paths), pl.scan_parquet(staged)
        both = pl.concat([base.join(changes.select("key"), on="key", how="anti"),
                          changes.filter(pl.col("identity").is_not_null())])
        both.sort("key").sink_parquet(out, compression="zstd", compression_level=1)


def merge_figures(folder: Path, quick: bool) -> list[Figure]:
    """Ours against each plain merge, and the part of the base that is read for changes in one place."""
    count, runs = (1_000_000, 3) if quick else (5_000_000, 3)
    bench = Bench(folder, count)
    changes = spread_changes(count)
    figures = []
    for name, plain in bench.plain(changes).items():
        ours, theirs = alternate(runs, lambda: bench.ours(changes), plain)
        # Rows per second, so that more is better and the ratio is that of the speeds.
        rows = count + len(changes)
        figures.append(Figure(
            figure=f"staging_merge_{len(changes)}_onto_{count}_{name}", unit="rows/s", goal=">= 0.5",
            values=tuple(rows / seconds for seconds in ours), reference=f"{name}, merge and write",
            reference_values=tuple(rows / seconds for seconds in theirs)))
    narrow = narrow_changes(count)
    applied = bench.layer().apply(bench.base, narrow)
    total = len(bench.kept)
    first, last = narrow[0][0], narrow[-1][0]
    touched = sum(entry.max_key >= first and entry.min_key <= last for entry in bench.layer().ranges_of(bench.base))
    assert applied.ranges_read <= touched + 1, (applied, touched)
    assert applied.ranges_reused == total - applied.ranges_read
    figures.append(Figure(figure="staging_merge_ranges_read", unit="ranges", values=(float(applied.ranges_read),),
                          reference=f"ranges with changes, of {total}", reference_values=(float(touched),),
                          goal="<= 1 more"))
    return figures
