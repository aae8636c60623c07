# SPDX-License-Identifier: Apache-2.0
"""A follower that is too far behind gets the leader's snapshot with its live entries: all of it, or nothing yet."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import shutil
import struct
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, cast

import attrs
import pytest

from compactlib.errors import Busy, Closed, CorruptData, InvalidInput, Stale, StorageError, Unsupported
from compactlib.files import Files, LocalFiles, OutFile, StrPath
from compactlib.raftlog import (
    DeadEntry,
    Entry,
    LogOptions,
    LogReader,
    RaftLog,
    RaftLogStore,
    SegmentLimits,
    StoreOptions,
    TransferReport,
    open_log,
    receive_snapshot,
    send_snapshot,
    verify_log,
)
from compactlib.raftlog.errors import FrameDamaged, LiveIndexMissing, RefusalReason, TransferBroken, TransferRefused
from compactlib.testing import (
    Choices,
    FilesInFront,
    RecordingFiles,
    Request,
    explore,
    explore_crashes,
    record,
)
from tests.harness.effort import Effort
from tests.harness.failing_files import FailingFiles
from tests.harness.recoveries import explore_recovery
from tests.harness.snapshot_line import (
    CHUNK_BYTES,
    PATIENCE_SECONDS,
    Change,
    Ended,
    Line,
    Member,
    Passing,
    as_sent,
    transfer,
)

OPTIONS = StoreOptions(log=LogOptions(limits=SegmentLimits(max_entries=16)), background=False)
STATE = b"the state of the machine;" * 20
LAST, LIVE = 60, (3, 17, 18, 41)

FOLLOWERS = {
    "empty": [],
    "behind": [Entry(index, 1, b"entry %d" % index) for index in range(1, 11)],
    "of another history": [Entry(index, 1, b"entry %d" % index) for index in range(1, 6)]
    + [Entry(index, 2, b"nobody else has it %d" % index) for index in range(6, 31)],
}


def entry(index: int) -> Entry:
    return Entry(index, 1 if index < 11 else 3, b"entry %d" % index)


@contextlib.contextmanager
def member(folder: Path, files: Files | None = None, *, log_id: str = "log",
           keep_trailing: int = 0) -> Iterator[Member]:
    """A log with its snapshots."""
    disk = LocalFiles() if files is None else files
    options = attrs.evolve(OPTIONS, log=attrs.evolve(OPTIONS.log, files=disk), keep_trailing=keep_trailing)
    with open_log(folder / "log", options, log_id=log_id) as log:
        yield log


@contextlib.contextmanager
def leader(folder: Path, *, keep_trailing: int = 0) -> Iterator[Member]:
    folder.mkdir(parents=True, exist_ok=True)
    with member(folder, keep_trailing=keep_trailing) as log:
        log.append([entry(index) for index in range(1, LAST + 11)])
        log.sync()
        log.flush()
        log.snapshot(LAST, LIVE, [STATE])
        log.compact()
        yield log
        assert log.status().pins == 0, "an entry is pinned though no transfer is on"


def require_snapshot(log: RaftLog) -> None:
    """The follower has the leader's entries, and no others up to the snapshot."""
    assert log.state.index == LAST
    for index in range(1, LAST + 1):
        assert log.read(index) == (entry(index) if index in LIVE else DeadEntry(index, LAST))
    with log.open_state() as state:
        assert b"".join(bytes(piece) for piece in state.pieces()) == STATE
    assert log.verify().is_sound


@contextlib.contextmanager
def follower(folder: Path, had: str = "behind", **options: Any) -> Iterator[Member]:
    folder.mkdir(parents=True, exist_ok=True)
    with member(folder, **options) as to:
        to.append(FOLLOWERS[had])
        to.sync()
        yield to


def require_unchanged(to: Member, had: str = "behind") -> None:
    assert to.state.index == -1
    assert list(to.entries()) == FOLLOWERS[had]


def require_installed(ended: Ended, to: Member) -> None:
    assert isinstance(ended.received, TransferReport), ended
    require_snapshot(to)


@pytest.mark.parametrize("had", FOLLOWERS)
def test_follower_equals_its_leader_after_a_snapshot(had: str, tmp_path: Path) -> None:
    with leader(tmp_path / "leader") as of:
        with follower(tmp_path / "follower", had) as to:
            ended = transfer(of, to)
            require_installed(ended, to)
            assert ended.sent == ended.received
            assert (ended.sent.index, ended.sent.entries, ended.sent.resumed_at) == (LAST, len(LIVE), 0)
            to.append([entry(LAST + 1)])
            to.sync()
        with member(tmp_path / "follower") as to:
            require_snapshot(to)
            assert to.read(LAST + 1) == entry(LAST + 1)
            assert [each.index for each in to.entries(LAST + 1)] == [LAST + 1]


def test_memory_of_a_follower_is_bounded_while_other_threads_sync(tmp_path: Path) -> None:
    """Another log of the store may sync all the time, so that the queue never fills up."""
    last = 40_000
    options = StoreOptions(background=False, max_queued_bytes=100_000)
    with open_log(tmp_path / "leader", options) as of:
        of.append([(index, 1, b"entry") for index in range(1, last + 1)])
        of.snapshot(last, range(1, last, 2), [STATE])
        with RaftLogStore(tmp_path / "follower", options) as store, ThreadPoolExecutor(1) as other:
            to = store.log("log")
            ended = threading.Event()

            def sync_again() -> int:
                most = 0
                while not ended.is_set():
                    store.sync()
                    most = max(most, to.status().memtable_entries)
                return most

            most = other.submit(sync_again)
            try:
                assert isinstance(transfer(of, to).received, TransferReport)
            finally:
                ended.set()
            assert most.result() < last // 4


