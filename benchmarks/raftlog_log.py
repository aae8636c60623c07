# SPDX-License-Identifier: Apache-2.0
"""How fast a Raft log takes entries, and how fast it opens, against the same bytes written and read plainly.

    python benchmarks/raftlog_log.py [--quick] [--json FILE] [--folder FOLDER] [--runs N]

Batched appends with one fsync a batch, alone, with the flushes that they lead to, and to segments without a store; the
stalls of such appends while a major compaction runs; the recovery of a WAL. `docs/benchmarks.md` has the last figures.

Appends to segments are compared with those of Ra, RabbitMQ's Raft library, which `ra_segment.escript` measures.
Debian's package has it, and Erlang: `apt-get install --no-install-recommends rabbitmq-server`; no server need run, and
without the package Ra is left out. Ra's segment file has the same content as ours (records and payloads, a CRC of each
entry, 4,096 entries a file, one fsync a batch), but no seal that distinguishes damage from a crash, and no zeros ahead.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import attrs
from measure import Figure, alternate, report

from compactlib.files import crc32
from compactlib.indexset import IndexSet
from compactlib.raftlog import (
    LogCompactionReport,
    LogOptions,
    RaftLog,
    SegmentLimits,
    SegmentLog,
    StoreOptions,
    open_log,
)

PAYLOAD_BYTES = 256
BATCH_ENTRIES = 512
UNFLUSHED = StoreOptions(max_wal_bytes=1 << 40, max_wal_entries=1 << 40, background=False)
"""One WAL file of any length: no entry is flushed to a segment."""


def payloads_of(count: int) -> list[bytes]:
    """Distinct payloads, as many as a batch."""
    noise = os.urandom(PAYLOAD_BYTES + count)
    return [noise[start:start + PAYLOAD_BYTES] for start in range(count)]


def fresh(scratch: Path, name: str) -> Path:
    """An empty place, with nothing waiting for the disk."""
    path = scratch / name
    shutil.rmtree(path, ignore_errors=True)
    os.sync()
    gc.collect()
    return path


def append_batches(log: RaftLog, batches: int, first: int = 1) -> list[float]:
    """Append and sync batches; return the seconds of each."""
    payloads = payloads_of(BATCH_ENTRIES)
    taken = []
    for batch in range(batches):
        began = time.perf_counter()
        log.append_run(first + batch * BATCH_ENTRIES, 1, payloads)
        log.sync()
        taken.append(time.perf_counter() - began)
    return taken


def append_rate(scratch: Path, batches: int, options: StoreOptions | None = None) -> float:
    """Entries a second; with the default options, flushes to segments in the background included."""
    with open_log(fresh(scratch, "append"), options) as log:
        return batches * BATCH_ENTRIES / sum(append_batches(log, batches))


def append_tuples_rate(scratch: Path, batches: int, options: StoreOptions) -> float:
    """The same through `append`, with a tuple for each entry."""
    payloads = payloads_of(BATCH_ENTRIES)
    with open_log(fresh(scratch, "append"), options) as log:
        began = time.perf_counter()
        for batch in range(batches):
            first = 1 + batch * BATCH_ENTRIES
            log.append([(first + place, 1, payload) for place, payload in enumerate(payloads)])
            log.sync()
        return batches * BATCH_ENTRIES / (time.perf_counter() - began)


def bare_rate(scratch: Path, batches: int, *, in_place: bool = False) -> float:
    """Entries a second of a loop that writes the same payloads, joined, and syncs; to a file of zeros if `in_place`."""
    path = fresh(scratch, "bare")
    data = b"".join(payloads_of(BATCH_ENTRIES))
    with open(path, "w+b", buffering=0) as file:
        file.writelines(bytes(len(data)) for _ in range(batches if in_place else 0))
        os.fsync(file.fileno())
        file.seek(0)
        began = time.perf_counter()
        for _ in range(batches):
            file.write(data)
            os.fsync(file.fileno())
        seconds = time.perf_counter() - began
    path.unlink()
    return batches * BATCH_ENTRIES / seconds


def append_figures(scratch: Path, batches: int, runs: int) -> Iterator[Figure]:
    """Batched appends against write and fsync alone: those of a WAL file, and for ever, with what flushes cost."""
    ours = (("append.run", partial(append_rate, options=UNFLUSHED), ">= 0.7"),
            ("append.tuples", partial(append_tuples_rate, options=UNFLUSHED), ">= 0.6"),
            ("append.run.flushed_meanwhile", append_rate, "printed"))
    for name, rate, goal in ours:
        values, bare = alternate(runs, partial(rate, scratch, batches), partial(bare_rate, scratch, batches))
        yield Figure(figure=f"{name}.256_bytes.batch_512", unit="entries/s", values=tuple(values),
                     reference="write and fsync of the same bytes in a bare loop", reference_values=tuple(bare),
                     goal=goal)
    values, bare = alternate(runs, partial(append_rate, scratch, batches, UNFLUSHED),
                             partial(bare_rate, scratch, batches, in_place=True))
    yield Figure(figure="append.run.in_place.256_bytes.batch_512", unit="entries/s", values=tuple(values),
                 reference="the same loop in a file of zeros, written before", reference_values=tuple(bare),
                 goal="printed")


def segment_rate(scratch: Path, entries: int, each: int) -> float:
    """Return the entries a second of a `SegmentLog`, synced after each batch."""
    payloads = payloads_of(each)
    with SegmentLog(fresh(scratch, "segments")) as log:
        began = time.perf_counter()
        for first in range(1, entries + 1, each):
            log.append([(first + place, 1, payload) for place, payload in enumerate(payloads)])
            log.sync()
        return entries / (time.perf_counter() - began)


def plain_segment_rate(scratch: Path, entries: int, each: int) -> float:
    """Write the bytes of a segment file of Ra in a bare loop: payloads after its index, their records into it, a sync.

    A record has index, term, offset, length and CRC, and is in a region for 4,096 of them; then the next file
    begins. It checks nothing, and can read nothing back.
    """
    payloads = payloads_of(each)
    record, most = struct.Struct(">HQQQII"), 4096
    folder = fresh(scratch, "plain-segments")
    folder.mkdir()
    descriptor = -1
    began = time.perf_counter()
    for first in range(1, entries + 1, each):
        place = (first - 1) % most
        if place < each:
            if descriptor >= 0:
                os.close(descriptor)
            descriptor = os.open(folder / str(first), os.O_RDWR | os.O_CREAT, 0o644)
            place, end = 0, most * record.size
        records = []
        offset = end
        for index, payload in enumerate(payloads, first):
            records.append(record.pack(0, index, 1, offset, len(payload), crc32(payload)))
            offset += len(payload)
        os.pwritev(descriptor, payloads, end)
        os.pwrite(descriptor, b"".join(records), place * record.size)
        os.fsync(descriptor)
        end = offset
    seconds = time.perf_counter() - began
    os.close(descriptor)
    return entries / seconds


@attrs.frozen
class Ra:
    """Ra as it is installed: the folder of its compiled modules, and its version."""

    plugins: Path
    version: str

    @classmethod
    def installed(cls) -> Ra | None:
        """What Debian's package has, `None` if it or Erlang is not there."""
        found = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/plugins/ra-[0-9]*"))
        if not found or shutil.which("escript") is None:
            return None
        return cls(found[-1].parent, found[-1].name.removeprefix("ra-"))

    def measured(self, scratch: Path, entries: int, each: int, flags: str) -> dict[str, float]:
        """The rate, and the microseconds of CPU an entry, of one run in a virtual machine of its own."""
        script = Path(__file__).with_name("ra_segment.escript")
        folder = fresh(scratch, "ra-segments")
        ended = subprocess.run(["escript", script, self.plugins, folder, str(entries), str(each)], check=True,
                               stdout=subprocess.PIPE, env={**os.environ, "ERL_FLAGS": flags})
        told: dict[str, float] = json.loads(ended.stdout)
        return told

    def rate(self, scratch: Path, entries: int, each: int) -> float:
        """Entries a second, with the fastest of the virtual machine's settings: its threads wait for the disk awake."""
        return self.measured(scratch, entries, each, "+sbwt very_long")["rate"]

    def cpu(self, scratch: Path, entries: int, each: int) -> float:
        """Microseconds of CPU an entry, with the least of them: its threads wait asleep, as ours do."""
        return self.measured(scratch, entries, each, "+sbwt none")["cpu"]


