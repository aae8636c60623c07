# SPDX-License-Identifier: Apache-2.0
"""A reader of a log's folder gives the owner's plan, and each segment's entries, dead or live."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import attrs
import pytest

from compactlib.errors import CorruptData, InvalidInput, StorageError
from compactlib.raftlog import (
    DamagedEntry,
    DeadEntry,
    Entry,
    LogCompactionReport,
    LogOptions,
    LogReader,
    SegmentLimits,
    SegmentLog,
    StoreOptions,
    open_log,
    open_segment,
    verify_log,
)
from compactlib.testing import FilesInFront, Request

OPTIONS = LogOptions(limits=SegmentLimits(max_entries=10))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with SegmentLog(tmp_path / "log", OPTIONS) as log:
        log.append((index, 1, b"entry %d" % index) for index in range(1, 96))
        log.snapshot(90, live=range(3, 91, 3))
    return tmp_path / "log"


def test_reader_plans_under_the_limits_of_the_log(folder: Path) -> None:
    with LogReader(folder) as reader:
        assert reader.limits == OPTIONS.limits
        found = reader.plan()
    with SegmentLog(folder, OPTIONS) as log:
        wanted = log.plan(log.policy)
    assert [group.numbers for group in found.groups] == [group.numbers for group in wanted.groups] != []


def test_reader_waits_for_the_snapshot_of_a_merge_that_is_not_finished(folder: Path) -> None:
    """The owner records a snapshot and merges by it, after the reader has read the snapshot before: the range of the
    merged segment has members whose files the disk has not replaced yet.
    """
    def step(request: Request, act: Callable[[], Any]) -> Any:
        if request.kind == "symlink":
            raise StorageError.from_os(OSError(errno.EIO, os.strerror(errno.EIO)), request.kind, request.path)
        return act()

    with SegmentLog(folder, attrs.evolve(OPTIONS, files=FilesInFront(step))) as log:
        log.append((index, 1, b"entry %d" % index) for index in range(96, 111))
        merged: list[LogCompactionReport] = []

        def at_each_call(frame: FrameType, event: str, argument: Any) -> None:
            if frame.f_code.co_name == "read_folder" and not merged:
                log.snapshot(105, live=range(30, 91, 30))
                merged.append(log.compact(policy=log.policy))

        sys.settrace(at_each_call)
        try:
            reader = LogReader(folder)
        finally:
            sys.settrace(None)
        with reader:
            assert merged[0].unreclaimed
            assert [entry.index for entry in reader.entries()] == [30, 60, 90, *range(106, 111)]
            assert not reader.verify().findings


def test_segment_has_dead_and_live_entries(folder: Path) -> None:
    with LogReader(folder) as reader, open_segment(folder, reader.refs[0].number) as segment:
        entries = list(segment.scan())
        wanted = [Entry(n, 1, b"entry %d" % n) for n in range(1, 11)]
        assert entries == wanted
        assert isinstance(reader.read(1), DeadEntry)
        data = Path(reader.path_of(reader.refs[0].number)).read_bytes()
        assert [data[at:at + length] for at, length in zip(segment.index.offsets, segment.index.lengths, strict=True)
                ] == [each.payload for each in wanted]


def test_damaged_payload_is_named_by_its_entry_alone(folder: Path) -> None:
    with LogReader(folder) as reader:
        path = Path(reader.path_of(reader.refs[0].number))
    with open_segment(folder, 1) as segment:
        at = segment.index.offsets[segment.index.find(5)]
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with open_segment(folder, 1) as segment:
        assert [each.index for each in segment.scan() if isinstance(each, DamagedEntry)] == [5]
    assert [finding.kind for finding in verify_log(folder).findings] == ["damage"]


def test_log_that_cannot_be_opened_is_verified_segment_by_segment(folder: Path) -> None:
    with LogReader(folder) as reader:
        path = Path(reader.path_of(reader.refs[2].number))
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptData):
        LogReader(folder)
    report = verify_log(folder)
    assert report.findings
    assert report.records > 80


@pytest.mark.parametrize("arguments", [{"offset": -1}, {"offset": 6}, {"piece_bytes": 0}, {"piece_bytes": -1}])
def test_a_wrong_piece_of_a_state_is_not_taken_for_damage(arguments: dict[str, int], tmp_path: Path) -> None:
    with open_log(tmp_path / "log", StoreOptions(background=False)) as log:
        log.append([(1, 1, b"one")])
        log.snapshot(1, [], [b"state"])
        with log.open_state() as reader:
            with pytest.raises(InvalidInput):
                list(reader.pieces(**arguments))
            assert list(reader.pieces(1, piece_bytes=3)) == [b"tat", b"e"]
            assert list(reader.pieces(5)) == []
