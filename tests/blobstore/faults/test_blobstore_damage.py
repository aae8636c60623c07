# SPDX-License-Identifier: Apache-2.0
"""Flipped and cut bytes anywhere: reported, never returned; the rest of the store stays readable."""

from __future__ import annotations

import gc
import os
import random
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import pytest

from compactlib.blobstore import Blob, BlobReader, BlobStore, BlobStoreConfig, Deleted, Missing
from compactlib.blobstore.model.values import Answer, IndexEntry
from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError, CorruptData
from compactlib.runtime import Observer
from tests.blobstore.compaction_stores import flip
from tests.harness.open_files import open_files
from tests.harness.plain_blob_store import told

KEYS = [b"blob %d" % number for number in range(9)]
CONFIG = BlobStoreConfig(capacity_bytes=1 << 16, segment_bytes=1 << 10, index_max_entries=3,
                         ttl_update_buffer_seconds=1)
Left = Literal["closed", "killed", "no index"]


def filled(folder: Path, left: Left) -> tuple[dict[bytes, Answer | bytes], dict[str, list[IndexEntry]]]:
    """A store with records of all kinds in several segments: what each id answers, and which records a file holds."""
    work = folder / "work"
    with BlobStore(work, CONFIG, clock=ManualClock(1000.0)) as store:
        for number, key in enumerate(KEYS):
            store.put(key, bytes([65 + number]) * (70 * number), ttl_seconds=50 if number % 2 else None)
        store.delete(KEYS[2])
        store.ttl_update(KEYS[3])
        store.delete(KEYS[4])
        store.undelete(KEYS[4])
        answers = {key: told(store.get(key)) for key in KEYS}
        snapshot = store.snapshot()
        records = {segment.name.log_file: list(snapshot.entries_of(segment.name)) for segment in snapshot.segments}
        if left == "killed":
            shutil.copytree(work, folder / "store")
    if left != "killed":
        work.rename(folder / "store")
    if left == "no index":
        for path in (folder / "store").glob("*.index"):
            path.unlink()
    assert len(records) > 2
    return answers, records


def found_in(folder: Path) -> tuple[dict[bytes, Answer | bytes | CorruptData], list[object]]:
    """What each id answers now, and what the store reports."""
    found: dict[bytes, Answer | bytes | CorruptData] = {}
    told_of = Told()
    with BlobStore(folder, CONFIG, clock=ManualClock(1000.0), observer=told_of) as store:
        store.audit()
        for key in KEYS:
            try:
                found[key] = told(store.get(key))
            except CorruptData as error:
                found[key] = error
        store.put(b"later", b"still possible")
        assert isinstance(store.get(b"later"), Blob)
        assert told_of.damage == len(store.recovery.damage)
        return found, list(store.recovery.to_dicts())


class Told(Observer):
    def __init__(self) -> None:
        self.damage = 0

    def event(self, name: str, fields: object) -> None:
        self.damage += name == "blobstore_damage"


def damaged(folder: Path, rng: random.Random, count: int) -> Iterator[tuple[Path, int, bool]]:
    """Copies of a folder, each with one byte flipped or one file cut: which file, where, and whether it was cut."""
    for number in range(count):
        copy = folder.with_name(f"copy {number}")
        shutil.copytree(folder, copy)
        path = rng.choice(sorted(file for file in copy.iterdir() if file.name != "LOCK"))
        data = bytearray(path.read_bytes())
        place, cut = rng.randrange(len(data)), rng.random() < 0.2
        if cut:
            del data[place:]
        else:
            data[place] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        yield path, place, cut
        shutil.rmtree(copy)


@pytest.mark.parametrize("left", ["closed", "killed", "no index"])
def test_damage_anywhere_is_reported_and_harms_nothing_else(left: Left, scratch: Path) -> None:
    answers, records = filled(scratch, left)
    last = max(records)
    for path, place, cut in damaged(scratch / "store", random.Random(7), 150):
        concerned = {entry.id for entry in records.get(path.name, ())
                     if entry.end > place and (cut or entry.offset <= place)}
        found, reported = found_in(path.parent)
        wrong = {key for key in KEYS if found[key] != answers[key]}
        assert wrong <= concerned, (path.name, place, cut)
        if left != "closed" and path.name == last:
            # The end of the active segment without an index: what was written last counts as never acknowledged.
            continue
        assert reported or all(isinstance(found[key], CorruptData) for key in wrong)
        # With its index, nothing that was put is taken for missing, and no delete for undone.
        if left == "closed":
            assert all(isinstance(found[key], CorruptData) for key in wrong)