def test_live_entries_come_in_log_order_before_the_state(tmp_path: Path) -> None:
    with leader(tmp_path / "leader") as of, follower(tmp_path / "follower") as to:
        to.append([entry(index) for index in range(11, 17)])
        ended = transfer(of, to, applied=16)
        kinds = [frame.kind for frame in ended.frames]
        assert list(dict.fromkeys(kinds)) == ["offer", "accept", "live", "entries", "state", "installed"]
        assert kinds.count("state") == -(-len(STATE) // CHUNK_BYTES)
        sent = b"".join(frame.data for frame in ended.frames if frame.kind == "entries")
        places = [sent.find(b"entry %d" % index) for index in LIVE]
        assert places[0] == -1, "the follower has applied it"
        assert places[1:] == sorted(places[1:])
        assert -1 not in places[1:]
        assert ended.sent.entries == 3


@pytest.mark.parametrize("had", ["behind", "of another history"])
def test_crash_of_a_transfer_leaves_the_old_log_or_the_snapshot(had: str, tmp_path: Path, effort: Effort) -> None:
    """Also if the transfer that follows is crashed. After the next one the follower has what its leader has."""
    with leader(tmp_path / "leader") as of:

        def follow(folder: Path, files: Files) -> None:
            with member(folder, files) as to:
                assert to.state.index == LAST or transfer(of, to).is_well or transfer(of, to).is_well
                if isinstance(files, RecordingFiles):
                    files.acknowledge("installed")

        def check(folder: Path, notes: Sequence[Any]) -> None:
            with member(folder) as to:
                log = to
                if log.state.index == LAST:
                    require_snapshot(to)
                else:
                    assert not notes, "the follower had said that it has the snapshot"
                    agreed = [each for each in FOLLOWERS[had] if each == entry(each.index)]
                    assert [log.read(each.index) for each in agreed] == agreed
                    assert all(each in FOLLOWERS[had] or each == entry(each.index) for each in log.entries())
            follow(folder, LocalFiles())
            with member(folder) as to:
                require_snapshot(to)

        folder = tmp_path / "follower"
        with follower(folder, had):
            pass
        recording = record(folder, follow)
        everywhere = range(len(recording.operations) + 1)
        points = everywhere if effort.full else sorted(Random(1).sample(everywhere, 10))
        assert explore_crashes(recording, check, points=points, limit_per_point=effort(2, 16)) > 10
        assert explore_recovery(recording, follow, check, points=points, recoveries=effort(2, 30), seed=effort(0, 1),
                                limit_per_point=effort(1, 2)) > 10


def cut_at(kind: str, nth: int = 0) -> Change:
    """Cut the line before the nth frame of a kind."""
    seen: list[Passing] = []

    def change(frame: Passing) -> Sequence[bytes] | None:
        seen.extend([frame] if frame.kind == kind else [])
        return None if len(seen) > nth else [frame.data]

    return change


def test_torn_state_is_taken_once_more_from_its_start(tmp_path: Path) -> None:
    """A power failure may leave other bytes than the written ones."""
    with leader(tmp_path / "leader") as of:
        with follower(tmp_path / "follower") as to:
            transfer(of, to, change=cut_at("state", nth=5))
        staged = next(path for path in (tmp_path / "follower").rglob("*")
                      if path.is_file() and STATE[:CHUNK_BYTES] in path.read_bytes())
        data = staged.read_bytes()
        staged.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
        with member(tmp_path / "follower") as to:
            torn = transfer(of, to)
            assert isinstance(torn.received, CorruptData), torn
            assert isinstance(torn.sent, TransferRefused), torn
            require_unchanged(to)
            ended = transfer(of, to)
            require_installed(ended, to)
            assert ended.received.resumed_at == 0


def test_transfer_resumes_after_a_cut_connection(tmp_path: Path) -> None:
    """At each frame in turn; the follower restarts between some of them. No byte of the state is sent twice."""
    arrived: list[int] = []

    def cut_before(number: int) -> Change:
        def change(frame: Passing) -> Sequence[bytes] | None:
            if frame.number >= number:
                return None
            arrived.extend([frame.offset] if frame.kind == "state" else [])
            return [frame.data]

        return change

    with leader(tmp_path / "leader") as of:
        with follower(tmp_path / "follower"):
            pass
        for number in count():
            with member(tmp_path / "follower") as to:
                for _ in range(1 + number % 2):
                    ended = transfer(of, to, change=cut_before(number))
                    if ended.is_well:
                        require_snapshot(to)
                        assert arrived == list(range(0, len(STATE), CHUNK_BYTES))
                        assert number > 3
                        return
                    assert isinstance(ended.sent, TransferBroken)
                    assert isinstance(ended.received, TransferBroken)
                    require_unchanged(to)


def test_follower_has_the_snapshot_when_its_answer_is_lost(tmp_path: Path) -> None:
    with leader(tmp_path / "leader") as of, follower(tmp_path / "follower") as to:
        ended = transfer(of, to, change=cut_at("installed"))
        assert isinstance(ended.sent, TransferBroken)
        require_installed(ended, to)
        again = transfer(of, to, applied=LAST)
        assert isinstance(again.sent, TransferRefused)
        assert again.sent.reason is RefusalReason.ALREADY_APPLIED
        assert again.sent.last_applied == LAST


def test_entries_above_the_snapshot_stay_where_the_log_is_the_leaders(tmp_path: Path) -> None:
    """They were acknowledged, though the machine has not applied them yet."""
    with leader(tmp_path / "leader") as of, follower(tmp_path / "follower") as to:
        to.append([entry(index) for index in range(11, LAST + 6)])
        to.sync()
        require_installed(transfer(of, to, applied=10), to)
        above = [entry(index) for index in range(LAST + 1, LAST + 6)]
        assert list(to.entries(LAST + 1)) == above
        with member(Path(shutil.copytree(tmp_path / "follower", tmp_path / "killed", symlinks=True))) as again:
            assert list(again.entries(LAST + 1)) == above


def test_snapshot_at_the_highest_index_is_received(tmp_path: Path) -> None:
    highest = (1 << 64) - 1
    entries = [Entry(highest - 1, 1, b"before the last"), Entry(highest, 1, b"last")]
    for name in ("leader", "follower"):
        (tmp_path / name).mkdir()
    with member(tmp_path / "leader") as of, member(tmp_path / "follower") as to:
        for log in (of, to):
            log.append(entries)
            log.sync()
        of.snapshot(highest, [highest], [STATE])
        ended = transfer(of, to)
        assert isinstance(ended.received, TransferReport), ended
    with member(tmp_path / "follower") as to:
        assert (to.state.index, list(to.entries())) == (highest, entries[1:])
        assert to.verify().is_sound


# -- damage


def flipped(frame: Passing, at: int) -> bytes:
    return frame.data[:at] + bytes([frame.data[at] ^ 4]) + frame.data[at + 1:]


def damaged(number: int, at: int, frame: Passing) -> Sequence[bytes]:
    """One byte of one frame is another when it arrives."""
    return [flipped(frame, at % len(frame.data)) if frame.number == number else frame.data]


@pytest.mark.parametrize("place", ["length", "kind", "body", "checksum"])
def test_damaged_frame_is_refused_and_the_follower_unchanged(place: str, tmp_path: Path) -> None:
    at = {"length": 1, "kind": 4, "body": 14, "checksum": -1}[place]
    with leader(tmp_path / "leader") as of, follower(tmp_path / "follower") as to:
        frames = len(transfer(of, to, change=cut_at("state", nth=2)).frames)
        for number in range(frames):
            ended = transfer(of, to, change=partial(damaged, number, at))
            assert any(isinstance(error, FrameDamaged) for error in ended.errors), (number, ended)
            require_unchanged(to)
        require_installed(transfer(of, to), to)


def test_damaged_state_of_the_leader_is_named_on_both_sides(tmp_path: Path) -> None:
    with leader(tmp_path / "leader") as of, follower(tmp_path / "follower") as to:
        files = [path for path in (tmp_path / "leader").rglob("*") if path.is_file()]
        stored = next(path for path in files if STATE in path.read_bytes())
        stored.write_bytes(stored.read_bytes().replace(STATE, STATE[:-1] + b"!"))
        ended = transfer(of, to)
        assert isinstance(ended.sent, CorruptData), ended
        assert isinstance(ended.received, TransferRefused), ended
        assert "corrupt data" in ended.received.detail
        require_unchanged(to)


def test_state_of_a_damaged_leader_is_not_continued(tmp_path: Path) -> None:
    """The part that has arrived is discarded, so that the state of a sound member with the same snapshot is taken."""
    with leader(tmp_path / "leader") as of, follower(tmp_path / "follower") as to:
        (stored,) = (tmp_path / "leader").rglob("*.state")
        stored.write_bytes(b"!" + STATE[1:])
        assert isinstance(transfer(of, to).sent, CorruptData)
        stored.write_bytes(STATE)
        ended = transfer(of, to)
        require_installed(ended, to)
        assert ended.received.resumed_at == 0


@pytest.mark.parametrize("kept", [1, LAST + 2])
def test_manifest_that_contradicts_its_live_set_is_refused(kept: int, tmp_path: Path) -> None:
    """The follower would store it, and need it to rebuild a damaged live set."""
    def change(frame: Passing) -> Sequence[bytes]:
        if frame.kind != "offer":
            return [frame.data]
        offer = json.loads(frame.data[12:-4])
        offer["manifest"]["kept"] = kept
        return [rebuilt(frame, json.dumps(offer).encode())]

    with leader(tmp_path / "leader") as of, follower(tmp_path / "follower") as to:
        ended = transfer(of, to, change=change)
        assert isinstance(ended.received, CorruptData), ended
        require_unchanged(to)


@pytest.mark.parametrize("kind", ["offer", "live", "entries", "state"])
def test_repeated_frame_is_refused_as_damage(kind: str, tmp_path: Path) -> None:
    with leader(tmp_path / "leader") as of, follower(tmp_path / "follower") as to:
        ended = transfer(of, to, change=lambda frame: [frame.data] * (1 + (frame.kind == kind)))
        assert any(isinstance(error, FrameDamaged) for error in ended.errors), ended
        require_unchanged(to)
        require_installed(transfer(of, to), to)


@pytest.mark.parametrize("kind", ["live", "entries", "state"])
def test_frames_out_of_order_are_refused_as_damage(kind: str, tmp_path: Path) -> None:
    held: list[Passing] = []

    def change(frame: Passing) -> Sequence[bytes]:
        if frame.kind == kind and not held:
            held.append(frame)
            return []
        is_next = bool(held) and frame.number == held[0].number + 1
        return [frame.data, held[0].data] if is_next else [frame.data]

    with leader(tmp_path / "leader") as of, follower(tmp_path / "follower") as to:
        ended = transfer(of, to, change=change)
        assert isinstance(ended.received, FrameDamaged), ended
        require_unchanged(to)
        require_installed(transfer(of, to), to)


def rebuilt(frame: Passing, body: bytes) -> bytes:
    """The frame with another body, and the checksums that belong to it."""
    return framed(frame.data[4], 1, body)


def framed(kind: int, version: int, body: bytes) -> bytes:
    head = struct.pack("<IBB2x", len(body), kind, version)
    return b"".join((head, struct.pack("<I", zlib.crc32(head)), body, struct.pack("<I", zlib.crc32(body))))


FRAME = struct.Struct("<4sBBHIIQQQQQI")
"""The head of a frame of the WAL, without its CRC."""


def sparse(indexes: Sequence[int], terms: Sequence[int], payloads: Sequence[bytes], previous: int) -> bytes:
    """A sparse frame of the WAL."""
    columns = struct.pack(f"<{2 * len(indexes)}Q", *indexes, *terms) + struct.pack(
        f"<{len(payloads)}I", *map(len, payloads))
    data = columns + bytes(-len(columns) % 8) + b"".join(payloads)
    head = FRAME.pack(b"CLWf", 2, 2, 0, 0, len(indexes), previous, indexes[0], terms[-1], 0, len(data),
                      zlib.crc32(data))
    return b"".join((head, struct.pack("<I", zlib.crc32(head)), data, bytes(-len(data) % 8)))


@pytest.mark.parametrize("wrong", ["an entry is left out", "another entry", "another link"])
def test_entries_that_do_not_follow_are_refused_as_damage(wrong: str, tmp_path: Path) -> None:
    """The checksums are right, as those of a sender are that is wrong."""

    def change(frame: Passing) -> Sequence[bytes]:
        if frame.kind != "entries":
            return [frame.data]
        body = frame.data[12:-4]
        count, previous = FRAME.unpack_from(body)[5:7]
        columns = struct.unpack_from(f"<{2 * count}Q", body, 64)
        indexes, terms = columns[:count], columns[count:]
        payloads = [entry(index).payload for index in indexes]
        left_out, other = list(indexes[1:]), [indexes[0] - 1, *indexes[1:]]
        bodies = {
            "an entry is left out": sparse(left_out, terms[1:], payloads[1:], previous),
            "another entry": sparse(other, terms, payloads, previous),
            "another link": sparse(indexes, terms, payloads, previous + 1),
        }
        return [rebuilt(frame, bodies[wrong])]

    with leader(tmp_path / "leader") as of, follower(tmp_path / "follower") as to:
        ended = transfer(of, to, applied=10, change=change)
        assert isinstance(ended.received, FrameDamaged), ended
        require_unchanged(to)
        require_installed(transfer(of, to), to)


def test_frame_of_more_entries_than_allowed_is_refused_as_damage(tmp_path: Path) -> None:
    """An entry of no bytes takes 20 in the frame, and many times as much in memory."""
    entries = [Entry(index, 1, b"") for index in range(1, 1101)]
    held: list[int] = []

    def joined(frame: Passing) -> Sequence[bytes]:
        if frame.kind != "entries":
            return [frame.data]
        held.append(FRAME.unpack_from(frame.data, 12)[5])
        if len(held) == 1:
            return []
        indexes = range(1, sum(held) + 1)
        return [rebuilt(frame, sparse(indexes, [1] * len(indexes), [b""] * len(indexes), 0))]

    (tmp_path / "leader").mkdir()
    with member(tmp_path / "leader") as of, follower(tmp_path / "follower") as to:
        of.append(entries)
        of.snapshot(1100, range(1, 1101), [STATE])
        ended = transfer(of, to, change=joined, chunk_bytes=1 << 20)
        assert held == [1024, 76]
        assert isinstance(ended.received, FrameDamaged), ended
        require_unchanged(to)


def test_frame_that_announces_too_much_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """A peer chooses the length, so it must not choose the memory."""
    head = struct.pack("<IBB2x", 1 << 31, 3, 1)
    huge = head + struct.pack("<I", zlib.crc32(head))
    with leader(tmp_path / "leader") as of, follower(tmp_path / "follower") as to:
        ended = transfer(of, to, change=lambda frame: [huge] if frame.kind == "live" else [frame.data])
        assert isinstance(ended.received, FrameDamaged), ended
        require_unchanged(to)


def test_offer_of_too_much_json_is_refused(tmp_path: Path) -> None:
    """A receiver takes large frames of entries; JSON of their size would take many times their memory."""
    def change(frame: Passing) -> Sequence[bytes]:
        is_offer = frame.kind == "offer"
        return [rebuilt(frame, frame.data[12:-4] + b" " * (1 << 20)) if is_offer else frame.data]

    with leader(tmp_path / "leader") as of, follower(tmp_path / "follower") as to:
        ended = transfer(of, to, change=change)
        assert isinstance(ended.received, FrameDamaged), ended
        require_unchanged(to)


@pytest.mark.parametrize(("kind", "field", "value"), [
    ("accept", "last_applied", -2), ("accept", "last_applied", 1 << 64), ("accept", "state_offset", len(STATE) + 1),
    ("refuse", "term", 1 << 64), ("refuse", "term", -1), ("refuse", "last_applied", -2)])
def test_answer_with_a_number_out_of_range_is_damage(kind: str, field: str, value: int, tmp_path: Path) -> None:
    """The leader's host would take the term for its own."""
    def change(frame: Passing) -> Sequence[bytes]:
        if frame.kind != kind:
            return [frame.data]
        return [rebuilt(frame, json.dumps({**json.loads(frame.data[12:-4]), field: value}).encode())]

    with leader(tmp_path / "leader") as of, follower(tmp_path / "follower") as to:
        to.record_hard_state(3)
        ended = transfer(of, to, term=2 if kind == "refuse" else 3, change=change)
        assert isinstance(ended.sent, FrameDamaged), ended
        require_unchanged(to)


# -- refusals


@pytest.mark.parametrize(("reason", "arguments"), [
    (RefusalReason.ALREADY_APPLIED, {"applied": LAST}),
    (RefusalReason.HIGHER_TERM, {"term": 2}),
    (RefusalReason.UNSUPPORTED, {"machine_versions": (1, 2)}),
    (RefusalReason.TOO_LARGE, {"max_live_bytes": 10}),
    (RefusalReason.TOO_LARGE, {"max_entry_bytes": 7}),
], ids=["applied", "term", "machine version", "live set", "entry"])
def test_refusal_names_its_reason_on_both_sides(reason: RefusalReason, arguments: dict[str, Any],
                                                tmp_path: Path) -> None:
    with leader(tmp_path / "leader") as of, follower(tmp_path / "follower") as to:
        to.record_hard_state(3)
        ended = transfer(of, to, **arguments)
        for error in (ended.sent, ended.received):
            assert isinstance(error, TransferRefused), ended
            assert error.reason is reason
        assert ended.sent.by_peer != ended.received.by_peer
        require_unchanged(to)
        require_installed(transfer(of, to), to)


def test_entry_that_no_transfer_carries_is_named(tmp_path: Path) -> None:
    with leader(tmp_path / "leader") as of, follower(tmp_path / "follower") as to:
        ended = transfer(of, to, applied=10, max_entry_bytes=7)
        for error in (ended.sent, ended.received):
            assert "entry 17" in str(error)
            assert "max_entry_bytes=7" in str(error)


def test_stream_that_leads_to_another_log_is_refused(tmp_path: Path) -> None:
    with leader(tmp_path / "leader") as of, follower(tmp_path / "follower", log_id="orders") as to:
        ended = transfer(of, to)
        assert isinstance(ended.sent, TransferRefused)
        assert ended.sent.reason is RefusalReason.OTHER_LOG
        require_unchanged(to)


def in_version_2(frame: Passing) -> Sequence[bytes]:
    """A later release offers a snapshot."""
    return [framed(frame.data[4], 2, b"another form") if frame.kind == "offer" else frame.data]


def test_follower_of_another_release_is_named(tmp_path: Path) -> None:
    """It reads the version first, and its refusal is the same in every version."""
    with leader(tmp_path / "leader") as of, follower(tmp_path / "follower") as to:
        ended = transfer(of, to, change=in_version_2)
        assert isinstance(ended.received, Unsupported)
        assert isinstance(ended.sent, TransferRefused)
        assert ended.sent.reason is RefusalReason.UNSUPPORTED
        require_unchanged(to)


def test_follower_that_is_little_behind_is_sent_entries_instead(tmp_path: Path) -> None:
    with leader(tmp_path / "leader", keep_trailing=30) as of, follower(tmp_path / "follower") as to:
        ended = transfer(of, to, applied=31)
        for error in (ended.sent, ended.received):
            assert isinstance(error, TransferRefused), ended
            assert (error.reason, error.last_applied) == (RefusalReason.ALREADY_APPLIED, 31)
        assert of.entries_after(31) is not None
        require_unchanged(to)


def test_term_that_begins_during_a_transfer_ends_both_sides(tmp_path: Path) -> None:
    with leader(tmp_path / "leader") as of, follower(tmp_path / "follower") as to:

        def change(frame: Passing) -> Sequence[bytes]:
            if frame.kind == "state":
                to.record_hard_state(9)
            return [frame.data]

        ended = transfer(of, to, change=change)
        assert isinstance(ended.received, TransferRefused), ended
        assert (ended.received.reason, ended.received.term) == (RefusalReason.HIGHER_TERM, 9)
        # The leader does not read while it sends, and may have sent everything.
        assert isinstance(ended.sent, TransferBroken | TransferRefused), ended
        require_unchanged(to)


def test_term_of_the_leader_is_durable_before_the_snapshot_is_taken(tmp_path: Path) -> None:
    with leader(tmp_path / "leader") as of:
        with follower(tmp_path / "follower") as to:
            transfer(of, to, term=7, change=cut_at("live"))
        with member(tmp_path / "follower") as to:
            assert to.hard_state.term == 7


def test_log_without_its_live_entries_is_not_given_the_snapshot(tmp_path: Path) -> None:
    """The host says that its machine has applied what its log does not hold."""
    with leader(tmp_path / "leader") as of, follower(tmp_path / "follower") as to:
        ended = transfer(of, to, applied=20)
        assert isinstance(ended.received, LiveIndexMissing)
        assert isinstance(ended.sent, TransferRefused)
        require_unchanged(to)


def test_machine_is_restored_before_the_next_snapshot_arrives(tmp_path: Path) -> None:
    with leader(tmp_path / "leader") as of, follower(tmp_path / "follower") as to:
        assert transfer(of, to).is_well
        assert isinstance(transfer(of, to, applied=10).received, InvalidInput)


# -- leaders that continue


def test_leader_sends_a_snapshot_while_a_newer_one_is_taken(tmp_path: Path) -> None:
    with leader(tmp_path / "leader") as of, follower(tmp_path / "follower") as to:

        def change(frame: Passing) -> Sequence[bytes]:
            if frame.kind == "accept":
                of.snapshot(LAST + 5, (), [b"newer"])
                of.compact()
                assert of.status().pins == 1
            return [frame.data]

        require_installed(transfer(of, to, change=change), to)


def test_newer_snapshot_of_the_leader_takes_the_place_of_a_staged_one(tmp_path: Path) -> None:
    with leader(tmp_path / "leader") as of, follower(tmp_path / "follower") as to:
        transfer(of, to, change=cut_at("state", nth=4))
        of.snapshot(LAST + 5, (3,), [b"newer"])
        of.compact()
        ended = transfer(of, to)
        assert ended.is_well
        assert (ended.received.index, ended.received.resumed_at) == (LAST + 5, 0)
        with to.open_state() as state:
            assert b"".join(state.pieces()) == b"newer"
        assert [each.index for each in to.entries()] == [3]


def test_second_snapshot_of_a_log_is_refused_while_one_is_received(tmp_path: Path) -> None:
    with leader(tmp_path / "leader") as of, follower(tmp_path / "follower") as to:
        second: list[Ended] = []

        def change(frame: Passing) -> Sequence[bytes]:
            if frame.kind == "entries":
                with ThreadPoolExecutor(1) as other:
                    second.append(other.submit(transfer, of, to).result())
            return [frame.data]

        require_installed(transfer(of, to, change=change), to)
        (refused,) = second
        assert isinstance(refused.received, Busy)
        assert isinstance(refused.sent, TransferRefused)


def test_second_stream_with_an_installed_snapshot_leaves_its_files(tmp_path: Path) -> None:
    with leader(tmp_path / "leader") as of, follower(tmp_path / "follower") as to:
        first: list[Ended] = []

        def change(frame: Passing) -> Sequence[bytes]:
            if frame.kind == "offer" and not first:
                with ThreadPoolExecutor(1) as other:
                    first.append(other.submit(transfer, of, to).result())
            return [frame.data]

        assert isinstance(transfer(of, to, change=change).received, Stale)
        require_installed(first[0], to)
    with member(tmp_path / "follower") as to:
        require_snapshot(to)


@pytest.mark.parametrize("fails", [False, True])
def test_stream_into_a_log_that_was_closed_leaves_the_files_of_the_next(fails: bool, tmp_path: Path) -> None:
    """The log was opened again and has received the same snapshot over another stream."""
    failing = [False]

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if failing[0] and request.kind == "write" and request.path.endswith(".state"):
            raise StorageError.from_os(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), request.kind, request.path)
        return act()

    (tmp_path / "follower").mkdir()
    options = attrs.evolve(OPTIONS, log=attrs.evolve(OPTIONS.log, files=FilesInFront(step)))
    with leader(tmp_path / "leader") as of, RaftLogStore(tmp_path / "follower" / "log", options) as store:
        to = store.log("log")
        second: list[Ended] = []

        def change(frame: Passing) -> Sequence[bytes]:
            if frame.kind == "state" and not second:
                to.close()
                with ThreadPoolExecutor(1) as other:
                    second.append(other.submit(transfer, of, store.log("log")).result())
                failing[0] = fails
            return [frame.data]

        assert isinstance(transfer(of, to, change=change).received, Closed)
        failing[0] = False
        require_installed(second[0], store.log("log"))
    with member(tmp_path / "follower") as again:
        require_snapshot(again)


