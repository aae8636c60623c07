# SPDX-License-Identifier: Apache-2.0
"""One plan over disks, key-value stores and object stores: each fault does what the table in docs/testing.md says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from compactlib.errors import CompactlibError, DiskFull, InvalidInput, StorageError
from compactlib.files import LocalFiles, write_durably
from compactlib.kv import EXISTS, MemoryStore
from compactlib.kv.errors import OutcomeUnknown, PredicateFailed, SlowDown, StoreFailed
from compactlib.objects import MemoryObjects
from compactlib.objects.errors import ObjectStoreFailed
from compactlib.testing import FailingFiles, Fault
from compactlib.testing.faults.fault_plans import FILE_FAULTS, OBJECT_FAULTS, STORE_FAULTS, FaultPlan
from compactlib.testing.faults.kv_faults import KVCrash
from compactlib.testing.faults.objects_faults import FaultyObjects
from compactlib.testing.faults.plan import Crash
from compactlib.testing.strategies import fault_plans


def failure_of(call: Callable[[], object]) -> BaseException | None:
    try:
        call()
    except (Crash, CompactlibError) as error:
        return error
    return None


# ------------------------------------------------------------------------------------------------------------- disks


@pytest.mark.parametrize(("fault", "kind", "left"), [
    (Fault.REFUSED, StorageError, b""), (Fault.TORN, StorageError, b"ab"), (Fault.FULL, DiskFull, b""),
    (Fault.CRASH_BEFORE, Crash, b""), (Fault.CRASH_AFTER, Crash, b"abcd"), (Fault.UNKNOWN_DONE, StorageError, b"abcd"),
    (Fault.SLOW_DOWN, type(None), b"abcd"), (Fault.CONFLICT, type(None), b"abcd")])
def test_a_write_on_a_disk_meets_its_fault(fault: Fault, kind: type[object], left: bytes, tmp_path: Path) -> None:
    files = FaultPlan.of({2: fault}).over_files()
    out = files.create(tmp_path / "a")
    assert isinstance(failure_of(lambda: out.write_at(0, [b"ab", b"cd"])), kind)
    assert (tmp_path / "a").read_bytes() == left
    assert files.count == 2
    out.close()
    assert (fault in FILE_FAULTS) == (kind is not type(None))


def test_a_full_disk_stays_full_for_what_needs_space(tmp_path: Path) -> None:
    files = FaultPlan.of({1: Fault.FULL}).over_files()
    (tmp_path / "old").write_bytes(b"old")
    assert isinstance(failure_of(lambda: files.make_folder(tmp_path / "folder")), DiskFull)
    assert isinstance(failure_of(lambda: files.create(tmp_path / "new")), DiskFull)
    files.rename(tmp_path / "old", tmp_path / "renamed")
    files.unlink(tmp_path / "renamed")
    assert list(tmp_path.iterdir()) == []


def test_after_a_crash_the_disk_does_nothing_more(tmp_path: Path) -> None:
    files = FaultPlan.of({2: Fault.CRASH_AFTER}).over_files()
    out = files.create(tmp_path / "a")
    for call in (lambda: files.sync_folder(tmp_path), lambda: files.unlink(tmp_path / "a"), out.sync,
                 lambda: files.open(tmp_path / "a"), lambda: files.create(tmp_path / "b")):
        assert isinstance(failure_of(call), Crash)
    out.close()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@settings(max_examples=60)
@given(fault_plans(FILE_FAULTS, operations=10))
def test_a_durable_write_survives_any_plan(tmp_path_factory: pytest.TempPathFactory, plan: FaultPlan) -> None:
    place = tmp_path_factory.mktemp("disk") / "state"
    place.write_bytes(b"old")
    failure = failure_of(lambda: write_durably(plan.over_files(), place, [b"new", b"er"]))
    assert place.read_bytes() in ((b"newer",) if failure is None else (b"old", b"newer"))
    write_durably(LocalFiles(), place, [b"again"])
    assert place.read_bytes() == b"again"


def test_a_plan_and_a_single_failure_work_together(tmp_path: Path) -> None:
    files = FailingFiles(fail_at=1, faults=FaultPlan.of({2: Fault.REFUSED}).at)
    assert isinstance(failure_of(lambda: files.make_folder(tmp_path / "a")), DiskFull)
    assert isinstance(failure_of(lambda: files.make_folder(tmp_path / "a")), StorageError)
    files.make_folder(tmp_path / "a")


# -------------------------------------------------------------------------------------------------- key-value stores


@pytest.mark.parametrize(("fault", "kind", "left"), [
    (Fault.REFUSED, StoreFailed, b"old"), (Fault.SLOW_DOWN, SlowDown, b"old"),
    (Fault.CONFLICT, PredicateFailed, b"old"), (Fault.CRASH_BEFORE, KVCrash, b"old"),
    (Fault.CRASH_AFTER, KVCrash, b"new"),
    (Fault.UNKNOWN_DONE, OutcomeUnknown, b"new"), (Fault.UNKNOWN_LOST, OutcomeUnknown, b"old"),
    (Fault.UNKNOWN_LATE, OutcomeUnknown, b"old"), (Fault.TORN, type(None), b"new"), (Fault.FULL, type(None), b"new")])
def test_a_write_of_a_store_meets_its_fault(fault: Fault, kind: type[object], left: bytes) -> None:
    behind = MemoryStore()
    behind.set(b"p", b"k", b"old")
    store = FaultPlan.of({1: fault}).over_store(behind)
    assert isinstance(failure_of(lambda: store.set_if(b"p", b"k", b"new", EXISTS)), kind)
    assert behind.get(b"p", b"k").value == left
    store.settle()
    assert behind.get(b"p", b"k").value == (b"new" if fault is Fault.UNKNOWN_LATE else left)
    assert (fault in STORE_FAULTS) == (kind is not type(None))


# ----------------------------------------------------------------------------------------------------- object stores


@pytest.mark.parametrize(("fault", "kind", "created"), [
    (Fault.REFUSED, ObjectStoreFailed, False), (Fault.CRASH_BEFORE, Crash, False), (Fault.CRASH_AFTER, Crash, True),
    (Fault.UNKNOWN_DONE, ObjectStoreFailed, True), (Fault.UNKNOWN_LOST, ObjectStoreFailed, False),
    (Fault.TORN, type(None), True), (Fault.SLOW_DOWN, type(None), True)])
def test_a_creation_meets_its_fault(fault: Fault, kind: type[object], created: bool) -> None:
    behind = MemoryObjects()
    store = FaultPlan.of({1: fault}).over_objects(behind)
    assert isinstance(failure_of(lambda: store.create("a", b"data")), kind)
    assert [info.key for info in behind.list()] == (["a"] if created else [])
    assert [str(request) for request in store.requests] == ["request 1: create 'a'"]
    assert (fault in OBJECT_FAULTS) == (kind is not type(None))


def test_after_a_crash_the_object_store_does_nothing_more() -> None:
    store = FaultPlan.of({1: Fault.CRASH_BEFORE}).over_objects(MemoryObjects())
    calls: list[Callable[[], Any]] = [
        lambda: store.get("a"), lambda: store.get_range("a", 0, 1), lambda: store.info("a"), lambda: store.list(),
        lambda: store.delete("a")]
    assert all(isinstance(failure_of(call), Crash) for call in calls)
    assert repr(store) == "FaultyObjects(<MemoryObjects: 0 objects>, 1 requests, crashed=True)"


def test_without_faults_everything_goes_through() -> None:
    with FaultyObjects(MemoryObjects()) as store:
        store.create("a", b"data")
        assert (store.get("a"), store.get_range("a", 1, 2), store.info("a").size_bytes) == (b"data", b"at", 4)
        assert [info.key for info in store.list()] == ["a"]
        store.delete("a")
        assert list(store.list()) == []


# ------------------------------------------------------------------------------------------------------------- plans


def test_a_plan_knows_its_faults() -> None:
    plan = FaultPlan.of({5: Fault.FULL, 2: Fault.TORN})
    assert plan.faults == ((2, Fault.TORN), (5, Fault.FULL))
    assert [plan.at(number) for number in (1, 2, 5)] == [None, Fault.TORN, Fault.FULL]
    assert set(Fault) == {*FILE_FAULTS, *STORE_FAULTS, *OBJECT_FAULTS}


@pytest.mark.parametrize("faults", [((0, Fault.FULL),), ((2, Fault.FULL), (2, Fault.TORN)),
                                    ((2, Fault.FULL), (1, Fault.TORN))])
def test_a_plan_out_of_order_is_refused(faults: tuple[tuple[int, Fault], ...]) -> None:
    with pytest.raises(InvalidInput, match="that ascend"):
        FaultPlan(faults)
