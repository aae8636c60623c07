# SPDX-License-Identifier: Apache-2.0
"""The failing key-value store does each fault as it says, and the exploration finds a protocol that breaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactlib.errors import Closed, CompactlibError
from compactlib.kv import (
    EXISTS,
    Condition,
    Delete,
    KeyNotFound,
    KVStore,
    MemoryStore,
    OutcomeUnknown,
    PredicateFailed,
    Put,
    SlowDown,
    StoreFailed,
)
from compactlib.testing import FaultyStore, KVFault, KVStoreConformance, explore_kv_faults
from compactlib.testing.faults.kv_faults import KVCrash, KVOperation, KVRun, fault_at

P = b"p"


class TestFaultyStoreWithoutFaults(KVStoreConformance):
    def make_store(self, folder: Path, page_size: int | None = None) -> KVStore:
        return FaultyStore(MemoryStore())


def value_of(store: KVStore, key: bytes = b"k") -> bytes | None:
    try:
        return store.get(P, key).value
    except KeyNotFound:
        return None


def test_operations_are_counted_and_named() -> None:
    store = FaultyStore(MemoryStore())
    store.set(P, b"a", b"1")
    store.set_if(P, b"b", b"2", None)
    store.get(P, b"a")
    store.transact([Condition(P, b"a", EXISTS)], [Put(P, b"c", b"3")], [Delete(P, b"b")])
    store.delete(P, b"absent")
    store.delete_if(P, b"a", EXISTS)
    with store.scan(P, page_size=1) as entries:
        assert len(list(entries)) == 1
    named = [(operation.number, operation.name, operation.key) for operation in store.operations]
    assert named == [(1, "set", b"a"), (2, "set_if", b"b"), (3, "get", b"a"), (4, "transact", b"a"),
                     (5, "delete", b"absent"), (6, "delete_if", b"a"), (7, "scan", b""), (8, "scan", b"c\x00")]
    assert [operation.number for operation in store.operations if not operation.changes] == [3, 7, 8]
    assert [operation.number for operation in store.operations if operation.conditional] == [2, 4, 6]
    assert str(store.operations[0]) == "operation 1: set b'p' b'a'"


@pytest.mark.parametrize(("fault", "error", "value"), [
    (KVFault.SLOW_DOWN, SlowDown, b"old"),
    (KVFault.FAIL, StoreFailed, b"old"),
    (KVFault.CONFLICT, PredicateFailed, b"old"),
    (KVFault.CRASH_BEFORE, KVCrash, b"old"),
    (KVFault.CRASH_AFTER, KVCrash, b"new"),
    (KVFault.UNKNOWN_DONE, OutcomeUnknown, b"new"),
    (KVFault.UNKNOWN_LOST, OutcomeUnknown, b"old"),
    (KVFault.UNKNOWN_LATE, OutcomeUnknown, b"old"),
])
def test_each_fault_of_a_write(fault: KVFault, error: type[BaseException], value: bytes) -> None:
    behind = MemoryStore()
    behind.set(P, b"k", b"old")
    store = FaultyStore(behind, fault_at(1, fault))
    with pytest.raises(error) as raised:
        store.set_if(P, b"k", b"new", EXISTS)
    assert type(raised.value) is error
    assert value_of(behind) == value
    if error is KVCrash:
        for call in (lambda: store.get(P, b"k"), lambda: store.set(P, b"k", b"v"), lambda: store.scan(P)):
            with pytest.raises(KVCrash):
                call()
        assert value_of(behind) == value


@pytest.mark.parametrize("fault", [KVFault.UNKNOWN_DONE, KVFault.UNKNOWN_LOST, KVFault.UNKNOWN_LATE, KVFault.FAIL])
def test_a_read_that_times_out_has_failed(fault: KVFault) -> None:
    store = FaultyStore(MemoryStore(), fault_at(1, fault))
    with pytest.raises(StoreFailed) as raised:
        store.get(P, b"k")
    assert type(raised.value) is StoreFailed


def test_a_conflict_is_only_for_what_has_a_condition() -> None:
    store = FaultyStore(MemoryStore(), lambda operation: KVFault.CONFLICT)
    store.set(P, b"k", b"v")
    assert store.get(P, b"k").value == b"v"
    with pytest.raises(PredicateFailed):
        store.delete_if(P, b"k", EXISTS)


def test_a_late_write_arrives_after_the_next_operation_and_may_fail_by_itself() -> None:
    behind = MemoryStore()
    store = FaultyStore(behind, fault_at(1, KVFault.UNKNOWN_LATE))
    buffer = bytearray(b"late")
    with pytest.raises(OutcomeUnknown):
        store.set(P, b"k", buffer)
    buffer[:] = b"xxxx"
    assert value_of(store) is None
    assert value_of(store) == b"late"
    store = FaultyStore(behind, fault_at(1, KVFault.UNKNOWN_LATE))
    with pytest.raises(OutcomeUnknown):
        store.set_if(P, b"k", b"created", None)
    store.settle()
    assert value_of(behind) == b"late"


def test_a_page_of_a_scan_can_fail_and_be_asked_for_again() -> None:
    behind = MemoryStore()
    for number in range(10):
        behind.set(P, b"%d" % number, b"v")
    store = FaultyStore(behind, fault_at(2, KVFault.SLOW_DOWN))
    entries = store.scan(P, page_size=2)
    found = []
    while True:
        try:
            found.append(next(entries).key)
        except SlowDown:
            continue
        except StopIteration:
            break
    assert found == [b"%d" % number for number in range(10)]
    assert entries.page_loads == 3


def test_it_closes_without_the_store_behind_it() -> None:
    behind = MemoryStore()
    store = FaultyStore(behind)
    store.close()
    with pytest.raises(Closed):
        store.get(P, b"k")
    behind.set(P, b"k", b"v")


# -- exploring

def with_coin() -> KVStore:
    store = MemoryStore()
    store.set(P, b"from", b"coin")
    return store


def coins(store: KVStore) -> int:
    return sum(entry.value == b"coin" for entry in store.scan(P))


def move_badly(store: FaultyStore) -> None:
    store.delete(P, b"from")
    store.set(P, b"to", b"coin")
    store.acknowledge("moved")


def move_well(store: FaultyStore) -> None:
    try:
        held = store.get(P, b"from")
    except KeyNotFound:
        return
    for _ in range(3):
        try:
            store.transact([Condition(P, b"from", held.predicate)], [Put(P, b"to", b"coin")], [Delete(P, b"from")])
            break
        except PredicateFailed:
            if value_of(store, b"to") == b"coin":
                break
        except CompactlibError:
            pass
    else:
        return
    store.acknowledge("moved")


def check_coin(store: KVStore, run: KVRun) -> None:
    assert coins(store) == 1
    if run.acknowledged:
        assert value_of(store, b"to") == b"coin"


def test_a_protocol_that_breaks_is_found_with_the_fault_that_breaks_it() -> None:
    with pytest.raises(AssertionError) as found:
        explore_kv_faults(with_coin, move_badly, check_coin, [KVFault.CRASH_AFTER])
    assert found.value.__notes__ == ["with the fault 'crash after' at operation 1: delete b'p' b'from', which ended in "
                                     "KVCrash(\"operation 1: delete b'p' b'from'\")"]


def test_a_protocol_that_holds_is_run_for_each_fault_and_operation() -> None:
    report = explore_kv_faults(with_coin, move_well, check_coin)
    # A conflict can only meet the second operation.
    assert (report.operations, report.runs) == (2, 2 * len(KVFault) - 1)


def test_work_that_differs_from_run_to_run_is_found() -> None:
    keys = iter([b"1", b"2", b"3"])
    with pytest.raises(AssertionError, match="the work is not deterministic"):
        explore_kv_faults(MemoryStore, lambda store: store.set(P, next(keys), b"v"), lambda store, run: None)


def test_an_error_that_is_not_the_library_s_is_not_taken_for_an_answer() -> None:
    def work(store: FaultyStore) -> None:
        try:
            store.get(P, b"from")
        except CompactlibError:
            raise ZeroDivisionError from None

    with pytest.raises(ZeroDivisionError) as found:
        explore_kv_faults(with_coin, work, check_coin, [KVFault.FAIL])
    assert "with the fault 'refused' at operation 1" in found.value.__notes__[0]


def test_the_choice_sees_each_operation() -> None:
    seen: list[KVOperation] = []

    def choose(operation: KVOperation) -> None:
        seen.append(operation)

    store = FaultyStore(MemoryStore(), choose)
    store.set(P, b"k", b"v")
    assert seen == store.operations