def test_log_that_is_closed_before_the_switch_keeps_the_state_that_has_arrived(tmp_path: Path) -> None:
    closing: list[threading.Thread] = []

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if closing and not closing[0].ident and request.kind == "create" and ".segment" in request.path:
            # It waits for this thread, after it has refused all later steps.
            closing[0].start()
            while not to.is_closed:
                closing[0].join(0.01)
            closing[0].join(0.1)
        return act()

    (tmp_path / "follower").mkdir()
    options = attrs.evolve(OPTIONS, log=attrs.evolve(OPTIONS.log, files=FilesInFront(step)))
    with leader(tmp_path / "leader") as of, RaftLogStore(tmp_path / "follower" / "log", options) as store:
        to = store.log("log")
        to.append(FOLLOWERS["of another history"])
        to.flush()
        closing.append(threading.Thread(target=to.close))
        assert isinstance(transfer(of, to).received, Closed)
        closing[0].join()
        ended = transfer(of, store.log("log"))
        require_installed(ended, store.log("log"))
        assert ended.received.resumed_at == len(STATE)


@pytest.mark.parametrize("kind", ["accept", "entries", "state", "installed"])
def test_cancelled_receiver_leaves_the_old_log_or_the_snapshot(kind: str, tmp_path: Path) -> None:
    with leader(tmp_path / "leader") as of, follower(tmp_path / "follower") as to:

        async def cancelled() -> None:
            def change(frame: Passing) -> Sequence[bytes]:
                if frame.kind == kind:
                    taking.cancel()
                return [frame.data]

            line = Line(change)
            taking = asyncio.create_task(receive_snapshot(line.ends[1], to, last_applied=0))
            sending = asyncio.create_task(send_snapshot(line.ends[0], of, term=3, chunk_bytes=CHUNK_BYTES))
            with pytest.raises(asyncio.CancelledError):
                await taking
            line.cut()
            await asyncio.wait([sending])
            sending.exception()

        asyncio.run(asyncio.wait_for(cancelled(), PATIENCE_SECONDS))
        if kind == "installed":
            require_snapshot(to)
        else:
            require_unchanged(to)
            require_installed(transfer(of, to), to)