def test_damage_before_the_last_record_is_damage_even_if_the_store_was_killed(scratch: Path) -> None:
    """Each write was synced before the next, so that a later record proves an earlier one to have been whole."""
    with BlobStore(scratch / "work", CONFIG) as store:
        for key in KEYS[:2]:
            store.put(key, b"content")
        shutil.copytree(scratch / "work", scratch / "store")
    path = scratch / "store" / "0_0.log"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"content", b"kontent", 1))
    with BlobStore(scratch / "store", CONFIG) as store:
        with pytest.raises(CorruptData, match="blob 0"):
            store.get(KEYS[0])
        assert isinstance(store.get(KEYS[1]), Blob)
        assert [error.offset for error in store.recovery.damage] == [80]
    # And it is still told when the store is opened again, with an index by now.
    with BlobStore(scratch / "store", CONFIG) as store, pytest.raises(CorruptData):
        store.get(KEYS[0])


def test_a_segment_that_is_gone_harms_only_its_blobs(scratch: Path) -> None:
    answers, records = filled(scratch, "closed")
    victim = sorted(records)[1]
    (scratch / "store" / victim).unlink()
    with BlobStore(scratch / "store", CONFIG, clock=ManualClock(1000.0)) as store:
        assert store.recovery.damage
        gone = {entry.id for entry in records[victim]}
        for key in KEYS:
            if key not in gone:
                assert told(store.get(key)) == answers[key]


def test_a_blob_that_holds_a_log_is_not_taken_for_one(scratch: Path) -> None:
    """The header of a record is damaged whose content is a segment of another store: none of those records appears."""
    _, _ = filled(scratch, "closed")
    content = (scratch / "store" / "0_0.log").read_bytes()
    big = BlobStoreConfig(capacity_bytes=1 << 16, segment_bytes=1 << 13)
    with BlobStore(scratch / "outer", big) as store:
        store.put(b"outer", content)
        store.put(b"behind", b"readable")
    path = scratch / "outer" / "0_0.log"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    for index in (scratch / "outer").glob("*.index"):
        index.unlink()
    with BlobStore(scratch / "outer", big) as store:
        assert store.status().records == 1
        assert isinstance(store.get(b"behind"), Blob)
        assert len(store.recovery.damage) == 1


def test_two_generations_of_a_position_are_refused(scratch: Path) -> None:
    filled(scratch, "closed")
    store = scratch / "store"
    shutil.copy(store / "1_0.log", store / "1_1.log")
    with pytest.raises(CompactlibError):
        BlobStore(store, CONFIG)


def test_a_lost_descriptor_is_made_again_from_the_segments(scratch: Path) -> None:
    answers, _ = filled(scratch, "closed")
    (scratch / "store" / "STORE").unlink()
    with BlobStore(scratch / "store", CONFIG, clock=ManualClock(1000.0)) as store:
        assert [error.path.rpartition("/")[2] for error in store.recovery.damage] == ["STORE"]
        assert {key: told(store.get(key)) for key in KEYS} == answers
        assert (store.capacity_bytes, store.segment_bytes) == (1 << 16, 1 << 10)
    with BlobStore(scratch / "store", CONFIG) as store:
        assert not store.recovery.damage
        assert isinstance(store.get(KEYS[2]), Deleted)


