# SPDX-License-Identifier: Apache-2.0
"""A peer follows a store by token: everything once, in order, across restarts, crashes and switches of segments."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, strategies as st

from compactlib.blobstore import BlobStore, BlobStoreConfig, Deleted, RecordKind, ReplicationToken
from compactlib.blobstore.index.index_file import write_index
from compactlib.blobstore.index.index_segment import IndexSegment
from compactlib.blobstore.log.live_log import MAX_UNSYNCED_RECORDS
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.model.values import IndexEntry
from compactlib.blobstore.segment.reader import SEGMENT_HEADER_BYTES, create_segment, salt_of
from compactlib.blobstore.segment.records import encode_record
from compactlib.blobstore.store.replication import bytes_after, records_after
from compactlib.clock import ManualClock
from compactlib.errors import CorruptData, InvalidInput
from compactlib.files import Files, LocalFiles
from compactlib.testing import Recording, RecordingFiles, explore_crashes
from tests.blobstore.compaction_stores import RETENTION, START, compact_all, garbage_store

CONFIG = BlobStoreConfig(capacity_bytes=1 << 16, segment_bytes=1 << 10, index_max_entries=3, journal_max_entries=0,
                         find_max_entries=5, ttl_update_buffer_seconds=1)


def opened(folder: Path, config: BlobStoreConfig = CONFIG, files: Files | None = None) -> BlobStore:
    return BlobStore(folder, config, files=files, clock=ManualClock(1000.0))


def followed(store: BlobStore, token: ReplicationToken | None = None) -> tuple[list[bytes], ReplicationToken]:
    """The ids that are told from a token on to the end, in order, and the last token."""
    ids: list[bytes] = []
    while True:
        found = store.entries_since(token)
        ids += [entry.id for entry in found.entries]
        token = found.token
        if found.at_end:
            assert not found.bytes_behind
            return ids, token
        assert found.bytes_behind == bytes_after(store.snapshot(), token.sequence) > 0


def test_an_answer_has_so_many_entries_and_the_next_goes_on(scratch: Path) -> None:
    with opened(scratch / "store") as store:
        for number in range(11):
            store.put(b"%d" % number, b"x" * 100)
        first = store.entries_since()
        assert [entry.id for entry in first.entries] == [b"0", b"1", b"2", b"3", b"4"]
        assert not first.at_end
        ids, token = followed(store, first.token)
        assert ids == [b"%d" % number for number in range(5, 11)]
        assert store.entries_since(token).entries == ()


def test_a_blob_is_told_once_with_its_state_now(scratch: Path) -> None:
    with opened(scratch / "store") as store:
        store.put(b"a", b"1", ttl_seconds=90, account=1, container=2)
        store.ttl_update(b"a")
        store.delete(b"a")
        store.undelete(b"a")
        (entry,) = store.entries_since().entries
        assert (entry.is_deleted, entry.is_permanent, entry.life_version) == (False, True, 1)
        assert (entry.account, entry.container, entry.expires_at, entry.changed_at) == (1, 2, None, 1000.0)
        store.append_replicated(RecordKind.DELETE, b"tombstone", op_time=5.0, expires_at=7.0)
        tombstone = store.entries_since().entries[1]
        assert (tombstone.is_deleted, tombstone.size_bytes, tombstone.expires_at) == (True, 0, 7.0)


def test_an_answer_keeps_to_its_bytes_but_for_one_blob(scratch: Path) -> None:
    with opened(scratch / "store") as store:
        for number in range(4):
            store.put(b"%d" % number, b"x" * 100)
        assert len(store.entries_since(max_bytes=1).entries) == 1
        assert len(store.entries_since(max_bytes=2 * 161).entries) == 2
        with pytest.raises(InvalidInput):
            store.entries_since(max_bytes=0)


def test_a_token_goes_on_after_a_restart_and_after_a_kill(scratch: Path) -> None:
    config = attrs.evolve(CONFIG, durability="interval")
    with opened(scratch / "0", config) as store:
        store.put(b"a", b"1")
        _, token = followed(store)
        shutil.copytree(scratch / "0", scratch / "1")
    with opened(scratch / "1", config) as store:
        store.put(b"b", b"2")
        assert followed(store, token)[0] == [b"b"]


def test_records_that_a_crash_has_lost_do_not_hide_those_that_come_after(scratch: Path) -> None:
    """A peer has seen records that then were lost; what is written afterwards has larger numbers all the same."""
    config = attrs.evolve(CONFIG, durability="interval")
    (scratch / "0").mkdir()
    with opened(scratch / "0" / "store", config) as store:
        store.put(b"kept", b"1")
        store.flush()
        shutil.copytree(scratch / "0", scratch / "1")
        for number in range(20):
            store.put(b"lost %d" % number, b"2")
        _, token = followed(store)
    with opened(scratch / "1" / "store", config) as store:
        store.put(b"new", b"3")
        assert followed(store, token)[0] == [b"new"]
        assert store.status().next_sequence > MAX_UNSYNCED_RECORDS


@pytest.mark.parametrize("kept", [[], [b"kept"]])
def test_what_a_peer_was_told_no_crash_takes_away(kept: list[bytes], tmp_path: Path) -> None:
    """Twice something is written and a peer told of it, and then the power fails; what is written after that is told,
    too: no number that the peer has seen is given again."""
    config = attrs.evolve(CONFIG, durability="interval", sync_interval_seconds=1e6, index_max_entries=100)
    with opened(tmp_path / "store", config) as store:
        for key in kept:
            store.put(key, b"1")

    def told(folder: Path) -> Recording:
        """One life; its crashes are those after the peer was told."""
        files = RecordingFiles(folder)
        store = opened(folder / "store", config, files)
        for number in range(2):
            store.put(b"%d of %d" % (number, store.status().next_sequence), b"2")
        files.acknowledge(followed(store)[1])
        recording = files.recording()
        store.close()
        return recording

    def fails_again(folder: Path, acknowledged: Sequence[Any]) -> None:
        again = told(folder)
        explore_crashes(again, lambda last, tokens: goes_on(last, [*acknowledged, *tokens]),
                        points=[len(again.operations)])

    def goes_on(folder: Path, tokens: Sequence[Any]) -> None:
        with opened(folder / "store", config) as store:
            store.put(b"new", b"3")
            assert all(b"new" in followed(store, token)[0] for token in tokens)

    first = told(tmp_path)
    explore_crashes(first, fails_again, points=[len(first.operations)])


def test_a_token_of_another_incarnation_begins_anew(scratch: Path) -> None:
    with opened(scratch / "other") as other:
        other.put(b"x", b"")
        _, foreign = followed(other)
    with opened(scratch / "store") as store:
        store.put(b"a", b"1")
        found = store.entries_since(foreign)
        assert found.was_reset
        assert [entry.id for entry in found.entries] == [b"a"]
        assert not store.entries_since(found.token).was_reset


def test_the_order_is_that_of_the_records_even_if_segments_were_merged_out_of_order(scratch: Path) -> None:
    """A compaction has joined segments 0 and 2 at position 0, so that its records are older and younger than those of
    segment 1."""
    with opened(scratch / "store") as store:
        for number in range(6):
            store.put(b"%d" % number, b"x" * 120)
            if number % 2:
                store.close_active_segment()
        snapshot = store.snapshot()
        _, before = followed(store)
        assert [segment.records for segment in snapshot.segments] == [2, 2, 2, 0]
        target = SegmentName(0, 1)
        joined = [*snapshot.entries_of(SegmentName(0, 0)), *snapshot.entries_of(SegmentName(2, 0))]
        write_segment(store, target, [entry for entry in joined if entry.id != b"5"])
        store.swap_segments([SegmentName(0, 0), SegmentName(2, 0)], [target])
        store.audit()
        assert followed(store)[0] == [b"0", b"1", b"2", b"3", b"4"]
        assert followed(store, ReplicationToken(store.incarnation, 2))[0] == [b"2", b"3", b"4"]
        assert followed(store, before)[0] == []
        store.delete(b"0")
        assert followed(store, before)[0] == [b"0"]
        for number in (2, 0):
            (scratch / "store" / f"{number}_0.log").unlink()
            for index in (scratch / "store").glob(f"{number}_0.*.index"):
                index.unlink()
    with opened(scratch / "store") as store:
        # And once more, so that the records of one segment do not ascend any more.
        snapshot = store.snapshot()
        names = [SegmentName(0, 1), SegmentName(1, 0)]
        write_segment(store, SegmentName(1, 1), [entry for name in names for entry in snapshot.entries_of(name)])
        store.swap_segments(names, [SegmentName(1, 1)])
        assert [entry.id for entry in store.snapshot().entries_of(SegmentName(1, 1))] == [b"0", b"1", b"4", b"2", b"3"]
        assert followed(store, ReplicationToken(store.incarnation, 3))[0] == [b"3", b"4", b"0"]
        store.audit()
        # Once in each answer: the second tells of the delete.
        assert followed(store)[0] == [b"0", b"1", b"2", b"3", b"4", b"0"]
        assert followed(store, before)[0] == [b"0"]


def write_segment(store: BlobStore, name: SegmentName, entries: list[IndexEntry]) -> None:
    """A segment with these records, whose contents are `x`."""
    files, at = LocalFiles(), SEGMENT_HEADER_BYTES
    out = create_segment(files, f"{store.folder}/{name.log_file}", store.segment_header(name))
    placed = []
    for entry in entries:
        placed.append(entry._replace(segment=name, offset=at))
        at += out.write_at(at, [encode_record(entry, b"x" * 120, salt_of(store.incarnation))])
    out.close()
    index = IndexSegment.of_entries(name, placed, SEGMENT_HEADER_BYTES, at, store.incarnation)
    write_index(files, store.folder, index, store.incarnation)


def test_records_come_once_and_in_order(scratch: Path) -> None:
    with opened(scratch / "store") as store:
        for number in range(13):
            store.put(b"%d" % number, b"x" * 50)
        snapshot = store.snapshot()
        store.put(b"later", b"")
        for sequence in range(14):
            found = [entry.sequence for entry in records_after(snapshot, sequence)]
            assert found == list(range(sequence + 1, 14))


@given(st.binary(min_size=16, max_size=16), st.integers(0, (1 << 63) - 1))
def test_a_token_is_read_back_and_every_flipped_byte_is_noticed(incarnation: bytes, sequence: int) -> None:
    token = ReplicationToken(incarnation, sequence)
    data = token.to_bytes()
    assert len(data) == 29
    assert ReplicationToken.from_bytes(data) == token
    for place in range(len(data)):
        for damaged in (data[:place] + bytes([data[place] ^ 4]) + data[place + 1:], data[:place]):
            with pytest.raises(CorruptData):
                ReplicationToken.from_bytes(damaged)


def test_a_put_that_comes_twice_is_written_once(scratch: Path) -> None:
    """Two PUTs of one blob made their segments uncompactable for ever."""
    with opened(scratch / "store") as store:
        first = store.append_replicated(RecordKind.PUT, b"a", b"content", op_time=5.0, expires_at=7000.0)
        store.put(b"b", b"in between")
        assert store.append_replicated(RecordKind.PUT, b"a", b"content", op_time=5.0, expires_at=7000.0) == first
        store.delete(b"a")
        assert store.append_replicated(RecordKind.PUT, b"a", b"content", op_time=5.0, expires_at=7000.0) == first
        assert isinstance(store.get(b"a"), Deleted)
        # Other PUTs of the id, which lose against this one, or against the delete of this life.
        for content, changed in ((b"CONTENT", {}), (b"longer content", {}), (b"content", {"op_time": 6.0}),
                                 (b"content", {"expires_at": None}), (b"content", {"account": 1}),
                                 (b"content", {"op_time": 4.0})):
            told: dict[str, Any] = {"op_time": 5.0, "expires_at": 7000.0, **changed}
            assert store.append_replicated(RecordKind.PUT, b"a", content, **told) in store.snapshot().history(b"a")
        assert [entry.kind for entry in store.snapshot().history(b"a")] == [RecordKind.PUT, RecordKind.DELETE]
        store.audit()


def test_compactions_leave_a_token_valid(tmp_path: Path) -> None:
    clock = ManualClock(START)
    with garbage_store(tmp_path / "store", clock) as store:
        everything = store.entries_since()
        token = ReplicationToken(store.incarnation, 20)
        owed = {entry.id for entry in store.entries_since(token).entries}
        clock.advance(RETENTION)
        compact_all(store)
        after = {entry.id for entry in store.entries_since(token).entries}
        assert after <= owed
        assert store.entries_since(everything.token).entries == ()