def test_cancelled_receiver_completes_its_switch(tmp_path: Path) -> None:
    """It is cancelled while a thread of it renames the state into its place."""
    armed: list[Callable[[], object]] = []
    was_renamed: list[str] = []

    def meet(request: Request, act: Callable[[], Any]) -> Any:
        if request.kind == "rename" and armed and not was_renamed:
            was_renamed.append(request.path)
            armed[0]()
        return act()

    with follower(tmp_path / "follower"):
        pass
    with leader(tmp_path / "leader") as of, member(tmp_path / "follower", FilesInFront(meet)) as to:

        async def cancelled() -> None:
            loop = asyncio.get_running_loop()

            def change(frame: Passing) -> Sequence[bytes]:
                if frame.kind == "state":
                    armed.append(cancel)
                return [frame.data]

            line = Line(change)
            taking = asyncio.create_task(receive_snapshot(line.ends[1], to, last_applied=0))

            def cancel() -> None:
                is_cancelled = threading.Event()
                loop.call_soon_threadsafe(taking.cancel)
                loop.call_soon_threadsafe(loop.call_soon, is_cancelled.set)
                assert is_cancelled.wait(PATIENCE_SECONDS)

            sending = asyncio.create_task(send_snapshot(line.ends[0], of, term=3))
            with pytest.raises(asyncio.CancelledError):
                await taking
            line.cut()
            await asyncio.wait([sending])
            sending.exception()

        asyncio.run(asyncio.wait_for(cancelled(), PATIENCE_SECONDS))
        assert was_renamed
        require_snapshot(to)


