# SPDX-License-Identifier: Apache-2.0
"""The low watermark: it rises only, waits for readers, survives restarts, and counts from the start."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from compactlib.catalog import HybridClock, LowWatermark
from compactlib.catalog.errors import BelowLowWatermark, RecordDamaged
from compactlib.catalog.log import keys
from compactlib.catalog.model.timestamp import physical_ms, timestamp
from compactlib.catalog.model.values import Factor, Floor, Unavailable, Watermark
from compactlib.catalog.schema.versions import RetainedVersions
from compactlib.clock import ManualClock
from compactlib.errors import InvalidInput
from compactlib.kv import KVStore, MemoryStore, OutcomeUnknown, PredicateFailed
from compactlib.kv.store import Predicate
from compactlib.outcome import Done, Failed, Skipped
from tests.harness.faulty_store import FaultyStore, KVFault, KVOperation
from tests.tools.faults.kv_faults import KVRun, explore_kv_faults

if TYPE_CHECKING:
    from typing_extensions import Buffer


def watermark(store: KVStore | None = None, now: float = 1000.0, **options: float) -> LowWatermark:
    return LowWatermark(MemoryStore() if store is None else store, "A", HybridClock(ManualClock(now)), **options)  # type: ignore[arg-type]


def test_a_candidate_is_now_less_the_availability_and_the_skew() -> None:
    candidate = watermark(data_availability_seconds=600).candidate()
    assert candidate is not None
    assert physical_ms(candidate) == 1_000_000 - 600_000 - 500
    assert watermark(now=600.0).candidate() is None


def test_it_rises_only() -> None:
    low = watermark()
    assert low.need(RetainedVersions()) == Unavailable(Factor.LOW_WATERMARK, "there has been none yet")
    assert low.advance(50) == Done(Watermark(50))
    for time in (50, 49, 1):
        assert isinstance(low.advance(time), Skipped)
    assert low.need(RetainedVersions()) == Floor(Factor.LOW_WATERMARK, 50)
    assert isinstance(low.advance(), Done)
    assert low.value.time == low.candidate() or physical_ms(low.value.time or 0) == 399_500
    low.audit()


def test_without_availability_behind_it_there_is_nothing_to_raise() -> None:
    assert isinstance(watermark(now=1.0).advance(), Skipped)


def test_it_waits_for_the_readers_below_it_and_refuses_new_ones() -> None:
    low = watermark()
    told: list[int] = []
    low.listen(told.append)
    low.advance(10)
    low.lock("r1", 20)
    low.lock("r2", 40)
    low.lock("r3", 50)
    assert low.advance(50) == Done(Watermark(10, pending=50))
    low.audit()
    with pytest.raises(BelowLowWatermark) as caught:
        low.lock("late", 45)
    assert (caught.value.time, caught.value.low_watermark) == (45, 50)
    low.lock("fine", 50)
    assert isinstance(low.advance(60), Skipped)
    assert low.need(RetainedVersions()) == Floor(Factor.LOW_WATERMARK, 10)
    low.unlock("r1")
    assert low.value == Watermark(10, pending=50)
    low.unlock("r2")
    assert low.value == Watermark(50)
    assert told == [10, 50]
    low.unlock("r2")
    low.unlock("never there")
    low.audit()


def test_a_reader_gives_its_lock_back_also_when_it_fails() -> None:
    low = watermark()

    def fails() -> None:
        with low.reading("r", 20):
            low.advance(30)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert low.value == Watermark(30)


def test_a_reader_has_one_lock() -> None:
    low = watermark()
    low.lock("r", 20)
    with pytest.raises(InvalidInput, match="holds a lock already"):
        low.lock("r", 30)


def test_after_a_restart_the_recovered_value_counts_and_tells_nobody() -> None:
    store = MemoryStore()
    first = watermark(store)
    first.lock("r", 20)
    first.advance(70)
    again = watermark(store)
    assert again.value == Watermark(70)
    with pytest.raises(BelowLowWatermark):
        again.lock("r", 20)
    assert isinstance(again.advance(70), Skipped)


def test_a_recovered_value_below_history_is_raised_to_it() -> None:
    store = MemoryStore()
    watermark(store).advance(70)
    assert watermark(store, earliest=90).value == Watermark(90)
    assert watermark(store, earliest=50).value == Watermark(70)


def test_each_node_keeps_its_own() -> None:
    store = MemoryStore()
    watermark(store).advance(70)
    assert LowWatermark(store, "B", HybridClock(ManualClock(1.0))).value == Watermark()


def test_a_value_that_was_not_kept_is_not_in_force() -> None:
    failing = [True]
    store = FaultyStore(MemoryStore(), lambda one: KVFault.FAIL if one.changes and failing[0] else None)
    low = watermark(store)
    low.lock("r", 20)
    assert isinstance(low.advance(70), Failed)
    assert low.value == Watermark()
    low.lock("r2", 30)
    failing[0] = False
    assert low.advance(70) == Done(Watermark(None, pending=70))


def test_a_rise_beside_the_listeners_of_the_one_before_comes_into_force() -> None:
    keeps, may_keep = threading.Event(), threading.Event()

    class Slow(MemoryStore):
        def set_if(self, *given: Any) -> Any:
            if second.ident is not None:
                keeps.set()
                assert may_keep.wait(10.0)
            return super().set_if(*given)

    low = watermark(Slow())
    outcomes: list[object] = []
    second = threading.Thread(target=lambda: outcomes.append(low.advance(80)))

    def begins_another(_: int) -> None:
        if second.ident is None:
            second.start()
            assert keeps.wait(10.0)

    low.listen(begins_another)
    assert isinstance(low.advance(70), Done)
    with pytest.raises(BelowLowWatermark):
        low.lock("r", 75)
    may_keep.set()
    second.join()
    assert outcomes == [Done(Watermark(80))]
    low.audit()


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), RuntimeError("a defect")], ids=repr)
def test_a_rise_that_was_interrupted_is_not_waited_for(raised: BaseException) -> None:
    class Interrupted(MemoryStore):
        def set_if(self, *_: object) -> None:
            del Interrupted.set_if
            raise raised

    low = watermark(Interrupted())
    with pytest.raises(type(raised)):
        low.advance(70)
    low.audit()
    low.lock("r", 60)
    low.unlock("r")
    assert low.advance(80) == Done(Watermark(80))


def test_what_a_node_acted_on_is_there_after_a_fault_at_any_step() -> None:
    def run(store: FaultyStore) -> None:
        low = watermark(store)
        for time in (30, 60, 90):
            if isinstance(low.advance(time), Done):
                store.acknowledge(time)

    def check(store: KVStore, run: KVRun) -> None:
        recovered = watermark(store).value.time or 0
        assert recovered >= max(run.acknowledged, default=0)

    assert explore_kv_faults(MemoryStore, run, check).runs >= 10


class LateStore(MemoryStore):
    """Its first write gets no answer, and comes whenever `arrive` is called."""

    def __init__(self) -> None:
        super().__init__()
        self._late: Callable[[], object] | None = None

    def _first(self, write: Callable[[], object]) -> None:
        if self._late is None:
            self._late = write
            raise OutcomeUnknown(operation="set", path="LateStore", detail="no answer")
        write()

    def set(self, partition: bytes, key: bytes, value: Buffer) -> None:
        self._first(lambda: MemoryStore.set(self, partition, key, value))

    def set_if(self, partition: bytes, key: bytes, value: Buffer, predicate: Predicate | None) -> None:
        self._first(lambda: MemoryStore.set_if(self, partition, key, value, predicate))

    def arrive(self) -> None:
        assert self._late is not None
        with contextlib.suppress(PredicateFailed):
            self._late()


def test_a_write_that_comes_late_does_not_lower_it() -> None:
    store = LateStore()
    low = watermark(store)
    assert low.advance(60) == Done(Watermark(60))
    assert low.advance(90) == Done(Watermark(90))
    store.arrive()
    assert watermark(store).value == Watermark(90)


def test_a_value_is_not_in_force_before_it_was_kept_even_if_its_last_reader_ends_meanwhile() -> None:
    seen: list[Watermark] = []

    def faults(operation: KVOperation) -> None:
        if operation.changes:
            low.unlock("r")
            seen.append(low.value)

    low = watermark(FaultyStore(MemoryStore(), faults))
    low.lock("r", 20)
    assert low.advance(70) == Done(Watermark(70))
    assert seen == [Watermark(None, pending=70)]


def test_a_damaged_value_is_named() -> None:
    store = MemoryStore()
    watermark(store).advance(70)
    store.set(b"catalog", keys.low_watermark_key("A"), b"something that nobody wrote")
    with pytest.raises(RecordDamaged, match="low_watermark/A"):
        watermark(store)


def test_bad_input_is_refused() -> None:
    for time in (0, -1, 1 << 63):
        with pytest.raises(InvalidInput):
            watermark().advance(time)
    with pytest.raises(InvalidInput):
        watermark(data_availability_seconds=-1)
    with pytest.raises(InvalidInput):
        LowWatermark(MemoryStore(), "", HybridClock(ManualClock(1.0)))


def test_readers_and_a_rising_mark_in_threads_never_cross() -> None:
    low = watermark()
    crossed: list[int] = []
    low.listen(lambda time: crossed.extend(at for at in held.values() if at < time))
    held: dict[int, int] = {}
    top = timestamp(1000)

    def read(number: int) -> None:
        for step in range(300):
            time = (step + 1) * (top // 300)
            try:
                low.lock(number, time)
            except BelowLowWatermark:
                continue
            held[number] = time
            del held[number]
            low.unlock(number)

    readers = [threading.Thread(target=read, args=(number,)) for number in range(3)]
    for reader in readers:
        reader.start()
    for step in range(300):
        low.advance((step + 1) * (top // 300))
    for reader in readers:
        reader.join()
    low.audit()
    assert not crossed
    assert low.value.pending is None