def segment_cpu(scratch: Path, entries: int, each: int) -> float:
    """Microseconds of CPU an entry of `segment_rate`, of the system on its behalf too."""
    began = time.process_time()
    segment_rate(scratch, entries, each)
    return (time.process_time() - began) / entries * 1e6


def segment_figures(scratch: Path, syncs: int, runs: int) -> Iterator[Figure]:
    """Appends to a log without a store, synced after 1, 16 and 256 entries."""
    ra = Ra.installed()
    if ra is None:
        print("Ra is left out: Debian's rabbitmq-server has it", file=sys.stderr)
    for each in (1, 16, 256):
        entries = syncs * each
        ours = partial(segment_rate, scratch, entries, each)
        if ra is not None:
            values, theirs = alternate(runs, ours, partial(ra.rate, scratch, entries, each))
            yield Figure(figure=f"append.segment.256_bytes.batch_{each}", unit="entries/s", values=tuple(values),
                         reference=f"the segment file of Ra {ra.version}", reference_values=tuple(theirs), goal=">= 1")
            values, theirs = alternate(runs, partial(segment_cpu, scratch, entries, each),
                                       partial(ra.cpu, scratch, entries, each))
            yield Figure(figure=f"append.segment_cpu.256_bytes.batch_{each}", unit="us of CPU an entry",
                         values=tuple(values), reference=f"the segment file of Ra {ra.version}",
                         reference_values=tuple(theirs), goal="printed")
        values, plain = alternate(runs, ours, partial(plain_segment_rate, scratch, entries, each))
        yield Figure(figure=f"append.segment_beside_loop.256_bytes.batch_{each}", unit="entries/s",
                     values=tuple(values), reference="the writes of Ra's segment file in a bare loop",
                     reference_values=tuple(plain), goal="printed")


