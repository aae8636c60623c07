# SPDX-License-Identifier: Apache-2.0
"""Whole segment files of RabbitMQ Ra: some written by Ra itself, some by hand."""

from __future__ import annotations

import shutil
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from compactlib.errors import CorruptData, Unsupported
from compactlib.raftlog import (
    CostPolicy,
    Entry,
    LogOptions,
    LogReader,
    MissingEntry,
    RaPolicy,
    SeedPolicy,
    SegmentLimits,
    SegmentLog,
)
from compactlib.raftlog.model.names import segment_name
from compactlib.raftlog.model.values import SegmentRef
from compactlib.raftlog.segment.reader import SegmentReader
from tests.harness.plain_log import PlainLog, log_answers
from tests.raftlog.compaction_logs import ra_segment
from tests.raftlog.reading import RA_FOLDER, flipped, needs_ra_files, segment_answers


def test_a_file_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / segment_name(1)
    record = struct.pack(">QQQII", 7, 3, 131_080, 5, 907_060_870)
    path.write_bytes(bytes.fromhex("5241534700021000") + record.ljust(4096 * 32, b"\0") + b"hello")
    assert path.stat().st_size == 131_085
    assert zlib.crc32(b"hello") == 907_060_870
    with SegmentReader(path) as reader:
        assert (reader.format, reader.index.entries, reader.index.data_bytes) == ("ra2", 1, 5)
        assert segment_answers(reader, [6, 7, 8]) == {6: MissingEntry(6), 7: Entry(7, 3, b"hello"), 8: MissingEntry(8)}


def test_version_1_is_read(tmp_path: Path) -> None:
    path = tmp_path / segment_name(1)
    first, second = struct.pack(">QQIII", 1, 1, 120, 3, zlib.crc32(b"one")), struct.pack(">QQIII", 2, 1, 123, 0, 0)
    path.write_bytes(struct.pack(">4sHH", b"RASG", 1, 4) + (first + second).ljust(112, b"\0") + b"one")
    with SegmentReader(path) as reader:
        assert reader.format == "ra1"
        assert segment_answers(reader, [1, 2, 3]) == {1: Entry(1, 1, b"one"), 2: Entry(2, 1, b""), 3: MissingEntry(3)}


def test_payloads_of_no_bytes_are_entries_like_any_other(tmp_path: Path) -> None:
    """Where Ra raises. Such a file ends within its index region."""
    entries = [Entry(index, 1, b"") for index in range(1, 17)]
    data = ra_segment(entries)[:8 + 16 * 32]
    for number in (1, 2):
        shifted = [Entry(entry.index + 16 * (number - 1), 1, b"") for entry in entries]
        (tmp_path / segment_name(number)).write_bytes(ra_segment(shifted)[:len(data)])
    with SegmentLog(tmp_path) as log:
        log.append(33, 2, b"newest")
        log.record_snapshot(32, range(1, 11))
        outcome = log.compact(policy=log.policy)
        assert not outcome.is_empty
        assert [entry.index for entry in log.entries()] == [*range(1, 11), 33]


@pytest.mark.parametrize("version", [1, 2])
def test_an_overwrite_in_a_file_of_ra(tmp_path: Path, version: int) -> None:
    rows = [(5, 1, b"five"), (2, 2, b"two"), (3, 2, b""), (3, 3, b"three, again")]
    path = tmp_path / segment_name(1)
    path.write_bytes(ra_segment((Entry(*row) for row in rows), version=version))
    model = PlainLog.of(rows)
    with SegmentReader(path) as reader:
        assert segment_answers(reader, range(7)) == {index: model.answer(index) for index in range(7)}
        assert reader.index.entries == 4


def test_a_segment_for_65536_entries(tmp_path: Path) -> None:
    path = tmp_path / segment_name(1)
    entries = [Entry(index, 1, b"%d" % index) for index in range(1, 4)]
    data = bytearray(ra_segment(entries, max_count=65_536 - 1))
    start = 8 + 65_536 * 32
    for position in range(3):
        struct.pack_into(">Q", data, 8 + 32 * position + 16, start + position)
    struct.pack_into(">H", data, 6, 0)
    path.write_bytes(bytes(data[:-3]) + bytes(32) + bytes(data[-3:]))
    with SegmentReader(path) as reader:
        assert list(reader.scan()) == entries


# -- files that Ra wrote


@pytest.fixture
def ra_log(tmp_path: Path) -> Path:
    folder = tmp_path / "log"
    shutil.copytree(RA_FOLDER, folder)
    return folder


def as_told() -> dict[int, Entry]:
    """What `../shared/data/README.md` says that the files hold."""
    terms = {**dict.fromkeys(range(1, 41), 1), **dict.fromkeys(range(31, 55), 2),
             **dict.fromkeys(range(60, 201, 7), 3), **dict.fromkeys(range(201, 211), 3)}
    return {index: Entry(index, term, b"entry-%d-term-%d-" % (index, term) + b"x" * (index % 23))
            for index, term in terms.items()}