@pytest.mark.parametrize("closed", [True, False])
def test_twelve_damaged_bytes_anywhere_take_no_synced_record_without_a_word(closed: bool, scratch: Path) -> None:
    """In headers, in index files, in the descriptor, across two records. Only the last record of a store that was
    killed cannot be told from one that was never synced, and with it the one before, if the same bytes damage both:
    then it is said how much was cut."""
    config = BlobStoreConfig(capacity_bytes=1 << 15, segment_bytes=1 << 11, index_max_entries=1000)
    store = BlobStore(scratch / "store", config, clock=ManualClock(1000.0))
    for number in range(14):
        store.put(b"%d" % number, b"x" * 200)
    if closed:
        store.close()
    else:
        store._lock_file.release()  # noqa: SLF001
    whole = {path: path.read_bytes() for path in (scratch / "store").iterdir() if path.name != "LOCK"}
    silent = 0
    for path, data in whole.items():
        for at in range(0, len(data), 7):
            for name, content in whole.items():
                name.write_bytes(content)
            for name in set((scratch / "store").iterdir()) - set(whole):
                name.unlink()
            path.write_bytes(data[:at] + bytes(byte ^ 0xff for byte in data[at:at + 12]) + data[at + 12:])
            with BlobStore(scratch / "store", config, clock=ManualClock(1000.0)) as again:
                missing = [number for number in range(14) if isinstance(again.info(b"%d" % number), Missing)]
                if missing and not again.recovery.damage:
                    silent += 1
                    assert not closed
                    assert missing in ([13], [12, 13]), (path.name, at, missing)
                    assert again.recovery.cut_bytes
    assert (silent == 0) == closed


def test_a_store_whose_segments_are_all_gone_is_not_taken_for_a_new_one(scratch: Path) -> None:
    with BlobStore(scratch / "store", BlobStoreConfig(capacity_bytes=1 << 15, segment_bytes=1 << 11)) as store:
        store.put(b"a", b"1")
    (scratch / "store" / "0_0.log").unlink()
    with pytest.raises(CorruptData, match="the segments of the log"):
        BlobStore(scratch / "store")
    assert (scratch / "store" / "0_0.80.index").exists()


@pytest.mark.parametrize("left", ["HARD_DELETE", "plan_history.json", "COMPACTION"])
def test_any_file_of_a_store_shows_that_it_had_segments(left: str, scratch: Path) -> None:
    with BlobStore(scratch / "store", BlobStoreConfig(capacity_bytes=1 << 15, segment_bytes=1 << 11)):
        pass
    for path in (*(scratch / "store").glob("*.log"), *(scratch / "store").glob("*.index")):
        path.unlink()
    (scratch / "store" / left).write_bytes(b"")
    for open_it in (BlobStore, BlobReader):
        with pytest.raises(CorruptData, match="the segments of the log"):
            open_it(scratch / "store")


def test_a_tail_that_is_cut_is_told(scratch: Path) -> None:
    events: list[tuple[str, Any]] = []

    class Told(Observer):
        def event(self, name: str, fields: Mapping[str, Any]) -> None:
            # Gauges of its first look at itself may come, too.
            if name.startswith("blobstore_tail"):
                events.append((name, fields.get("bytes")))

    BlobStore(scratch / "store", BlobStoreConfig(capacity_bytes=1 << 15, segment_bytes=1 << 11)).close()
    with open(scratch / "store" / "0_0.log", "ab") as file:
        file.write(b"half a record")
    with BlobStore(scratch / "store", observer=Told()) as store:
        assert store.recovery.cut_bytes == 13
    assert events == [("blobstore_tail_cut", 13)]


@pytest.mark.parametrize(("what", "place"), [("*_0.log", 20), ("*.index", 30)], ids=["headers", "indexes"])
@pytest.mark.parametrize("is_reader", [False, True], ids=["store", "reader"])
def test_what_is_told_of_damage_keeps_no_file_open(what: str, place: int, is_reader: bool, tmp_path: Path) -> None:
    filled(tmp_path, "closed")
    folder, clock = tmp_path / "store", ManualClock(1000.0)
    sealed = sorted(folder.glob(what))[:2]
    for path in sealed:
        flip(path, place)
    gc.disable()
    try:
        with BlobReader(folder, CONFIG, clock=clock) if is_reader else BlobStore(folder, CONFIG, clock=clock) as opened:
            active = opened.snapshot().segments[-1].name.log_file
            held = {os.path.basename(name) for name in open_files(folder)}
            assert held <= {active, "LOCK", folder.name}
            damage = opened.damage if isinstance(opened, BlobReader) else opened.recovery.damage
            assert len(damage) == len(sealed)
            verified = opened.verify()
        assert verified is not None
        assert open_files(folder) == []
    finally:
        gc.enable()