# -- the links of sparse entries


def test_missing_link_in_the_wal_is_named_at_opening(tmp_path: Path) -> None:
    """The process ends while live entries have come and their snapshot has not; one of them says that it follows an
    entry that is not there."""
    killed = tmp_path / "killed"

    def meet(request: Request, act: Callable[[], Any]) -> Any:
        if request.kind == "unlink" and request.path.endswith(".entries"):
            shutil.copytree(tmp_path / "follower", killed, symlinks=True)
        return act()

    with leader(tmp_path / "leader") as of:
        with follower(tmp_path / "follower"):
            pass
        with member(tmp_path / "follower", FilesInFront(meet)) as to:
            assert transfer(of, to, chunk_bytes=8).is_well
    with member(Path(shutil.copytree(killed, tmp_path / "as it was", symlinks=True))) as to:
        assert [to.read(index) for index in LIVE] == [entry(index) for index in LIVE]
    for file in (killed / "log" / "wal").iterdir():
        file.write_bytes(with_link(file.read_bytes(), index=41, follows=30))
    with pytest.raises(CorruptData, match="30"), member(killed):
        pass
    assert not verify_log(killed / "log" / "logs" / "log").is_sound


def with_link(wal: bytes, *, index: int, follows: int) -> bytes:
    """A WAL file whose frame of one sparse entry says that it follows another index; its checksum is right."""
    salt = zlib.crc32(b"salt", zlib.crc32(wal[:60]))
    place, data = 64, bytearray(wal)
    while data[place:place + 4] == b"CLWf":
        kind, first = data[place + 4], int.from_bytes(data[place + 24:place + 32], "little")
        if (kind, first) == (2, index):
            data[place + 16:place + 24] = follows.to_bytes(8, "little")
            data[place + 60:place + 64] = struct.pack("<I", zlib.crc32(data[place:place + 60], salt))
        body = int.from_bytes(data[place + 48:place + 56], "little")
        place += 64 + -(-body // 8) * 8
    return bytes(data)


# -- a disk that refuses


@pytest.mark.parametrize("had", ["behind", "of another history"])
def test_disk_that_refuses_leaves_the_old_log_or_a_closed_one(had: str, tmp_path: Path, effort: Effort) -> None:
    """At every change of the disk in turn, or every third. A closed log has the snapshot, or the old entries, when it
    is opened.
    """
    agreed = [each for each in FOLLOWERS[had] if each == entry(each.index)]
    ends: Counter[str] = Counter()
    with leader(tmp_path / "leader") as of:
        for fail_at in count(1, effort(3, 1)):
            folder = tmp_path / f"follower-{fail_at}"
            with follower(folder, had):
                pass
            files = FailingFiles(fail_at=fail_at)
            with contextlib.suppress(StorageError, Closed), member(folder, files) as to:
                ends[how_it_ended(transfer(of, to), to, agreed, FOLLOWERS[had])] += 1
            with member(folder) as to:
                if to.state.index != LAST:
                    assert [to.read(each.index) for each in agreed] == agreed
                    assert transfer(of, to).is_well
                require_snapshot(to)
            shutil.rmtree(folder)
            if files.count < fail_at:
                break
    assert set(ends) == {"well", "unchanged", "closed"}


class RefusedClose:
    """An open file whose first close reports an error, after it has closed."""

    def __init__(self, out: OutFile) -> None:
        self._out = out
        self._is_open = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)

    def close(self) -> None:
        self._out.close()
        if self._is_open:
            self._is_open = False
            raise StorageError.from_os(OSError(errno.EIO, os.strerror(errno.EIO)), "close", self._out.path)