def build_for_major(folder: Path, segments: int) -> StoreOptions:
    """A log of which a third is live, all of it in segments."""
    options = StoreOptions(log=LogOptions(limits=SegmentLimits(max_entries=4096)), max_wal_bytes=8 << 20)
    with open_log(folder, options) as log:
        append_batches(log, segments * 8)
        last = log.last_index
        log.snapshot(last, IndexSet.from_sorted(range(3, last, 3)))
        log.flush()
    return options


def percentile_99(taken: list[float]) -> float:
    """In milliseconds."""
    return statistics.quantiles(taken, n=100)[98] * 1e3


def stalls(scratch: Path, source: Path, options: StoreOptions, *, compacting: bool) -> float:
    """p99 of an append and its sync while nothing else runs, or majors in another thread, as many as it takes."""
    taken: list[float] = []
    while len(taken) < 100:
        work = fresh(scratch, "stalls")
        shutil.copytree(source, work)
        os.sync()
        with open_log(work, options) as log:
            first = log.last_index + 1
            if not compacting:
                return percentile_99(append_batches(log, 300, first))
            outcomes: list[LogCompactionReport] = []
            thread = threading.Thread(target=partial(_compact, log, outcomes))
            thread.start()
            while thread.is_alive():
                taken += append_batches(log, 1, first)
                first += BATCH_ENTRIES
            thread.join()
        assert not outcomes[0].is_empty, outcomes
    return percentile_99(taken)


def _compact(log: RaftLog, outcomes: list[LogCompactionReport]) -> None:
    outcomes.append(log.compact(policy=log.policy))


def stall_figure(scratch: Path, segments: int, runs: int) -> Figure:
    """The effect of a running major on appends."""
    source = fresh(scratch, "stalls-source")
    options = build_for_major(source, segments)
    values, quiet = alternate(runs, lambda: stalls(scratch, source, options, compacting=True),
                              lambda: stalls(scratch, source, options, compacting=False))
    return Figure(figure="append.p99_while_major", unit="ms", values=tuple(values), reference="no compaction",
                  reference_values=tuple(quiet), goal="<= 2")


def recovery_figures(scratch: Path, entries: int, runs: int) -> Iterator[Figure]:
    """Opening a store with entries in its WAL, against reading the files and a CRC of each payload."""
    folder = fresh(scratch, "recovery")
    with open_log(folder, UNFLUSHED) as log:
        payloads = payloads_of(BATCH_ENTRIES)
        for first in range(1, entries + 1, BATCH_ENTRIES):
            log.append_run(first, 1, payloads)
    size = sum(path.stat().st_size for path in (folder / "wal").iterdir())

    def recover() -> float:
        # A copy each time: opening a store flushes the entries that it finds.
        work = fresh(scratch, "recovered")
        shutil.copytree(folder, work)
        gc.collect()
        began = time.perf_counter()
        with open_log(work, UNFLUSHED) as log:
            seconds = time.perf_counter() - began
            assert log.last_index >= entries
        return seconds

    def scan() -> float:
        gc.collect()
        began = time.perf_counter()
        for path in sorted((folder / "wal").iterdir()):
            data = path.read_bytes()
            for start in range(0, len(data), PAYLOAD_BYTES):
                crc32(data[start:start + PAYLOAD_BYTES])
        return time.perf_counter() - began

    values, plain = alternate(runs, recover, scan)
    for name, amount, unit in (("entries", entries, "entries/s"), ("bytes", size, "MB/s")):
        scale = 1e6 if unit == "MB/s" else 1
        yield Figure(figure=f"recovery.{name}", unit=unit, values=tuple(amount / scale / each for each in values),
                     reference="read the files, a CRC of every 256 bytes",
                     reference_values=tuple(amount / scale / each for each in plain), goal="printed")


def figures(scratch: Path, quick: bool, runs: int) -> Iterator[Figure]:
    yield from append_figures(scratch, 400 if quick else 2000, runs)
    yield from segment_figures(scratch, 256 if quick else 1024, runs)
    yield stall_figure(scratch, 32 if quick else 64, runs)
    yield from recovery_figures(scratch, 100_000 if quick else 1_000_000, runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller data, under a minute")
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--folder", help="where to put the data; default a temporary folder")
    parser.add_argument("--runs", type=int, default=5, help="counted runs of each (default 5)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        report(list(figures(Path(scratch), options.quick, options.runs)), options.json)


if __name__ == "__main__":
    main()
