# SPDX-License-Identifier: Apache-2.0
"""How fast Spark reads logs and blob stores as tables, against plain Python loops over the same files.

    python benchmarks/spark_sources.py [--quick] [--only NAME ...] [--runs N] [--json FILE] [--folder FOLDER]

Each figure measures ours, on `local[2,4]` with the session up, and the reference in turn in one run (A B A B ...), and
prints rows or payload bytes a second. Spark counts the rows and sums the lengths of their payloads, so that every byte
goes through. The session is that of `spark.py`, warm: Java compiles during some thirty queries, so each query
runs eight times at once, until the last sixteen are less than 3 % quicker than the quickest before (or after eighty).
A query takes 0.1 s before its first row, so the blob stores, with the quickest loop, have four times the data. There
are three references, of which the first runs in this process:

* **loop**: reads the same files with the package's own readers, checks the same checksums, and has a tuple of the same
  columns for every row. The goal is at least 0.5 of it.
* **binaryFile**: Spark's own source reads the files of blob stores in the same session, without parsing them, and
  sums the lengths of their contents. No goal: its distance to the loop is the cost of large values in Spark.
* **ready batch**: a source with the columns, the plan and the sizes of blob stores, whose workers give one batch again
  and again, and read and check nothing. No goal: it is what Spark itself leaves possible.

Needs Java.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import attrs
import pyarrow as pa
from local_spark import spark_session
from measure import Figure, alternate, report
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from raftlog_compaction import build_log

from compactlib.blobstore import BlobReader, BlobStore, BlobStoreConfig, SegmentRecords
from compactlib.raftlog import Entry, LogReader, open_segment
from compactlib.spark import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIB = 1 << 20
WARM_UPS = 8
MOST_WARM_UPS = 10 * WARM_UPS
STEADY = 0.97
_BATCH_BYTES = 2 * MIB
Counted: TypeAlias = tuple[int, int]
"""Rows, and bytes of their payloads."""


@attrs.frozen(kw_only=True)
class Source:
    """One kind of data to read.

    Attributes:
        name: in the figures.
        table: what `spark.read.format` takes.
        path: what `load` takes.
        options: for `spark.read`.
        value: the column with the payload.
        loop: the reference that makes rows.
    """

    name: str
    table: str
    path: Path
    options: dict[str, str]
    value: str
    loop: Callable[[], Counted]


def figures(spark: SparkSession, source: Source, runs: int) -> Iterator[Figure]:
    """Rows and payload bytes a second, against the references."""
    def ask(table: str) -> Counted:
        frame = spark.read.format(table).options(**source.options).load(str(source.path))
        (row,) = frame.selectExpr("count(*)", f"sum(length({source.value}))").collect()
        return row[0], row[1]

    ours = partial(ask, source.table)
    rows, size = ours()
    assert source.loop() == (rows, size), (source.loop(), rows, size)
    warm_up(ours)
    values, references = alternate(runs, partial(rate, ours, 1.0), partial(rate, source.loop, 1.0))
    for unit, amount, suffix, goal in (("MB/s of payload", size / 1e6, "mb", ">= 0.5"), ("rows/s", rows, "rows", "")):
        yield Figure(figure=f"source.{source.name}.{suffix}", unit=unit, values=tuple(amount * each for each in values),
                     goal=goal, reference="loop", reference_values=tuple(amount * each for each in references))
    if source.table == "compactlib.blobstore":
        def files() -> object:
            # A DataFrame that is asked again reads no files: it has the shuffle of the first time.
            read = spark.read.format("binaryFile").load(f"{source.path}/*.log")
            return read.selectExpr("sum(length(content))").collect()

        ready = partial(ask, ReadyBatches.name())
        for name, reference, read, amount in (("over_ready", "ready batch", ready, ready()[1]),
                                              ("over_binary_file", "binaryFile", files, size)):
            warm_up(read)
            values, references = alternate(runs, partial(rate, ours, size / 1e6), partial(rate, read, amount / 1e6))
            yield Figure(figure=f"source.{source.name}.{name}", unit="MB/s of payload", values=tuple(values),
                         goal="", reference=reference, reference_values=tuple(references))


def warm_up(query: Callable[[], object]) -> None:
    """Ask until it gets no quicker."""
    rates: list[float] = []
    while len(rates) < MOST_WARM_UPS:
        rates += [rate(query, 1.0) for _ in range(WARM_UPS)]
        if max(rates[-2 * WARM_UPS:]) * STEADY < max(rates[:-2 * WARM_UPS], default=0.0):
            return


def rate(work: Callable[[], object], amount: float) -> float:
    """`amount` a second."""
    began = time.perf_counter()
    work()
    return amount / (time.perf_counter() - began)


# -------------------------------------------------------------------------------------------------------------- logs


def log_source(scratch: Path, megabytes: int) -> Iterator[Source]:
    """Entries of 1 KiB in segments of 16 MiB, of which 30 % below the snapshot are live. All are read."""
    folder = scratch / "log"
    entries = 16 * 1024
    build_log(folder, max(megabytes * 1024 // entries, 2), 0.3, 1, entries)

    def loop() -> Counted:
        count = size = 0
        with LogReader(folder) as log:
            state, numbers = log.state, [ref.number for ref in log.refs]
        assert state is not None
        for number in numbers:
            with open_segment(folder, number, newest=number == numbers[-1]) as segment:
                index = segment.index
                for entry, offset, length in zip(segment.scan(), index.offsets, index.lengths, strict=True):
                    assert isinstance(entry, Entry)
                    is_live = entry.index > state.index or entry.index in state.live
                    row = number, entry.index, entry.term, offset, length, is_live, entry.payload
                    count += 1
                    size += len(row[-1] or b"")
        return count, size

    yield Source(name="raftlog", table="compactlib.raftlog", path=folder, options={}, value="payload", loop=loop)


# ------------------------------------------------------------------------------------------------------- blob stores


def blob_source(name: str, smallest: int, largest: int, times: int, scratch: Path, megabytes: int) -> Iterator[Source]:
    """Put blobs of these sizes, a multiple of the other sources' bytes, and delete 40 % of them."""
    folder = scratch / name
    now = _build_blobs(folder, times * megabytes, smallest, largest)

    def loop() -> Counted:
        count = size = 0
        with BlobReader(folder) as reader:
            parts = reader.records(reference_time=now, now=now)
        for record in (record for part in parts for record in part.read()):
            assert record.error is None
            row = *record[:15], record.payload
            count += 1
            size += len(row[-1] or b"")
        return count, size

    yield Source(name=name, table="compactlib.blobstore", path=folder, options={}, value="payload", loop=loop)