class RefusingClose(LocalFiles):
    """A disk that reports an error when the live entries of a received snapshot are closed."""

    def create(self, path: StrPath) -> OutFile:
        out = super().create(path)
        return cast(OutFile, RefusedClose(out)) if os.fspath(path).endswith(".entries") else out


def test_log_whose_switch_was_not_taken_up_is_closed(tmp_path: Path) -> None:
    """Its row names the snapshot; opening it would truncate what is appended above the old row."""
    with follower(tmp_path / "follower"):
        pass
    with leader(tmp_path / "leader") as of, member(tmp_path / "follower", RefusingClose()) as to:
        assert isinstance(transfer(of, to).received, StorageError)
        with pytest.raises(Closed):
            to.append([entry(11)])
    with member(tmp_path / "follower") as to:
        require_snapshot(to)


def how_it_ended(ended: Ended, to: Member, agreed: Sequence[Entry], had: Sequence[Entry]) -> str:
    """Check the same object after a transfer: it has the old or the new state."""
    if ended.is_well:
        require_snapshot(to)
        return "well"
    assert isinstance(ended.received, StorageError), ended
    try:
        held = list(to.entries())
    except Closed:
        return "closed"
    assert to.state.index == -1
    # Entries that contradict the snapshot, and later ones, may be removed.
    assert held == had[:len(held)], held
    assert len(held) >= len(agreed)
    return "unchanged"


