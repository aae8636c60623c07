# SPDX-License-Identifier: Apache-2.0
"""The copy step: the same bytes from every attempt, damage told, half-written files used again, the cache spared."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import pickle
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.blobstore import Pace, RecordKind
from compactlib.blobstore.compaction.rewrite.cycle_plan import Picked
from compactlib.blobstore.compaction.rewrite.task import CopyRecords, SourceRecords
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.model.pace import PaceKeeper
from compactlib.blobstore.model.values import NO_EXPIRY, IndexEntry
from compactlib.blobstore.segment.reader import SEGMENT_HEADER_BYTES, SegmentFile, SegmentHeader, encode_header
from compactlib.blobstore.segment.records import encode_record, record_size
from compactlib.blobstore.segment.scan import ScannedRecord, scan_records
from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent, CorruptData, DiskFull, InvalidInput
from compactlib.executors import Attempt, RewriteResult
from compactlib.files.disk import StrPath
from compactlib.runtime import Budget, RecordingObserver
from tests.blobstore.compaction_stores import flip
from tests.tools.faults.files_in_front import FilesInFront
from tests.tools.faults.plan import FailingFiles

HEADER = SegmentHeader(SegmentName(0, 0), 1 << 22, b"an incarnation..", 10)
SIZES = (10, 0, 5000, 300, 300, 20_000, 1, 77, 4096, 9000)


def source(folder: Path, position: int = 0, *, sizes: Sequence[int] = SIZES) -> list[IndexEntry]:
    """A segment of records of these sizes; its index entries."""
    header = attrs.evolve(HEADER, name=SegmentName(position, 0), capacity_bytes=1 << 22)
    at, entries, parts = SEGMENT_HEADER_BYTES, [], [encode_header(header)]
    for number, size in enumerate(sizes):
        blob = b"id%d" % number
        entry = IndexEntry(blob, RecordKind.PUT, 0, 0, 100 * position + number + 1, 5, NO_EXPIRY, 0, 0,
                           header.name, at, record_size(len(blob), size))
        parts.append(encode_record(entry, bytes([number]) * size, header.salt))
        entries.append(entry)
        at = entry.end
    (folder / header.name.log_file).write_bytes(b"".join(parts))
    return entries


def task_for(folder: Path, entries: list[IndexEntry], **changes: Any) -> CopyRecords:
    picked: dict[SegmentName, Picked] = {}
    for entry in entries:
        part = picked.setdefault(entry.segment, Picked(entry.segment))
        part.offsets.append(entry.offset)
        part.sizes.append(entry.size)
        part.sequences.append(entry.sequence)
    values: dict[str, Any] = {"name": "task", "folder": str(folder), "buffer_bytes": 8192,
                              "header": attrs.evolve(HEADER, name=SegmentName(0, 1)),
                              "sources": tuple(map(SourceRecords.of, picked.values()))}
    return CopyRecords(**{**values, **changes})


def run(task: CopyRecords, attempt: str = "a", *, budget: Budget | None = None,
        clock: ManualClock | None = None) -> RewriteResult:
    return task.run(Attempt(attempt, budget or Budget(), RecordingObserver(), clock or ManualClock()))


def records(path: str) -> list[tuple[int, bytes]]:
    file = SegmentFile(path)
    found = list(scan_records(file, SEGMENT_HEADER_BYTES, file.size()))
    assert all(isinstance(each, ScannedRecord) and each.whole for each in found)
    return [(each.header.sequence, each.header.id) for each in found if isinstance(each, ScannedRecord)]


class Turns(FilesInFront):
    """Notes for each change whether the turn was held."""

    def __init__(self) -> None:
        super().__init__(None)
        self.turn = threading.Lock()
        self.held: dict[str, list[bool]] = {}

    @contextlib.contextmanager
    def step(self, operation: str, path: StrPath, **_: Any) -> Iterator[None]:
        self.held.setdefault(operation, []).append(self.turn.locked())
        yield


def test_who_syncs_or_waits_lets_another_copy(tmp_path: Path) -> None:
    class Clock(ManualClock):
        def sleep(self, seconds: float) -> None:
            files.held.setdefault("sleep", []).append(files.turn.locked())

    files, clock = Turns(), Clock()
    task = task_for(tmp_path, source(tmp_path), files=files, pace=Pace(latency_threshold_seconds=0))
    task.run(Attempt("a", Budget(), RecordingObserver(), clock, files.turn))
    header, *spans = files.held.pop("write")
    assert not header
    assert spans
    assert all(spans)
    assert {operation: set(held) for operation, held in files.held.items()} == {
        "create": {False}, "sync": {False}, "sleep": {False}}


@pytest.mark.parametrize("buffer", [1, 8192, 1 << 20])
def test_the_records_and_nothing_else_in_order_whatever_the_buffer(buffer: int, tmp_path: Path) -> None:
    chosen = [*source(tmp_path)[1::2], *source(tmp_path, 1)[::3]]
    result = run(task_for(tmp_path, chosen, buffer_bytes=buffer))
    (file,) = result.files
    assert records(file.path) == [(entry.sequence, entry.id) for entry in chosen]
    assert (file.entries, file.size_bytes) == (len(chosen), SEGMENT_HEADER_BYTES + sum(e.size for e in chosen))
    assert os.path.getsize(file.path) == file.size_bytes
    # What lies between two records is read over.
    assert result.bytes_read > result.bytes_written == file.size_bytes - SEGMENT_HEADER_BYTES


def test_records_with_little_between_them_are_written_at_once(tmp_path: Path) -> None:
    files = Turns()
    chosen = source(tmp_path, sizes=(300,) * 250)[::2]
    result = run(task_for(tmp_path, chosen, files=files, buffer_bytes=1 << 20))
    assert records(result.files[0].path) == [(entry.sequence, entry.id) for entry in chosen]
    assert len(files.held["write"]) == 2  # the header, and all records


@pytest.mark.parametrize("can_ask", [False, True])
def test_a_disk_that_cannot_read_what_lies_between_two_records_keeps_none_from_being_copied(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, can_ask: bool) -> None:
    everything = source(tmp_path, sizes=(300,) * 30)
    chosen, bad = everything[::2], everything[11]
    read = os.preadv

    def reading(descriptor: int, pieces: Sequence[memoryview], offset: int, flags: int = 0) -> int:
        length = sum(map(len, pieces))
        if flags and not can_ask:
            raise OSError(errno.EOPNOTSUPP, "cannot say what is cached")
        if offset < bad.end and offset + length > bad.offset:
            if flags:
                raise BlockingIOError
            raise OSError(errno.EIO, "a bad sector")
        return read(descriptor, pieces, offset)

    monkeypatch.setattr(os, "preadv", reading)
    result = run(task_for(tmp_path, chosen, buffer_bytes=1 << 20))
    monkeypatch.undo()
    assert records(result.files[0].path) == [(entry.sequence, entry.id) for entry in chosen]


def test_two_attempts_write_the_same_bytes_to_different_files(tmp_path: Path) -> None:
    task = pickle.loads(pickle.dumps(task_for(tmp_path, source(tmp_path))))
    first, second = run(task, "a").files[0], run(task, "b").files[0]
    assert first.path != second.path
    assert Path(first.path).read_bytes() == Path(second.path).read_bytes()
    assert first.crc32 == second.crc32


@pytest.mark.parametrize("buffer", [4096, 1 << 20])
@pytest.mark.parametrize("victim", range(len(SIZES)))
def test_a_flip_anywhere_in_a_record_is_told_and_nothing_is_left(victim: int, buffer: int, tmp_path: Path) -> None:
    entries = source(tmp_path)
    entry = entries[victim]
    for place in {entry.offset + 3, entry.offset + 22, entry.offset + 57, entry.end - 5, entry.end - 1}:
        flip(tmp_path / "0_0.log", place)
        with pytest.raises(CorruptData) as caught:
            run(task_for(tmp_path, entries, buffer_bytes=buffer))
        assert (caught.value.offset, caught.value.path) == (entry.offset, str(tmp_path / "0_0.log"))
        assert sorted(os.listdir(tmp_path)) == ["0_0.log"]
        flip(tmp_path / "0_0.log", place)
    run(task_for(tmp_path, entries, buffer_bytes=buffer))


def test_a_record_that_is_another_one_is_told(tmp_path: Path) -> None:
    entries = source(tmp_path)
    with pytest.raises(CorruptData, match="record 4 of"):
        run(task_for(tmp_path, [entries[3]._replace(sequence=99)]))


def test_a_source_of_another_store_or_one_that_ends_early(tmp_path: Path) -> None:
    entries = source(tmp_path)
    task = task_for(tmp_path, entries)
    with pytest.raises(CorruptData, match="of this store"):
        run(attrs.evolve(task, header=attrs.evolve(task.header, incarnation=b"sixteen others..")))
    os.truncate(tmp_path / "0_0.log", entries[-1].end - 1)
    with pytest.raises(CorruptData, match="more bytes of records"):
        run(task)


def test_nothing_to_copy(tmp_path: Path) -> None:
    source(tmp_path)
    with pytest.raises(InvalidInput, match="drop its segments"):
        run(task_for(tmp_path, []))


def stopped(folder: Path, entries: list[IndexEntry], **changes: Any) -> str:
    """A file that an attempt could not finish."""
    with pytest.raises(BudgetSpent):
        run(task_for(folder, entries, kept=True, **changes), budget=Budget(total_bytes=12_000))
    (left,) = (name for name in os.listdir(folder) if name.endswith(".kept.temp"))
    return str(folder / left)


def test_a_half_written_file_is_gone_on_with_from_where_it_is_right(tmp_path: Path) -> None:
    entries = source(tmp_path)
    whole = run(task_for(tmp_path, entries)).files[0]
    half = stopped(tmp_path, entries)
    budget = Budget()
    result = run(task_for(tmp_path, entries, kept=True, resume_from=half), "b", budget=budget)
    # Under a name of this attempt's own: what the earlier one knew leads nowhere.
    assert result.files[0].path.endswith(".b.kept.temp")
    assert not Path(half).exists()
    assert Path(result.files[0].path).read_bytes() == Path(whole.path).read_bytes()
    assert result.files[0].crc32 == whole.crc32
    assert 0 < budget.spent_bytes < whole.size_bytes - 5000


def test_a_budget_that_ends_within_what_is_written_at_once_has_paid_for_what_is_copied(tmp_path: Path) -> None:
    """Else one that is smaller than that would never get anywhere."""
    chosen = source(tmp_path, sizes=(300,) * 20)[::2]
    budget = Budget(total_bytes=sum(entry.size for entry in chosen[:3]) + 1)
    with pytest.raises(BudgetSpent):
        run(task_for(tmp_path, chosen, kept=True, buffer_bytes=1 << 20), "first", budget=budget)
    (kept,) = tmp_path.glob("*.first.*")
    assert records(str(kept)) == [(entry.sequence, entry.id) for entry in chosen[:3]]
    result = run(task_for(tmp_path, chosen, kept=True, resume_from=str(kept)), "second")
    assert records(result.files[0].path) == [(entry.sequence, entry.id) for entry in chosen]


def test_a_file_that_somebody_may_still_write_to_is_not_gone_on_with(tmp_path: Path) -> None:
    entries = source(tmp_path)
    whole = run(task_for(tmp_path, entries)).files[0]
    half = Path(stopped(tmp_path, entries))
    before = half.read_bytes()
    with half.open("rb") as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)
        result = run(task_for(tmp_path, entries, kept=True, resume_from=str(half)), "b")
    assert Path(result.files[0].path).read_bytes() == Path(whole.path).read_bytes()
    assert half.read_bytes() == before
    again = run(task_for(tmp_path, entries, kept=True, resume_from=str(half)), "c")
    assert not half.exists()
    assert Path(again.files[0].path).read_bytes() == Path(whole.path).read_bytes()


@pytest.mark.parametrize("damage", ["flip", "cut", "longer", "header", "gone", "other"])
def test_a_half_written_file_that_is_wrong_is_used_as_far_as_it_is_right(damage: str, tmp_path: Path) -> None:
    entries = source(tmp_path)
    whole = run(task_for(tmp_path, entries)).files[0]
    half = Path(stopped(tmp_path, entries[1:] if damage == "other" else entries))
    if damage == "flip":
        flip(half, 3000)
    elif damage == "cut":
        os.truncate(half, 1000)
    elif damage == "longer":
        half.write_bytes(half.read_bytes() + bytes(50_000))
    elif damage == "header":
        flip(half, 20)
    elif damage == "gone":
        half.unlink()
    result = run(task_for(tmp_path, entries, kept=True, resume_from=str(half)), "b")
    assert Path(result.files[0].path).read_bytes() == Path(whole.path).read_bytes()
    assert result.files[0].crc32 == whole.crc32


def test_a_disk_that_refused_leaves_no_file_to_go_on_from(tmp_path: Path) -> None:
    entries = source(tmp_path)
    task = task_for(tmp_path, entries, kept=True, files=FailingFiles(fail_at=4, errno=errno.ENOSPC))
    with pytest.raises(DiskFull):
        run(task)
    assert os.listdir(tmp_path) == ["0_0.log"]


def cached_share(path: str | Path) -> float:
    """Which part of a file is in the page cache (Linux: `mincore`)."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_WRITE,
                                             flags=mmap.MAP_PRIVATE) as mapped:
        size = len(mapped)
        place = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        pages = (ctypes.c_ubyte * (-(-size // mmap.PAGESIZE)))()
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(place), ctypes.c_size_t(size), pages) == 0
    found: list[int] = list(pages)
    return sum(page & 1 for page in found) / len(found)


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A folder that is not in memory, where `tmp_path` may be."""
    with tempfile.TemporaryDirectory(prefix="compactlib-rewrite-",
                                     dir="/var/tmp" if os.access("/var/tmp", os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the platform cannot say what is cached")
@pytest.mark.parametrize("wanted", [False, True])
def test_what_was_not_cached_before_is_not_cached_after(wanted: bool, on_disk: Path) -> None:
    entries = source(on_disk, sizes=(200_000,) * 15)
    path = on_disk / "0_0.log"
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if cached_share(path):
            pytest.skip("this file system keeps everything in memory")
        if wanted:
            file.read()
    result = run(task_for(on_disk, entries, buffer_bytes=1 << 18))
    if not wanted and cached_share(path) == 1:
        pytest.skip("this kernel cannot say what is cached")
    for found in (path, result.files[0].path):
        share = cached_share(found)
        assert share > 0.9 if wanted else share < 0.1


# -------------------------------------------------------------------------------------------------------------- pace


def test_the_rate_falls_with_the_latency() -> None:
    pace = Pace(bytes_per_second=1000, min_bytes_per_second=500, latency_threshold_seconds=0.020, divisor=1.5)
    assert [pace.rate(latency / 1000) for latency in (0, 19, 20)] == [1000, 1000, 1000]
    assert [int(pace.rate(latency / 1000)) for latency in (40, 100)] == [666, 566]


def test_large_rates_do_not_overflow() -> None:
    pace = Pace(bytes_per_second=1e12, min_bytes_per_second=1, latency_threshold_seconds=0.020)
    assert pace.rate(0.040) == pytest.approx(5e11, rel=1e-3)
    assert pace.rate(1e9) >= 1


def test_the_wait_makes_up_for_what_went_too_fast() -> None:
    """Decision: a budget's token bucket is the limit, and lets a tenth of a second's worth go at once; the pace makes
    each chunk last as long as it should."""
    keeper = PaceKeeper(Pace(bytes_per_second=100, min_bytes_per_second=100))
    assert keeper.wait_after(150, 0.0) == 1.5
    assert keeper.wait_after(50, 0.2) == pytest.approx(0.3)
    assert keeper.wait_after(50, 60) == 0
    assert keeper.wait_after(10**9, 0) == 10
    assert keeper.wait_after(0, 0) == 0


@pytest.mark.parametrize("values", [
    {"bytes_per_second": 0}, {"min_bytes_per_second": 0}, {"divisor": 0}, {"latency_threshold_seconds": -1},
    {"bytes_per_second": "fast"}, {"divisor": float("inf")}, {"only_if_slow": 1},
])
def test_a_pace_that_is_none(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="of a pace is"):
        Pace(**values)


@pytest.mark.parametrize("values", [{"min_bytes_per_second": 2e6}, {"latency_threshold_seconds": 0}])
def test_a_pace_that_never_falls(values: dict[str, Any]) -> None:
    pace = Pace(bytes_per_second=1e6, **values)
    assert not pace.may_fall
    assert pace.rate(10.0) == pace.limit == 1e6


def test_the_task_keeps_its_pace(tmp_path: Path) -> None:
    entries = source(tmp_path)
    clock = ManualClock()
    pace = Pace(bytes_per_second=1000, min_bytes_per_second=500)
    result = run(task_for(tmp_path, entries, pace=pace), clock=clock)
    assert result.seconds >= result.bytes_written / 1000 * 0.5


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_what_is_no_file_is_not_gone_on_with(kind: str, tmp_path: Path) -> None:
    entries = source(tmp_path)
    whole = run(task_for(tmp_path, entries)).files[0]
    half, victim = tmp_path / "0_1.log.a.kept.temp", tmp_path / "victim"
    victim.write_bytes(b"v" * 9000)
    if kind == "folder":
        half.mkdir()
    elif kind == "pipe":
        os.mkfifo(half)
    else:
        half.symlink_to(victim)
    result = run(task_for(tmp_path, entries, kept=True, resume_from=str(half)), "b")
    assert Path(result.files[0].path).read_bytes() == Path(whole.path).read_bytes()
    assert victim.read_bytes() == b"v" * 9000
    assert os.path.lexists(half)