def _build_blobs(folder: Path, megabytes: int, smallest: int, largest: int) -> float:
    segment = 64 * MIB if megabytes >= 256 else 4 * MIB
    config = BlobStoreConfig(
        capacity_bytes=(2 * megabytes * MIB // segment + 8) * segment, segment_bytes=segment, durability="interval",
        sync_interval_seconds=3600.0, journal_max_entries=0)
    rng = random.Random(5)
    noise = rng.randbytes(largest + 65536)
    with BlobStore(folder, config) as store:
        left, number = megabytes * MIB, 0
        while left > 0:
            size, start = rng.randint(smallest, largest), rng.randrange(65536)
            store.put(f"blob {number}", noise[start:start + size])
            left -= size
            number += 1
        for each in range(number):
            if rng.random() < 0.4:
                store.delete(f"blob {each}")
        return store.clock.now() + 1


class ReadyBatches(DataSource, DataSourceReader):
    """As many batches as a store's records fill, of records of their mean size; nothing of the contents is read."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return "segment string, offset bigint, id binary, valid boolean, payload binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        return self

    def partitions(self) -> list[InputPartition]:
        now = time.time()
        with BlobReader(self.options["path"]) as reader:
            return list(map(InputPartition, reader.records(reference_time=now, now=now)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        part: SegmentRecords = partition.value
        size = part.size_bytes // part.count
        rows = min(max(_BATCH_BYTES // size, 1), part.count)
        batch = pa.RecordBatch.from_pydict({
            "segment": ["0_0"] * rows, "offset": [1] * rows, "id": [b"blob 100000"] * rows, "valid": [True] * rows,
            "payload": [bytes(size)] * rows})
        for first in range(0, part.count, rows):
            yield batch.slice(0, part.count - first)


# -------------------------------------------------------------------------------------------------------------- main


SOURCES: dict[str, Callable[[Path, int], Iterator[Source]]] = {
    "raftlog": log_source, "blobstore": partial(blob_source, "blobstore", 4096, 65536, 4),
    "blobstore_4k": partial(blob_source, "blobstore_4k", 4096, 4096, 1),
    "blobstore_large": partial(blob_source, "blobstore_large", MIB // 2, 3 * MIB, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller data, some three minutes")
    parser.add_argument("--only", nargs="+", choices=SOURCES, help="these alone; default all")
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--folder", help="where to put the data; default a temporary folder")
    parser.add_argument("--runs", type=int, default=None, help="counted runs of each (default 3, quick 1)")
    options = parser.parse_args()
    runs = options.runs or (1 if options.quick else 3)
    megabytes = 32 if options.quick else 256
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        scratch = Path(folder)
        # The reference `binaryFile` reads whole files into memory.
        spark = spark_session("benchmark", cores=2, options={"spark.driver.memory": "4g"})
        register(spark)
        spark.dataSource.register(ReadyBatches)
        try:
            found = [figure for name in options.only or SOURCES for source in SOURCES[name](scratch, megabytes)
                     for figure in figures(spark, source, runs)]
        finally:
            spark.stop()
    report(found, options.json)


if __name__ == "__main__":
    main()