@needs_ra_files
def test_every_entry_of_ra_is_read_in_every_way(ra_log: Path) -> None:
    expected = as_told()
    with LogReader(ra_log) as reader:
        assert log_answers(reader, range(213)) == {index: expected.get(index, MissingEntry(index))
                                                   for index in range(213)}
        assert list(reader.entries()) == list(expected.values())
        assert reader.refs == (SegmentRef(1, 1, 54), SegmentRef(2, 60, 200), SegmentRef(3, 201, 210))
        assert [(stats.format, stats.entries) for stats in reader.stats()] == [("ra2", 64), ("ra2", 21), ("ra2", 10)]
    for number in (1, 2, 3):
        with SegmentReader(ra_log / segment_name(number)) as segment:
            segment_answers(segment, range(213))


@needs_ra_files
@pytest.mark.parametrize("policy", [SeedPolicy(), RaPolicy(), CostPolicy()], ids=lambda policy: policy.name)
def test_files_of_ra_are_compacted_into_one_of_ours(ra_log: Path, policy: SeedPolicy | RaPolicy | CostPolicy) -> None:
    model = PlainLog(as_told())
    with SegmentLog(ra_log, LogOptions(policy=policy)) as log:
        assert log.last_index == 210
        log.append(211, 4, b"ours")
        model.append(211, 4, b"ours")
        live = [3, 33, 54, 60, 137, 200, 205]
        log.record_snapshot(210, live)
        model.record_snapshot(210, live)
        model.check(log)
        outcome = log.compact(policy=log.policy)
        assert not outcome.is_empty
        assert [group.members for group in outcome.done] == [(1, 2, 3)]
        assert log.refs == (SegmentRef(1, 3, 205), SegmentRef(4, 211, 211))
        model.check(log)
    with SegmentReader(ra_log / segment_name(1), tail="refuse", number=1) as reader:
        # The checksums that Ra had not made are made on the way: index and term are covered from here on.
        assert (reader.format, reader.loaded.sealed) == ("native", True)
        assert list(reader.scan()) == [as_told()[index] for index in live]
    with SegmentLog(ra_log) as log:
        model.check(log)


@needs_ra_files
def test_the_log_of_ra_goes_on_in_our_format(ra_log: Path) -> None:
    before = {path.name: path.read_bytes() for path in ra_log.iterdir()}
    model = PlainLog(as_told())
    with SegmentLog(ra_log, LogOptions(limits=SegmentLimits(max_entries=4))) as log:
        # A new leader takes back a part of what Ra had written, over two of its files.
        for index in range(190, 200):
            log.append(index, 4, b"ours")
            model.append(index, 4, b"ours")
        model.check(log)
        log.sync()
    assert (ra_log / segment_name(1)).read_bytes() == before[segment_name(1)]
    # Ra's file that held the cut became one of ours, which ends there.
    with SegmentReader(ra_log / segment_name(2)) as reader:
        assert (reader.format, reader.index.columns.indexes[-1]) == ("native", 186)  # its entries lie 7 apart
    assert not (ra_log / segment_name(3)).exists()
    with SegmentLog(ra_log) as log:
        model.check(log)


# -- damage


def damaged_readings(data: bytes, path: Path, entries: dict[int, Entry]) -> Iterator[str]:
    """Open and read damaged bytes: a named error, or payloads whose checksum holds. Says which it was.

    Nothing in such a file protects its header and its index: a flipped bit there may show an entry under another index
    or term, shortened, or not at all. Whatever comes back as a payload is one that Ra wrote.
    """
    payloads = {entry.payload for entry in entries.values()}
    path.write_bytes(data)
    try:
        reader = SegmentReader(path)
    except (CorruptData, Unsupported) as error:
        yield type(error).__name__
        return
    with reader:
        for answer in reader.scan():
            if not isinstance(answer, Entry):
                yield "DamagedEntry"
            elif answer.payload in payloads:
                yield "Entry"
            else:
                raise AssertionError(f"{answer} was never written")
        segment_answers(reader, range(30))


@pytest.mark.parametrize("version", [1, 2])
def test_every_flipped_byte_of_a_file_of_ra(tmp_path: Path, version: int) -> None:
    rows = [(index, 1, b"payload of %d" % index) for index in range(1, 4)] + [(2, 2, b"two again"), (9, 2, b"nine")]
    entries = {number: Entry(*row) for number, row in enumerate(rows)}
    whole = ra_segment(entries.values(), max_count=6, version=version)
    path = tmp_path / segment_name(1)
    seen: set[str] = set()
    for place in range(len(whole)):
        for mask in (0x01, 0x80, 0xFF):
            seen.update(damaged_readings(flipped(whole, place, mask), path, entries))
    for size in range(len(whole)):
        seen.update(damaged_readings(whole[:size], path, entries))
    assert seen == {"CorruptData", "Unsupported", "DamagedEntry", "Entry"}


@settings(max_examples=200)
@given(data=st.binary(max_size=600), version=st.sampled_from([0, 1, 2, 3]), max_count=st.integers(0, 12))
def test_anything_behind_a_header_of_ra(tmp_path_factory: pytest.TempPathFactory, data: bytes, version: int,
                                        max_count: int) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.segment"
    path.write_bytes(struct.pack(">4sHH", b"RASG", version, max_count) + data)
    try:
        reader = SegmentReader(path)
    except (CorruptData, Unsupported):
        return
    with reader:
        for answer in reader.scan():
            assert answer.index >= 0