# -- everything together


def test_follower_equals_its_leader_and_keeps_acknowledged_entries(tmp_path: Path, effort: Effort) -> None:
    """Lines are cut, bytes damaged, frames repeated; the follower's disk refuses, and its process is killed; the leader
    continues, and takes newer snapshots. The last transfer has no faults."""
    with leader(tmp_path / "leader"):
        pass
    lives = count()

    def run(choices: Choices) -> None:
        folder = tmp_path / f"life {next(lives)}"
        Life(tmp_path / "leader", folder, choices).live()
        shutil.rmtree(folder)

    assert explore(run, most=effort(2, 3), limit=effort(18, 250)) > 18


class Life:
    """One history of a leader and a follower, which is opened again for each of its transfers."""

    def __init__(self, template: Path, folder: Path, choices: Choices) -> None:
        self.pick = choices.pick
        self.leader = Path(shutil.copytree(template, folder / "leader", symlinks=True))
        self.place = folder / "follower"
        had = self.pick("the follower", *FOLLOWERS)
        with follower(self.place, had):
            pass
        self.kept = {each.index: each for each in FOLLOWERS[had] if each == entry(each.index)}
        self.heard = -1
        """Return the snapshot that the follower has reported as in force."""

    def live(self) -> None:
        with member(self.leader) as of:
            for _ in range(2):
                self.go_on(of)
                files = FailingFiles(fail_at=self.pick("the disk refuses", None, *range(1, 60, 3)),
                                     sticky=self.pick("the disk stays full", False, True))
                is_killed = self.pick("the process is killed", False, True)
                with contextlib.suppress(StorageError, Closed), member(self.place, files) as to:
                    self.bring_up(of, to, self.meet)
                    if is_killed:
                        # What follows is another process, which finds what this one has left.
                        self.place = Path(shutil.copytree(self.place, f"{self.place} again", symlinks=True))
            with member(self.place) as to:
                for _ in range(2):
                    # A state that was torn is taken once more.
                    self.bring_up(of, to)
                require_same(of, to)

    def go_on(self, of: RaftLog) -> None:
        """Let the leader work during the transfer."""
        does = self.pick("the leader", "waits", "appends", "takes a snapshot")
        if does != "waits":
            of.append([entry(index) for index in range(of.last_index + 1, of.last_index + 6)])
            of.sync()
        if does == "takes a snapshot":
            of.snapshot(of.last_index - 2, (*LIVE, of.last_index - 3), [b"%d" % of.last_index])
            of.compact()

    def meet(self, frame: Passing) -> Sequence[bytes] | None:
        """What happens to a frame."""
        met = self.pick(f"frame {frame.kind}", "passes", "is lost with the line", "is damaged", "comes twice")
        if met == "is damaged":
            return [flipped(frame, len(frame.data) // 2)]
        return None if met == "is lost with the line" else [frame.data] * (1 + (met == "comes twice"))

    def bring_up(self, of: Member, to: Member, change: Change = as_sent) -> None:
        """Restart the follower, send it the snapshot, and the entries behind."""
        log = to
        assert log.state.index >= self.heard
        for index, each in self.kept.items():
            assert log.read(index) == each or isinstance(log.read(index), DeadEntry), (index, log.read(index))
        ended = transfer(of, to, applied=log.state.index, change=change)
        if isinstance(ended.sent, TransferReport):
            self.heard = max(self.heard, ended.sent.index)
        after: int | None = log.last_index
        while after is not None:
            after = self.follow(of, log, after)

    def follow(self, of: RaftLog, log: RaftLog, after: int) -> int | None:
        """Send some entries; the index behind which others follow, `None` if none do or if the snapshot is needed."""
        message = of.entries_after(after, max_bytes=30)
        if message is None:
            return None
        answer = log.append_entries(*message)
        if not answer.success:
            return of.next_index(answer) - 1
        self.kept.update((each.index, each) for each in message.entries)
        return message.entries[-1].index if message.entries else None


def require_same(of: Member, to: Member) -> None:
    """The follower has what its leader has, and is sound."""
    for log in (of, to):
        assert log.verify().is_sound
    assert to.state == of.state
    assert list(to.entries()) == list(of.entries())
    with of.open_state() as there, to.open_state() as here:
        assert b"".join(there.pieces()) == b"".join(here.pieces())


@pytest.mark.parametrize("damage", [
    lambda data: data[:40] + bytes([data[40] ^ 1]) + data[41:],
    lambda data: data[:data.rfind(b"CLWf")],
], ids=["a byte", "the last entries"])
def test_damaged_entries_of_a_received_snapshot_keep_no_other_log_back(damage: Callable[[bytes], bytes],
                                                                       tmp_path: Path) -> None:
    """The process ends while the log takes them; the file that holds them is damaged or shortened then."""
    killed = tmp_path / "killed"

    def meet(request: Request, act: Callable[[], Any]) -> Any:
        if request.kind == "unlink" and request.path.endswith(".entries"):
            shutil.copytree(tmp_path / "follower", killed, symlinks=True)
        return act()

    with leader(tmp_path / "leader") as of:
        with follower(tmp_path / "follower"):
            pass
        with member(tmp_path / "follower", FilesInFront(meet)) as to:
            assert transfer(of, to).is_well
    (file,) = killed.rglob("*.entries")
    data = file.read_bytes()
    file.write_bytes(damage(data))
    with RaftLogStore(killed / "log", OPTIONS) as store:
        assert store.status().damaged == ("log",)
        with pytest.raises(CorruptData):
            store.log("log")
        other = store.log("another")
        other.append([entry(1)])
        store.flush()
    file.write_bytes(data)
    with member(killed) as to:
        require_snapshot(to)


@pytest.mark.parametrize("had", FOLLOWERS)
def test_entries_of_a_log_whose_installation_ends_while_it_is_read(
        had: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader looks whether the installation is under way; it ends at this moment."""
    half, lstat = tmp_path / "half", os.lstat

    def meet(request: Request, act: Callable[[], Any]) -> Any:
        answer = act()
        if request.kind == "rename" and request.target.endswith("SNAPSHOT") and any(
                (tmp_path / "follower").rglob("*.entries")):
            shutil.copytree(tmp_path / "follower", half, symlinks=True)
        return answer

    def looked_at(path: str) -> os.stat_result:
        if os.fspath(path).endswith(".entries"):
            monkeypatch.undo()
            with member(half):
                pass  # the installation ends
        return lstat(path)

    with leader(tmp_path / "leader") as of:
        with follower(tmp_path / "follower", had) as to:
            folder = half / os.path.relpath(to.folder, tmp_path / "follower")
        with member(tmp_path / "follower", FilesInFront(meet)) as to:
            assert transfer(of, to).is_well
    monkeypatch.setattr(os, "lstat", looked_at)
    with LogReader(folder) as reader:
        assert list(reader.entries()) == [entry(index) for index in LIVE]


def test_follower_gets_the_snapshot_if_a_newer_one_has_removed_the_entries_that_it_lacks(tmp_path: Path) -> None:
    def meanwhile(frame: Passing) -> Sequence[bytes]:
        if frame.kind == "accept":
            of.snapshot(LAST + 10, (), [STATE])
            of.compact()
        return as_sent(frame)

    with leader(tmp_path / "leader", keep_trailing=9) as of, follower(tmp_path / "follower") as to:
        to.append([entry(index) for index in range(11, LAST - 4)])
        to.sync()
        assert transfer(of, to, applied=LAST - 5, change=meanwhile).is_well
        assert to.state.index == LAST
