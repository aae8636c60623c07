# SPDX-License-Identifier: Apache-2.0
"""The key-value conformance kit finds stores that break their promises, each by the test that it should."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from compactlib.errors import NotFound, Unsupported
from compactlib.kv import (
    EXISTS,
    Condition,
    Delete,
    KeyNotFound,
    KVEntry,
    KVStore,
    MemoryStore,
    PagedEntries,
    PredicateFailed,
    Put,
    SqliteStore,
)
from compactlib.kv.store import KVLimits, Versioned
from compactlib.testing import KVStoreConformance, PromiseBroken, check_kv_store, kv_machine
from tests.harness.lessons import check_lesson


class Wrapped(MemoryStore):
    """A sound store, one method of which others get wrong; `Any` because that is what they do."""


class NotFoundOfItsOwn(Wrapped):
    def get(self, partition: bytes, key: bytes) -> Versioned:
        try:
            return super().get(partition, key)
        except KeyNotFound:
            raise NotFound("no") from None


class EmptyIsAbsent(Wrapped):
    def get(self, partition: bytes, key: bytes) -> Versioned:
        found = super().get(partition, key)
        if not found.value:
            raise KeyNotFound(partition=partition, key=key)
        return found


class JoinsPartitionAndKey(Wrapped):
    def get(self, partition: bytes, key: bytes) -> Versioned:
        self._refuse_missing(partition, key)
        return super().get(b"all", partition + b"/" + key)

    def set(self, partition: bytes, key: bytes, value: Any) -> None:
        self._refuse_missing(partition, key)
        super().set(b"all", partition + b"/" + key, value)

    def _refuse_missing(self, partition: bytes, key: bytes) -> None:
        if not partition or not key:
            super().get(partition, key)


class ChecksThenSets(Wrapped):
    """Compare and set, in two steps."""

    def set_if(self, partition: bytes, key: bytes, value: Any, predicate: Any) -> None:
        try:
            found = self.get(partition, key)
            holds = predicate is EXISTS or (predicate is not None and predicate == found.predicate)
        except KeyNotFound:
            holds = predicate is None
        if value is not None and not holds:
            raise PredicateFailed(partition=partition, key=key)
        time.sleep(0.0001)
        self.set(partition, key, value)


class UpsertsOnCompare(Wrapped):
    """A predicate on a key that is gone creates it."""

    def set_if(self, partition: bytes, key: bytes, value: Any, predicate: Any) -> None:
        try:
            super().set_if(partition, key, value, predicate)
        except PredicateFailed:
            try:
                self.get(partition, key)
            except KeyNotFound:
                self.set(partition, key, value)
            else:
                raise


class NoneIsEmpty(Wrapped):
    """Takes `None` for the predicate of an empty value."""

    def set_if(self, partition: bytes, key: bytes, value: Any, predicate: Any) -> None:
        try:
            super().set_if(partition, key, value, predicate)
        except PredicateFailed:
            if predicate is None and super().get(partition, key).value == b"":
                self.set(partition, key, value)
            else:
                raise


class KeepsTheBuffer(Wrapped):
    def __init__(self) -> None:
        super().__init__()
        self.buffers: dict[tuple[bytes, bytes], Any] = {}

    def set(self, partition: bytes, key: bytes, value: Any) -> None:
        super().set(partition, key, value)
        self.buffers[partition, key] = value

    def get(self, partition: bytes, key: bytes) -> Versioned:
        found = super().get(partition, key)
        return Versioned(bytes(self.buffers.get((partition, key), found.value)), found.predicate)


class Scanning(Wrapped):
    """Loads its pages in a way of its own."""

    def page(self, entries: list[KVEntry], limit: int) -> tuple[list[KVEntry], bool]:
        return entries[:limit], len(entries) <= limit

    def scan(self, partition: bytes, start: bytes = b"", *, prefix: bytes = b"", after: bytes | None = None,
             page_size: int | None = None, keys_only: bool = False) -> PagedEntries:
        if not partition or not isinstance(partition, bytes):
            super().scan(partition)

        def load(position: bytes, limit: int) -> tuple[list[KVEntry], bool]:
            with super(Scanning, self).scan(partition, position) as entries:
                return self.page(list(entries), limit)

        return PagedEntries(load, start, prefix=prefix, after=after, page_size=page_size, largest_page=1000)


class TextCollation(Scanning):
    def page(self, entries: list[KVEntry], limit: int) -> tuple[list[KVEntry], bool]:
        return super().page(sorted(entries, key=lambda entry: entry.key.lower()), limit)


class EndsEarly(Scanning):
    def page(self, entries: list[KVEntry], limit: int) -> tuple[list[KVEntry], bool]:
        return entries[:limit], True


class ShiftsPages(Scanning):
    """Skips an entry wherever a page ends."""

    def page(self, entries: list[KVEntry], limit: int) -> tuple[list[KVEntry], bool]:
        return [*entries[:limit - 1], *entries[limit:limit + 1]], len(entries) <= limit


class HalfATransaction(Wrapped):
    def transact(self, conditions: Iterable[Condition] = (), puts: Iterable[Put] = (),
                 deletes: Iterable[Delete] = ()) -> None:
        for put in list(puts):
            self.set(put.partition, put.key, put.value)
        super().transact(conditions, (), deletes)


class TransactsInSteps(Wrapped):
    """Checks all, then writes one after the other, with another transaction in between, if one comes in a moment."""

    def __init__(self) -> None:
        super().__init__()
        self._beside = threading.Barrier(2)

    def transact(self, conditions: Iterable[Condition] = (), puts: Iterable[Put] = (),
                 deletes: Iterable[Delete] = ()) -> None:
        held, written, removed = list(conditions), list(puts), list(deletes)
        cells = [*((put.partition, put.key) for put in written), *((one.partition, one.key) for one in removed)]
        if len(set(cells)) < len(cells) or len(held) + len(cells) > self.limits.max_transact or len(cells) != 2:
            super().transact(held, written, removed)
            return
        super().transact(held)
        try:
            self._beside.wait(0.2)
        except threading.BrokenBarrierError:
            self._beside.reset()
        for put in written:
            super().transact([], [put])
        super().transact([], [], removed)


class AnswersInItsOwnOrder(Wrapped):
    def get_many(self, cells: Sequence[tuple[bytes, bytes]]) -> list[Versioned | None]:
        found = [one for one in super().get_many(cells) if one is not None]
        return [*found, *[None] * (len(cells) - len(found))]


class ForgetsPredicatesOfKeys(Wrapped):
    def scan(self, partition: bytes, start: bytes = b"", *, prefix: bytes = b"", after: bytes | None = None,
             page_size: int | None = None, keys_only: bool = False) -> Any:
        entries = super().scan(partition, start, prefix=prefix, after=after, page_size=page_size)
        return entries if not keys_only else [KVEntry(entry.key, b"", None) for entry in entries]


class WritesTheFirstPutAlone(Wrapped):
    def transact(self, conditions: Iterable[Condition] = (), puts: Iterable[Put] = (),
                 deletes: Iterable[Delete] = ()) -> None:
        super().transact(conditions, list(puts)[:1], deletes)


class CountsAsItsPlace(Wrapped):
    def place(self) -> str:
        return f"version {self._version}"


class HasEveryonesPlace(Wrapped):
    def place(self) -> str:
        return "here"


class StaysOpen(Wrapped):
    def close(self) -> None:
        pass


@pytest.mark.parametrize(("store", "found_by"), [
    (NotFoundOfItsOwn, "test_what_is_absent_is_not_found"),
    (EmptyIsAbsent, "test_an_empty_value_is_a_value"),
    (KeepsTheBuffer, "test_set_and_get"),
    (UpsertsOnCompare, "test_a_predicate_of_a_key_that_is_gone"),
    (NoneIsEmpty, "test_compare_and_set_of_an_empty_value"),
    (ChecksThenSets, "test_eight_threads_count"),
    (TextCollation, "test_partitions_and_keys_do_not_run_together"),
    (EndsEarly, "test_pages_of_any_size"),
    (ShiftsPages, "test_pages_of_any_size"),
    (JoinsPartitionAndKey, "test_partitions_and_keys_do_not_run_together"),
    (HalfATransaction, "test_transact"),
    (TransactsInSteps, "test_transfers_by_threads_keep_the_sum"),
    (StaysOpen, "test_after_close"),
    (AnswersInItsOwnOrder, "test_many_cells_in_one_request"),
    (ForgetsPredicatesOfKeys, "test_a_scan_of_keys_alone"),
    (CountsAsItsPlace, "test_a_store_says_one_place_for_ever"),
    (HasEveryonesPlace, "test_a_store_says_one_place_for_ever"),
    (WritesTheFirstPutAlone, "test_a_batch_of_several_requests_that_ends_in_the_middle"),
])
def test_a_broken_store_is_found(store: Callable[[], KVStore], found_by: str, tmp_path: Path) -> None:
    class Suite(KVStoreConformance):
        def make_store(self, folder: Path, page_size: int | None = None) -> KVStore:
            return store()

    with pytest.raises(PromiseBroken) as caught:
        getattr(Suite(), found_by)(tmp_path)
    check_lesson(caught.value, found_by)


def test_the_state_machine_finds_a_broken_store_too() -> None:
    quick = settings(max_examples=2000, stateful_step_count=15, phases=[Phase.generate], database=None,
                     derandomize=True, report_multiple_bugs=False)
    for store, lesson in ((UpsertsOnCompare, "does not hold, and the write was carried out"),
                          (HalfATransaction, "are one step|it was not deleted|it was deleted|every entry|written last"),
                          (EmptyIsAbsent, "is gone, and it was not deleted"),
                          (EndsEarly, "every entry once|ended without")):
        with pytest.raises(AssertionError, match=lesson):
            run_state_machine_as_test(kv_machine(store), settings=quick)


class NoTransactions(Wrapped):
    def __init__(self) -> None:
        super().__init__(limits=KVLimits(100, 100, 1000, 0))

    def transact(self, conditions: Iterable[Condition] = (), puts: Iterable[Put] = (),
                 deletes: Iterable[Delete] = ()) -> None:
        raise Unsupported("this store changes one key at a time; use another")


def test_it_runs_without_pytest_and_names_what_was_passed(tmp_path: Path) -> None:
    for name, make in (("none", NoTransactions), ("memory", MemoryStore)):
        (tmp_path / name).mkdir()
        passed = check_kv_store(lambda folder, page_size=None, make=make: make(), tmp_path / name)
        assert len(passed) == 44
        assert passed[:3] == ["test_a_batch_of_several_requests_that_ends_in_the_middle",
                              "test_a_closed_scan",
                              "test_a_delete_succeeds_also_where_nothing_is"]


def test_a_handle_that_sees_another_store_is_found(tmp_path: Path) -> None:
    class Suite(KVStoreConformance):
        shared = True

        def make_store(self, folder: Path, page_size: int | None = None) -> KVStore:
            return MemoryStore()

    with pytest.raises(PromiseBroken, match="KeyNotFound"):
        Suite().test_two_handles_of_one_store(tmp_path)


def test_a_store_that_does_not_wait_its_turn_is_slow_down(tmp_path: Path) -> None:
    # The kit ends where a promise is broken, so it closes nothing.
    opened = contextlib.ExitStack()

    class Throttled(KVStoreConformance):
        def make_store(self, folder: Path, page_size: int | None = None) -> KVStore:
            return opened.enter_context(contextlib.closing(SqliteStore(folder / "kv", synchronous="normal")))

        def throttled(self, store: KVStore) -> Any:
            return contextlib.nullcontext(True)

    with opened, pytest.raises(AssertionError, match=r"(?s)expected: SlowDown.*found: +nothing was raised"):
        Throttled().test_a_throttled_store_says_slow_down(tmp_path)
