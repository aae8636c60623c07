# SPDX-License-Identifier: Apache-2.0
"""The update log: cases with known answers, races, damage, and a crash at every step of the store."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import attrs
import pytest

from compactlib.catalog import UpdateLog
from compactlib.catalog.errors import (
    CatalogMoved,
    RecordDamaged,
    RecordMissing,
    RecordTooLarge,
    RecordTooNew,
    RetriesExhausted,
    SnapshotAboveLatest,
    StaleTerm,
)
from compactlib.catalog.log import keys, recover
from compactlib.catalog.log.log_model import AlreadyCompacted, Appended, LogState, LostRace, SnapshotSaved
from compactlib.catalog.log.reclaim import CatalogReclaim, reclaim
from compactlib.catalog.log.records import Update
from compactlib.catalog.log.recover import recover_history
from compactlib.catalog.log.update_log import MAX_ATTEMPTS
from compactlib.catalog.log.verify import verify_log
from compactlib.catalog.schema.catalog import EMPTY, Change, DropObject, PutObject, SetDefaultZone
from compactlib.catalog.schema.descriptors import Index, IndexStatus, Schema, Table, Zone
from compactlib.catalog.schema.versions import CatalogVersions, RetainedVersions
from compactlib.errors import CompactlibError, CorruptData, InvalidInput, Unsupported
from compactlib.files.checksum import crc32
from compactlib.kv import Condition, Delete, KVStore, MemoryStore
from compactlib.kv.store import KVLimits
from compactlib.runtime import Budget
from tests.catalog.services import update
from tests.harness.catalog_logs import ID, log_in
from tests.harness.faulty_store import FaultyStore, KVFault
from tests.harness.steps import calls_of
from tests.tools.faults.kv_faults import KVRun, explore_kv_faults

PARTITION = b"catalog"


def filled(latest: int, store: KVStore | None = None, **options: int) -> UpdateLog:
    log = log_in(store, **options)
    for version in range(1, latest + 1):
        assert log.append(update(version)) == Appended(version)
    return log


def cut(log: UpdateLog, version: int, **held: Any) -> SnapshotSaved | AlreadyCompacted:
    return log.save_snapshot(recover_history(log).catalog(version), **held)


def names_in(log: UpdateLog, prefix: bytes = keys.UPDATES) -> list[int]:
    with log.store.scan(PARTITION, prefix=prefix) as entries:
        return [int(entry.key.split(b"/")[1]) for entry in entries]


def versions(view: RetainedVersions) -> list[int]:
    return [catalog.version for catalog in view]


# --- known answers
# ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [1, 2, 4, 8])
def test_the_first_append_may_have_any_number_and_the_others_follow_it(start: int) -> None:
    log = log_in()
    outcomes = [log.append(update(start + step)) for step in (0, 0, -1, 2, 1, 2)]
    lost = LostRace(start)
    assert outcomes == [Appended(start), lost, lost, lost, Appended(start + 1), Appended(start + 2)]
    assert [record.version for record in log.read(start, start + 2)] == [start, start + 1, start + 2]
    assert log.state() == LogState(start, start + 2, False)
    assert versions(recover_history(log)) == [0, start, start + 1, start + 2]


def test_after_a_snapshot_a_restart_sees_it_and_what_follows() -> None:
    store = FaultyStore(MemoryStore())
    log = filled(3, store)
    before = len([one for one in store.operations if one.changes])
    saved = cut(log, 2)
    assert isinstance(saved, SnapshotSaved)
    assert (saved.version, saved.previous, saved.deleted) == (2, 1, 1)
    assert len([one for one in store.operations if one.changes]) == before + 1
    again = UpdateLog(store)
    assert [type(record).__name__ for record in again.read(2, 3)] == ["Catalog", "Update"]
    assert versions(recover_history(again)) == [2, 3]


def test_a_snapshot_moves_forward_only() -> None:
    log = filled(5)
    cut(log, 2)
    assert isinstance(cut(log, 4), SnapshotSaved)
    assert cut(log, 4) == AlreadyCompacted(4)
    assert log.save_snapshot(recover_history(filled(5)).catalog(3)) == AlreadyCompacted(4)
    assert names_in(log) == [4, 5]
    assert log.state() == LogState(4, 5, True)


def test_a_snapshot_at_the_first_version_is_none() -> None:
    log = filled(1)
    assert cut(log, 1) == AlreadyCompacted(1)
    assert versions(recover_history(log)) == [0, 1]


def test_a_snapshot_keeps_its_own_activation_time_and_everything_after_it() -> None:
    log = filled(5)
    whole = recover_history(log)
    cut(log, 3)
    rest = recover_history(log)
    assert list(rest) == [catalog for catalog in whole if catalog.version >= 3]
    assert rest.activation(3) == 30


def test_a_snapshot_at_the_latest_version_leaves_a_log_that_can_be_appended_to() -> None:
    log = filled(3)
    assert isinstance(cut(log, 3), SnapshotSaved)
    assert log.append(update(4)) == Appended(4)
    assert versions(recover_history(log)) == [3, 4]


# --- races --------------------------------------------------------------------------------------------------------


def test_of_two_compactors_the_greater_target_stays() -> None:
    for first, second in ((2, 4), (4, 2)):
        log = filled(5)
        view = recover_history(log)
        log.save_snapshot(view.catalog(first))
        log.save_snapshot(view.catalog(second))
        assert log.state() == LogState(4, 5, True)
        assert versions(recover_history(log)) == [4, 5]


class Meddler(FaultyStore):
    """Lets somebody else act just before the n-th write."""

    def __init__(self, store: KVStore, number: int, meddle: Callable[[], object]) -> None:
        super().__init__(store)
        self._number = number
        self._meddle = meddle

    def transact(self, *args: Any, **named: Any) -> None:
        self._number -= 1
        if self._number == 0:
            self._meddle()
        super().transact(*args, **named)


def test_a_compactor_that_is_overtaken_gives_way() -> None:
    store = MemoryStore()
    other = filled(5, store)
    view = recover_history(other)
    late = UpdateLog(Meddler(store, 1, lambda: other.save_snapshot(view.catalog(4))))
    assert late.save_snapshot(view.catalog(3)) == AlreadyCompacted(4)
    further = UpdateLog(Meddler(store, 1, lambda: other.append(update(6))))
    assert isinstance(further.save_snapshot(view.catalog(5)), SnapshotSaved)
    assert versions(recover_history(other)) == [5, 6]


def test_a_compactor_that_overtakes_starts_from_where_the_other_left() -> None:
    store = MemoryStore()
    other = filled(5, store)
    view = recover_history(other)
    late = UpdateLog(Meddler(store, 1, lambda: other.save_snapshot(view.catalog(3))))
    saved = late.save_snapshot(view.catalog(4))
    assert isinstance(saved, SnapshotSaved)
    assert saved.previous == 3
    assert names_in(other) == [4, 5]


def test_a_store_that_always_conflicts_is_tried_ten_times() -> None:
    store = FaultyStore(MemoryStore(), lambda one: KVFault.CONFLICT if one.name == "transact" else None)
    with pytest.raises(RetriesExhausted) as caught:
        log_in(store).append(update(1))
    assert caught.value.attempts == MAX_ATTEMPTS == 10
    assert sum(one.name == "transact" for one in store.operations) == 10


def test_a_coordinator_of_an_earlier_term_is_refused() -> None:
    log = filled(5)
    assert isinstance(cut(log, 2, term=7), SnapshotSaved)
    with pytest.raises(StaleTerm) as caught:
        cut(log, 4, term=6)
    assert (caught.value.term, caught.value.current) == (6, 7)
    assert isinstance(cut(log, 3, term=7), SnapshotSaved)
    assert isinstance(cut(log, 4), SnapshotSaved)
    assert versions(recover_history(log)) == [4, 5]


def test_a_later_term_that_writes_in_between_is_seen() -> None:
    store = MemoryStore()
    other = filled(5, store)
    view = recover_history(other)
    late = UpdateLog(Meddler(store, 1, lambda: other.save_snapshot(view.catalog(2), term=8)))
    with pytest.raises(StaleTerm):
        late.save_snapshot(view.catalog(4), term=7)
    assert log_state(other) == (2, 5)


def log_state(log: UpdateLog) -> tuple[int, int]:
    state = log.state()
    assert state is not None
    return state.earliest, state.latest


def test_what_the_decision_was_based_on_is_checked_in_the_same_step() -> None:
    store = MemoryStore()
    store.set(b"host", b"epoch", b"1")
    seen = store.get(b"host", b"epoch").predicate
    log = filled(5, store)
    held = (Condition(b"host", b"epoch", seen),)
    assert isinstance(cut(log, 2, conditions=held), SnapshotSaved)
    store.set(b"host", b"epoch", b"2")
    with pytest.raises(CatalogMoved, match="epoch"):
        cut(log, 4, conditions=held)
    assert log_state(log) == (2, 5)


def test_a_writer_that_is_overtaken_has_lost() -> None:
    store = MemoryStore()
    other = filled(3, store)
    late = UpdateLog(Meddler(store, 1, lambda: other.append(update(4))))
    assert late.append(update(4, PutObject(Schema(99, "late")))) == LostRace(4)
    assert recover_history(other).catalog(4).find_schema("late") is None


@pytest.mark.parametrize("fault", [KVFault.UNKNOWN_DONE, KVFault.UNKNOWN_LOST, KVFault.UNKNOWN_LATE])
@pytest.mark.parametrize("version", [1, 4])
def test_a_writer_that_was_not_told_finds_out_whether_it_wrote(version: int, fault: KVFault) -> None:
    store = MemoryStore()
    filled(version - 1, store)
    first = [fault]
    faulty = FaultyStore(store, lambda one: first.pop() if one.name == "transact" and first else None)
    log = UpdateLog(faulty)
    assert log.append(update(version)) == Appended(version)
    faulty.settle()
    assert versions(recover_history(log)) == list(range(version + 1))
    assert log.append(update(version + 1)) == Appended(version + 1)


@pytest.mark.parametrize("fault", [KVFault.UNKNOWN_DONE, KVFault.UNKNOWN_LOST, KVFault.UNKNOWN_LATE])
def test_a_compactor_that_was_not_told_finds_out_whether_it_cut(fault: KVFault) -> None:
    store = MemoryStore()
    view = recover_history(filled(5, store))
    first = [fault]
    faulty = FaultyStore(store, lambda one: first.pop() if one.name == "transact" and first else None)
    saved = UpdateLog(faulty).save_snapshot(view.catalog(4), term=2)
    assert isinstance(saved, SnapshotSaved)
    faulty.settle()
    assert versions(recover_history(UpdateLog(store))) == [4, 5]


def test_a_term_that_is_claimed_in_between_is_seen() -> None:
    store, elsewhere = MemoryStore(), MemoryStore()
    view = recover_history(filled(5, store))
    cut(filled(5, elsewhere), 2, term=8)
    later = elsewhere.get(PARTITION, keys.TERM).value
    late = UpdateLog(Meddler(store, 1, lambda: store.set(PARTITION, keys.TERM, later)))
    with pytest.raises(StaleTerm):
        late.save_snapshot(view.catalog(4), term=7)


def test_a_snapshot_whose_pieces_are_gone_is_not_committed() -> None:
    store = MemoryStore()
    view = recover_history(filled(40, store))

    def sweep() -> None:
        store.delete(PARTITION, next(iter(store.scan(PARTITION, prefix=keys.CHUNKS))).key)

    # The pieces are one write, the cut is the next.
    late = UpdateLog(Meddler(store, 2, sweep), chunk_bytes=1024)
    with pytest.raises(RecordMissing, match="chunk/"):
        late.save_snapshot(view.catalog(30))
    assert log_state(late) == (1, 40)


def test_pieces_that_somebody_is_writing_right_now_are_no_garbage() -> None:
    store = MemoryStore()
    log = filled(5, store)
    store.set(PARTITION, keys.chunk_key(4, "0" * 16, 0), b"a piece")
    store.set(PARTITION, keys.chunk_key(3, "0" * 16, 0), b"a piece of an attempt that lost")
    cut(log, 3)
    reclaim(log)
    assert names_in(log, keys.CHUNKS) == [4]


# --- sizes --------------------------------------------------------------------------------------------------------


def test_a_large_snapshot_is_written_in_pieces() -> None:
    log = filled(40, chunk_bytes=1024)
    whole = recover_history(log)
    cut(log, 30)
    assert len(names_in(log, keys.CHUNKS)) >= 3
    assert list(recover_history(log)) == [catalog for catalog in whole if catalog.version >= 30]
    cut(log, 35)
    assert reclaim(log).keys >= 3
    assert set(names_in(log, keys.CHUNKS)) == {35}
    assert list(recover_history(log)) == [catalog for catalog in whole if catalog.version >= 35]
    assert reclaim(log) == CatalogReclaim(0, 0)


def test_a_record_above_the_limit_is_refused() -> None:
    log = log_in(max_record_bytes=1024)
    with pytest.raises(RecordTooLarge) as caught:
        log.append(update(1, *(PutObject(Schema(number, f"schema {number}")) for number in range(100))))
    assert caught.value.limit == 1024
    assert "split the batch, or raise max_record_bytes" in str(caught.value)
    assert log.state() is None


@pytest.mark.parametrize("zone", [
    Zone(id=1, name="z", node_filter="\ud800"), Zone(id=1, name="z", storage_profiles=("disk", "a\ud800b"))])
def test_text_that_utf_8_does_not_hold_is_refused_and_nothing_is_written(zone: Zone) -> None:
    log = log_in()
    with pytest.raises(InvalidInput, match="not valid Unicode"):
        log.append(update(1, PutObject(zone)))
    assert log.state() is None
    log.append(update(1, PutObject(attrs.evolve(zone, node_filter="\U0001f600", storage_profiles=("b",)))))


def small_steps(max_transact: int, predicates: Any = "version") -> MemoryStore:
    return MemoryStore(predicates=predicates, limits=KVLimits(max_partition_bytes=100, max_key_bytes=100,
                                                              max_value_bytes=1 << 20, max_transact=max_transact))


def test_what_one_step_cannot_delete_is_reclaimed_after_it() -> None:
    log = filled(40, small_steps(10))
    whole = recover_history(log)
    saved = cut(log, 30)
    assert isinstance(saved, SnapshotSaved)
    assert saved.deleted < 10
    assert list(recover_history(log)) == [catalog for catalog in whole if catalog.version >= 30]
    assert reclaim(log).keys == 29 - saved.deleted
    assert names_in(log) == list(range(30, 41))


def test_a_store_that_changes_too_few_keys_is_refused() -> None:
    with pytest.raises(InvalidInput, match="the log needs 8"):
        UpdateLog(small_steps(7))
    with pytest.raises(InvalidInput, match="chunk_bytes"):
        UpdateLog(MemoryStore(), chunk_bytes=10)


def test_a_snapshot_of_more_pieces_than_a_step_takes_is_refused() -> None:
    log = filled(60, small_steps(10), chunk_bytes=1024)
    with pytest.raises(RecordTooLarge, match="in one step: raise chunk_bytes"):
        cut(log, 60)
    assert log_state(log) == (1, 60)


def test_a_snapshot_above_the_limit_is_refused_with_advice_that_can_be_followed() -> None:
    store = MemoryStore()
    filled(60, store)
    with pytest.raises(RecordTooLarge, match="whole catalog: raise max_record_bytes") as caught:
        cut(UpdateLog(store, max_record_bytes=1024), 60)
    assert "split" not in str(caught.value)
    small = UpdateLog(store, max_record_bytes=1024)
    catalog = recover_history(small).catalog(60)
    with pytest.raises(RecordTooLarge, match="raise max_record_bytes"):
        small.snapshot_bytes(catalog)
    cut(UpdateLog(store, max_record_bytes=caught.value.size), 60)


def test_a_snapshot_above_the_latest_version_is_refused() -> None:
    view = recover_history(filled(5))
    with pytest.raises(SnapshotAboveLatest) as caught:
        filled(3).save_snapshot(view.catalog(5))
    assert (caught.value.version, caught.value.latest) == (5, 3)
    with pytest.raises(SnapshotAboveLatest):
        log_in().save_snapshot(view.catalog(5))


# --- damage -------------------------------------------------------------------------------------------------------


def all_keys(store: KVStore) -> list[bytes]:
    return [entry.key for entry in store.scan(PARTITION)]


def a_store() -> MemoryStore:
    store = MemoryStore()
    cut(filled(30, store, chunk_bytes=1024), 25, term=3)
    return store


KEYS = all_keys(a_store())
READ_KEYS = [key for key in KEYS if key != keys.TERM]


@pytest.mark.parametrize("key", READ_KEYS, ids=bytes.decode)
def test_each_missing_record_is_named(key: bytes) -> None:
    store = a_store()
    store.delete(PARTITION, key)
    if key == keys.FORMAT:
        UpdateLog(store).prepare()  # a mark that says no more than that this is a catalog
        return
    with pytest.raises(RecordMissing) as caught:
        recover_history(UpdateLog(store))
    assert caught.value.key == key.decode()


def read_everything(store: MemoryStore) -> None:
    log = UpdateLog(store)
    log.prepare()
    view = recover_history(log)
    log.save_snapshot(view.catalog(view.latest), term=9)


@pytest.mark.parametrize("between", [1, 3, 1000])
def test_what_a_recovery_has_not_made_is_made_when_it_is_asked_for(
        between: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recover, "UPDATES_BETWEEN", between)
    log = filled(40)
    assert isinstance(cut(log, 5), SnapshotSaved)
    catalogs = list(recover_history(log))
    assert [catalog.version for catalog in catalogs] == list(range(5, 41))
    made = [catalogs[0]]
    for known in log.read(6, 40):
        assert isinstance(known, Update)
        made.append(known.applied_to(made[-1]))
    assert catalogs == made
    for catalog in catalogs:
        catalog.audit()
        assert recover_history(log).catalog(catalog.version) == recover_history(log).at(catalog.activation) == catalog
    for first in (5, 20, 40):
        begun = CatalogVersions(recover_history(log)).restart_from(catalogs[first - 5])
        assert list(begun) == list(recover_history(log).from_version(first)) == catalogs[first - 5:]
    with pytest.raises(InvalidInput, match="begins with"):
        RetainedVersions([update(5)])
    history = recover_history(log)
    assert history.between(catalogs[2].activation, catalogs[9].activation) == catalogs[2:10]
    with ThreadPoolExecutor(4) as threads:
        for history in (recover_history(log) for _ in range(20)):
            asked = threads.map(history.catalog, [*range(40, 4, -1), *range(5, 41)])
            assert list(asked) == [*reversed(catalogs), *catalogs]
        history.audit()


def test_a_recovery_leaves_the_collector_of_cycles_to_the_host() -> None:
    before = gc.isenabled(), gc.get_threshold()
    seen = []

    class Watched(UpdateLog):
        def stored(self, first: int, last: int) -> Iterator[tuple[int, bytes, bytes]]:
            for stored in super().stored(first, last):
                seen.append((gc.isenabled(), gc.get_threshold()))
                yield stored

    recover_history(Watched(filled(3).store))
    assert seen == [before] * 3


def test_a_recovery_of_four_times_the_versions_takes_four_times_the_steps() -> None:
    few, many = (calls_of(partial(recover_history, filled(count))).total() for count in (100, 400))
    assert many <= 4.8 * few
    assert many <= 400 * 85, "steps for each version"


def test_a_verify_of_four_times_the_versions_takes_four_times_the_steps() -> None:
    def steps(count: int) -> int:
        log = filled(count)
        history = recover_history(log)
        return calls_of(lambda: verify_log(log, history, Budget())).total()

    assert steps(800) <= 4.8 * steps(200)


def damaged(store: MemoryStore, key: bytes, record: bytes) -> CompactlibError:
    store.set(PARTITION, key, record)
    with pytest.raises((CorruptData, Unsupported)) as caught:
        read_everything(store)
    assert getattr(caught.value, "key", "") == key.decode()
    return caught.value


@pytest.mark.parametrize("key", KEYS, ids=bytes.decode)
def test_each_damaged_record_is_named(key: bytes) -> None:
    record = a_store().get(PARTITION, key).value
    for place in {0, 4, 6, 8, 12, len(record) // 2, len(record) - 1}:
        flipped = bytearray(record)
        flipped[place] ^= 0x41
        assert type(damaged(a_store(), key, bytes(flipped))) is RecordDamaged
    for length in (0, 3, 15, len(record) - 1):
        assert type(damaged(a_store(), key, record[:length])) is RecordDamaged


@pytest.mark.parametrize("key", KEYS, ids=bytes.decode)
def test_each_record_of_a_newer_format_is_named(key: bytes) -> None:
    record = a_store().get(PARTITION, key).value
    newer = record[:4] + b"\2\0" + record[6:-4]
    error = damaged(a_store(), key, newer + crc32(newer, crc32(key)).to_bytes(4, "little"))
    assert isinstance(error, RecordTooNew)
    assert (error.found, error.supported) == (2, 1)
    assert str(error) == f"{key.decode()}: catalog record version 2; this release reads 1: upgrade"


def test_a_record_at_another_key_is_damaged() -> None:
    store = a_store()
    other = store.get(PARTITION, keys.update_key(26)).value
    damaged(store, keys.update_key(27), other)


def test_an_older_mark_of_the_latest_version_does_not_hide_what_is_above_it() -> None:
    store = MemoryStore()
    log = filled(3, store)
    old = store.get(PARTITION, keys.LATEST).value
    log.append(update(4))
    store.set(PARTITION, keys.LATEST, old)
    with pytest.raises(RecordDamaged) as caught:
        recover_history(log)
    assert caught.value.key == "latest"


def test_a_mark_of_the_earliest_version_above_the_latest_is_damage() -> None:
    store, other = MemoryStore(), MemoryStore()
    filled(2, store)
    cut(filled(5, other), 4)
    store.set(PARTITION, keys.EARLIEST, other.get(PARTITION, keys.EARLIEST).value)
    with pytest.raises(RecordDamaged) as caught:
        recover_history(UpdateLog(store))
    assert caught.value.key == "latest"


def test_both_marks_missing_is_no_empty_log() -> None:
    store = MemoryStore()
    log = filled(2, store)
    store.transact(deletes=[Delete(PARTITION, keys.LATEST), Delete(PARTITION, keys.EARLIEST)])
    with pytest.raises(RecordMissing) as caught:
        recover_history(log)
    assert caught.value.key == "latest"


ZONE, INDEX = Zone(id=2, name="Z"), Index(id=4, table_id=3, name="I", columns=("ID",))
TABLE = Table(id=3, schema_id=1, name="T", zone_id=2, columns=(ID,), primary_key=("ID",), primary_index_id=4)


@pytest.mark.parametrize("wrong", [
    (DropObject("index", 5),), (DropObject("view", 3),), (PutObject(attrs.evolve(INDEX, id=5, table_id=9)),),
    (DropObject("table", 3),), (DropObject("table", 3), DropObject("index", 4)),
    (DropObject("table", 3), PutObject(INDEX))])
@pytest.mark.parametrize("above", [0, 3])
def test_an_update_that_does_not_fit_what_was_there_is_damage(wrong: tuple[Change, ...], above: int) -> None:
    log = log_in()
    for version, changes in enumerate([(PutObject(Schema(1, "S")), PutObject(ZONE), PutObject(TABLE),
                                        PutObject(INDEX)), wrong, *[(PutObject(ZONE),)] * above], 1):
        log.append(update(version, *changes))
    with pytest.raises(RecordDamaged) as caught:
        recover_history(log)
    assert caught.value.key.startswith("update/")


def test_objects_come_and_go_in_a_history_that_is_recovered() -> None:
    log = log_in()
    building = attrs.evolve(INDEX, status=IndexStatus.BUILDING)
    made = [EMPTY]
    for version, changes in enumerate([
            (PutObject(Schema(1, "S")), PutObject(ZONE), SetDefaultZone(2), PutObject(TABLE), PutObject(INDEX)),
            (PutObject(building), PutObject(attrs.evolve(INDEX, id=5, name="J"))),
            (PutObject(attrs.evolve(TABLE, name="U", zone_id=6)), PutObject(attrs.evolve(ZONE, id=6, name="Y"))),
            (DropObject("index", 4),), (DropObject("index", 5), DropObject("table", 3)),
            (SetDefaultZone(None), DropObject("zone", 2), DropObject("schema", 1))], 1):
        log.append(update(version, *changes))
        made.append(made[-1].apply(changes, version=version, commit=10 * version, activation=10 * version,
                                   next_id=1000 + version))
        assert list(recover_history(log)) == made
        assert recover_history(log).catalog(version).building == made[-1].building
    assert len(made[-1].descriptors()) == 1


def test_a_foreign_key_among_the_updates_is_damage() -> None:
    store = MemoryStore()
    log = filled(2, store)
    store.set(PARTITION, b"update/xyz", b"")
    with pytest.raises(RecordDamaged) as caught:
        recover_history(log)
    assert caught.value.key == "update/xyz"


def test_the_mark_of_a_catalog_is_written_once() -> None:
    store = FaultyStore(MemoryStore())
    log_in(store)
    log_in(store)
    assert sum(one.changes for one in store.operations) == 1


# --- a crash, a failure or a doubt at every step --------------------------------------------------------------------


@pytest.mark.parametrize(("max_transact", "predicates"), [(10, "version"), (100_000, "version"), (100_000, "value")])
def test_a_fault_at_any_step_loses_nothing_and_shortens_nothing(max_transact: int, predicates: str) -> None:
    whole = recover_history(filled(14))

    def prepared() -> MemoryStore:
        store = small_steps(max_transact, predicates)
        filled(12, store, chunk_bytes=1024)
        return store

    def run(store: FaultyStore) -> None:
        log = log_in(store, chunk_bytes=1024, seed=2)
        for version in (13, 14):
            if isinstance(log.append(update(version)), Appended):
                store.acknowledge(version)
        if isinstance(log.save_snapshot(whole.catalog(12), term=1), SnapshotSaved):
            store.acknowledge(-12)
        reclaim(log)

    def check(store: KVStore, run: KVRun) -> None:
        log = log_in(store, chunk_bytes=1024, seed=3)
        view = recover_history(log)
        assert view.earliest in (0, 12)
        assert view.latest in (12, 13, 14)
        assert list(view) == [catalog for catalog in whole if view.earliest <= catalog.version <= view.latest]
        for acknowledged in run.acknowledged:
            assert view.earliest == -acknowledged if acknowledged < 0 else view.latest >= acknowledged
        while view.latest < 14:
            assert log.append(update(view.latest + 1)) == Appended(view.latest + 1)
            view = recover_history(log)
        log.save_snapshot(whole.catalog(13))
        reclaim(log)
        assert list(recover_history(log)) == [catalog for catalog in whole if catalog.version >= 13]
        assert names_in(log) == [13, 14]
        assert set(names_in(log, keys.CHUNKS)) <= {13}

    report = explore_kv_faults(prepared, run, check, list(KVFault))
    assert report.operations >= 15
    assert report.runs >= 5 * report.operations
