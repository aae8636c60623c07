# SPDX-License-Identifier: Apache-2.0
"""Plug-ins with one mistake each: the suite that holds them breaks the promise that it should, and says what to do."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.budget import Budget
from compactlib.errors import CompactlibError, CorruptData, InvalidInput, NotFound, TaskFailed
from compactlib.executors import Attempt, LocalExecutor, RewriteFailure, RewriteResult, RewriteTask
from compactlib.executors.tasks import attempt_task, checked_names, new_attempt_id
from compactlib.fences import Admission, FencedOff, MemoryFence
from compactlib.kv import EXISTS, Entries, KeyNotFound, KVEntry, MemoryStore, PredicateFailed
from compactlib.kv.errors import TooLarge
from compactlib.kv.store import NOTHING
from compactlib.objects import MemoryObjects, ObjectExists, ObjectNotFound, ObjectRef
from compactlib.observer import Observer, Observers
from compactlib.rewrite import RewriteOutcome
from compactlib.staging import PlainFormat, Record
from compactlib.staging.ranges.plain import PlainRows
from compactlib.staging.ranges.rows import ChangeBatch, Merged, Rows
from compactlib.staging.values import RangeId
from compactlib.testing import (
    ExecutorConformance,
    FenceConformance,
    KVStoreConformance,
    ObjectStoreConformance,
    PromiseBroken,
    RangeFormatConformance,
)
from compactlib.testing.executors import DieTask, result_of
from tests.harness.lessons import check_lesson


def like(name: str, kind: type, **members: Any) -> Any:
    """A plug-in with other methods."""
    return type(name, (kind,), members)


def answering(value: Any) -> Any:
    return lambda *_, **__: value


# ------------------------------------------------------------------------------------------------- key-value stores


class NotFoundOfItsOwn(MemoryStore):
    def get(self, partition: bytes, key: bytes) -> KVEntry:
        try:
            return super().get(partition, key)
        except KeyNotFound:
            raise NotFound("no") from None


class ClaimsLongerKeys(MemoryStore):
    def set(self, partition: bytes, key: bytes, value: bytes) -> None:
        if len(key) > 1000:
            raise TooLarge(f"a key of {len(key)} bytes", limit=1000)
        super().set(partition, key, value)


class EmptyIsAbsent(MemoryStore):
    def get(self, partition: bytes, key: bytes) -> KVEntry:
        found = super().get(partition, key)
        if not found.value:
            raise KeyNotFound(partition=partition, key=key)
        return found


class ReadsThenWrites(MemoryStore):
    """Compares and sets in two steps."""

    def set_if(self, partition: bytes, key: bytes, value: Any, predicate: Any) -> None:
        with contextlib.suppress(KeyNotFound):
            found = self.get(partition, key)
            if predicate is None or (predicate is not EXISTS and predicate != found.predicate):
                raise PredicateFailed(partition=partition, key=key)
        time.sleep(0.0001)
        self.set(partition, key, value)


class UpsertsOnCompare(MemoryStore):
    """A predicate on an absent key creates it."""

    def set_if(self, partition: bytes, key: bytes, value: Any, predicate: Any) -> None:
        try:
            self.get(partition, key)
        except KeyNotFound:
            predicate = None
        super().set_if(partition, key, value, predicate)


class NoneIsEmpty(MemoryStore):
    """Takes `None` for the predicate of an empty value."""

    def set_if(self, partition: bytes, key: bytes, value: Any, predicate: Any) -> None:
        with contextlib.suppress(KeyNotFound):
            if predicate is None and not self.get(partition, key).value:
                predicate = EXISTS
        super().set_if(partition, key, value, predicate)


class OrdersPredicates(MemoryStore):
    def set_if(self, partition: bytes, key: bytes, value: Any, predicate: Any) -> None:
        if predicate not in (None, EXISTS) and predicate < 0:
            raise PredicateFailed(partition=partition, key=key)
        super().set_if(partition, key, value, predicate)


class Scanning(MemoryStore):
    """Loads its pages in a way of its own: `page(all from the position on, limit)`."""

    def page(self, entries: list[KVEntry], limit: int) -> tuple[list[KVEntry], bool]:
        return entries[:limit], len(entries) <= limit

    def scan(self, partition: bytes, start: bytes = b"", *, prefix: bytes = b"",
             page_size: int | None = None, keys_only: bool = False) -> Entries:
        super().scan(partition)

        def load(position: bytes, limit: int) -> tuple[list[KVEntry], bool]:
            with super(Scanning, self).scan(partition, position) as entries:
                return self.page(list(entries), limit)

        return Entries(load, start, prefix=prefix, page_size=page_size, largest_page=1000)


class PagesByOffset(MemoryStore):
    def scan(self, partition: bytes, start: bytes = b"", *, prefix: bytes = b"",
             page_size: int | None = None, keys_only: bool = False) -> Entries:
        given = 0

        def load(position: bytes, limit: int) -> tuple[list[KVEntry], bool]:
            nonlocal given
            with super(PagesByOffset, self).scan(partition, start) as entries:
                page = list(entries)[given:given + limit]
            given += len(page)
            return page, len(page) < limit

        return Entries(load, start, prefix=prefix, page_size=page_size, largest_page=1000)


class ForgetsPredicatesInScans(MemoryStore):
    def _page(self, partition: bytes, start: bytes, limit: int) -> tuple[list[KVEntry], bool]:
        page, is_last = super()._page(partition, start, limit)
        return [KVEntry(entry.key, entry.value, None) for entry in page], is_last


class JoinsPartitionAndKey(MemoryStore):
    def get(self, partition: bytes, key: bytes) -> KVEntry:
        return super().get(b"all", partition + b"/" + key)

    def transact(self, conditions: Any = NOTHING, changes: Any = NOTHING) -> None:
        joined = {(b"all", b"/".join(cell)): value for cell, value in changes.items() if value is not None}
        super().transact(conditions, {**changes, **joined})


class HalfATransaction(MemoryStore):
    def transact(self, conditions: Any = NOTHING, changes: Any = NOTHING) -> None:
        super().transact(changes={cell: value for cell, value in changes.items() if value is not None})
        super().transact(conditions, {cell: value for cell, value in changes.items() if value is None})


class CommitsEachPartition(MemoryStore):
    """Checks all conditions, and then those of each partition again, with its changes."""

    def transact(self, conditions: Any = NOTHING, changes: Any = NOTHING) -> None:
        super().transact(conditions)
        for partition in dict.fromkeys(partition for partition, _ in changes):
            super().transact(*({cell: value for cell, value in cells.items() if cell[0] == partition}
                               for cells in (conditions, changes)))
            time.sleep(0.0001)


class LosesTheLastOfTwo(MemoryStore):
    def transact(self, conditions: Any = NOTHING, changes: Any = NOTHING) -> None:
        super().transact(conditions, dict([*changes.items()][:1 if len(changes) == 2 else None]))


class AnswersInItsOwnOrder(MemoryStore):
    def _get_many(self, cells: Sequence[tuple[bytes, bytes]]) -> list[KVEntry | None]:
        return sorted(super()._get_many(cells), key=lambda entry: entry is None)


class CachesInEachThread(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.cache = threading.local()

    def get(self, partition: bytes, key: bytes) -> KVEntry:
        cells: dict[tuple[bytes, bytes], KVEntry] = vars(self.cache).setdefault("cells", {})
        return cells.setdefault((partition, key), super().get(partition, key))


TextCollation = like("TextCollation", Scanning, page=lambda self, entries, limit: Scanning.page(
    self, sorted(entries, key=lambda entry: entry.key.lower()), limit))
EndsEarly = like("EndsEarly", Scanning, page=lambda self, entries, limit: (entries[:limit], True))
ChecksConditionsBackwards = like(
    "ChecksConditionsBackwards", MemoryStore, transact=lambda self, conditions=NOTHING, changes=NOTHING:
    MemoryStore.transact(self, dict(reversed(conditions.items())), changes))
StaysOpen = like("StaysOpen", MemoryStore, close=answering(None))
IsAnotherStoreEachTime = like("IsAnotherStoreEachTime", MemoryStore, shared=True)
CountsAsItsPlace = like("CountsAsItsPlace", MemoryStore, place=lambda self: f"version {self._version}")
HasEveryonesPlace = like("HasEveryonesPlace", MemoryStore, place=answering("here"))
# Waits where it is to say `SlowDown`.
NeverThrottles = like("NeverThrottles", MemoryStore, throttled=staticmethod(lambda store: contextlib.nullcontext(True)))


# ---------------------------------------------------------------------------------------------------- object stores


class RefusesLongRanges(MemoryObjects):
    def get_range(self, key: str, start: int, length: int) -> bytes:
        if start + length > self.info(key).size_bytes:
            raise InvalidInput("beyond the end")
        return super().get_range(key, start, length)


class EmptyIsNoObject(MemoryObjects):
    def create(self, key: str, data: bytes | memoryview) -> ObjectRef:
        ref = super().create(key, data)
        if not data:
            self.delete(key)
        return ref


class ReadsThenCreates(MemoryObjects):
    def create(self, key: str, data: bytes | memoryview) -> ObjectRef:
        if key in self._objects:
            raise ObjectExists(key=key)
        time.sleep(0.001)
        self.delete(key)
        return super().create(key, data)


class NamesAnotherKey(MemoryObjects):
    def get(self, key: str) -> bytes:
        try:
            return super().get(key)
        except ObjectNotFound:
            raise ObjectNotFound(key="") from None


class LosesTheShorterKey(MemoryObjects):
    def create(self, key: str, data: bytes | memoryview) -> ObjectRef:
        self.delete([key.split("/", maxsplit=1)[0]])
        return super().create(key, data)


class RemovesBeforeItChecks(MemoryObjects):
    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            super().delete([key])


CountsFromTheEnd = like("CountsFromTheEnd", MemoryObjects, get_range=lambda self, key, start, length:
                        self.get(key)[start:start + length])
# Lists as a walk over folders would.
FolderByFolder = like("FolderByFolder", MemoryObjects, list=lambda self, prefix="": iter(sorted(
    MemoryObjects.list(self, prefix), key=lambda info: info.key.split("/"))))
TakesAnyKey = like("TakesAnyKey", MemoryObjects, create=lambda self, key, data: attrs.evolve(
    MemoryObjects.create(self, f"k{abs(hash(key))}", data), key=key))
ObjectsStayOpen = like("ObjectsStayOpen", MemoryObjects, close=answering(None))


# -------------------------------------------------------------------------------------------------------- executors


class Sound:
    """Does everything right, one step a method, for others to get one of them wrong."""

    isolates_tasks = False

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteOutcome]:
        return self.outcomes(self.listed(tasks), budget or Budget(), Observers(observer))

    def listed(self, tasks: Iterable[RewriteTask]) -> list[RewriteTask]:
        return list(checked_names(tasks))

    def outcomes(self, tasks: list[RewriteTask], budget: Budget, observer: Observer) -> Iterator[RewriteOutcome]:
        for task in tasks:
            yield self.outcome(task, Attempt(self.attempt_id(), budget, observer))

    def attempt_id(self) -> str:
        return new_attempt_id()

    def outcome(self, task: RewriteTask, attempt: Attempt) -> RewriteOutcome:
        return attempt_task(task, attempt)


class RoundsResults(Sound):
    def outcome(self, task: RewriteTask, attempt: Attempt) -> RewriteOutcome:
        outcome = super().outcome(task, attempt)
        if isinstance(outcome, RewriteResult):
            return attrs.evolve(outcome, seconds=round(outcome.seconds, 6))
        return outcome


class FlattensLibraryErrors(Sound):
    def outcome(self, task: RewriteTask, attempt: Attempt) -> RewriteOutcome:
        outcome = super().outcome(task, attempt)
        if isinstance(outcome, RewriteFailure) and not isinstance(outcome.error, TaskFailed):
            return RewriteFailure(outcome.task, CompactlibError(str(outcome.error)))
        return outcome


class ForgetsTheTraceback(Sound):
    def outcome(self, task: RewriteTask, attempt: Attempt) -> RewriteOutcome:
        outcome = super().outcome(task, attempt)
        if isinstance(outcome, RewriteFailure) and isinstance(outcome.error, TaskFailed):
            outcome.error.detail = ""
        return outcome


class RefusesDuplicatesLate(Sound):
    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteOutcome]:
        yield from super().run(tasks, budget=budget, observer=observer)


class RunsTwice(Sound):
    def outcome(self, task: RewriteTask, attempt: Attempt) -> RewriteOutcome:
        attempt_task(task, attrs.evolve(attempt, id=f"{attempt.id}-spare"))
        return attempt_task(task, attempt)


class IsBusyOnceLeft(Sound):
    busy = False

    def outcomes(self, tasks: list[RewriteTask], budget: Budget, observer: Observer) -> Iterator[RewriteOutcome]:
        assert not self.busy, "the workers of the last run have not ended"
        self.busy = True
        yield from super().outcomes(tasks, budget, observer)
        self.busy = False


LosesTheLast = like("LosesTheLast", Sound, outcomes=lambda self, tasks, budget, observer: Sound.outcomes(
    self, tasks[:6], budget, observer))
ReusesAttemptIds = like("ReusesAttemptIds", Sound, attempt_id=answering("attempt"))
LetsForeignErrorsThrough = like("LetsForeignErrorsThrough", Sound,
                                outcome=lambda self, task, attempt: task.run(attempt))
ClaimsToIsolate = like("ClaimsToIsolate", Sound, isolates_tasks=True)
LetsObserversBreakTasks = like("LetsObserversBreakTasks", Sound, run=lambda self, tasks, budget=None, observer=None:
                               self.outcomes(self.listed(tasks), budget or Budget(), observer or Observers()))
GivesUpSilently = like("GivesUpSilently", Sound, outcomes=lambda self, tasks, budget, observer: iter(
    () if budget.cancelled else Sound.outcomes(self, tasks, budget, observer)))


# ----------------------------------------------------------------------------------------------------------- fences


class ForgetsTheHighest(MemoryFence):
    """Admits whatever comes."""

    def admit(self, resource: str, token: int) -> Admission:
        self._records.pop(resource, None)
        return super().admit(resource, token)


class CommitsLate(MemoryFence):
    """Checks the token when a worker comes, and not again when it commits."""

    def commit(self, resource: str, token: int, value: bytes) -> Admission:
        record: Admission | None = self._records.get(resource)
        if record is not None and record.token > token:
            return record
        return super().commit(resource, token, value)


class ForgetsWhatWasDone(MemoryFence):
    def admit(self, resource: str, token: int) -> Admission:
        record = super().admit(resource, token)
        if record.committed is not None and record.committed.token < token:
            self._records[resource] = record = Admission(resource, token, None)
        return record


class TheLastCommitWins(MemoryFence):
    def commit(self, resource: str, token: int, value: bytes) -> Admission:
        record = self._records.get(resource)
        if record is not None and record.token == token:
            self._records[resource] = Admission(resource, token, None)
        return super().commit(resource, token, value)


class TakesAnyName(MemoryFence):
    def admit(self, resource: str, token: int) -> Admission:
        try:
            return super().admit(resource, token)
        except InvalidInput:
            return Admission(resource, token, None)


class ForgetsTheFloor(MemoryFence):
    """Drops records below the floor, and forgets the floor."""

    def raise_floor(self, token: int) -> int:
        dropped = super().raise_floor(token)
        self._records.pop(self._floor_place, None)
        return dropped


class GuardsNothing(MemoryFence):
    @contextlib.contextmanager
    def guard(self, resource: str, token: int) -> Iterator[Admission]:
        yield self.admit(resource, token)


class GuardsOnce(MemoryFence):
    @contextlib.contextmanager
    def guard(self, resource: str, token: int) -> Iterator[Admission]:
        with super().guard(resource, token) as admission:
            yield admission
        self.guard = self.refuse  # type: ignore[method-assign]

    def refuse(self, resource: str, token: int) -> Any:
        raise FencedOff(resource=resource, token=token, highest=token + 1)


CommitsNothing = like("CommitsNothing", MemoryFence, commit=lambda self, resource, token, value: MemoryFence.admit(
    self, resource, token))


# ---------------------------------------------------------------------------------------------------- range formats


class PartsKeepTheirEnds(PlainRows):
    def part(self, start: int, stop: int) -> PartsKeepTheirEnds:
        made = super().part(start, stop)
        made._ends = self.ends()[start:stop]  # noqa: SLF001
        return made


class CountsAbsentKeys(PlainRows):
    def merged(self, changes: ChangeBatch) -> Merged:
        return attrs.evolve(super().merged(changes), removed=list(changes.identities).count(None))


class RowsOf(PlainFormat):
    """A format whose rows have the mistake."""

    kind: type[PlainRows] = PlainRows

    def rows(self, pairs: Iterable[tuple[bytes, Record]]) -> PlainRows:
        return self.kind(*super().rows(pairs).columns())


class TrustsTheFile(PlainFormat):
    """Ignores the checksum."""

    def decode(self, data: bytes, range_id: RangeId, path: str) -> Rows:
        try:
            return super().decode(data, range_id, path)
        except CorruptData:
            return self.rows(())


class IgnoresTheId(PlainFormat):
    def __init__(self) -> None:
        self.ids: dict[bytes, RangeId] = {}

    def encode(self, rows: Rows, range_id: RangeId) -> bytes:
        data = super().encode(rows, range_id)
        self.ids[data] = range_id
        return data

    def decode(self, data: bytes, range_id: RangeId, path: str) -> Rows:
        return super().decode(data, self.ids[data], path)


LosesTheLastRow = like("LosesTheLastRow", PlainFormat, rows=lambda self, pairs: PlainFormat.rows(
    self, list(pairs)[:-1]))
HashesKeysAlone = like("HashesKeysAlone", PlainRows, content_id=lambda self: PlainRows(
    self._keys, self._keys, self._keys).content_id())
NamesNoPath = like("NamesNoPath", PlainFormat, decode=lambda self, data, range_id, path: PlainFormat.decode(
    self, data, range_id, ""))
RecognizesNothing = like("RecognizesNothing", PlainFormat, recognizes=answering(False))


# -------------------------------------------------------------------------------------------------------- the table

PLANTED: dict[type[Any], list[tuple[str, list[Any]]]] = {
    KVStoreConformance: [
        ("any_steps_do_what_a_dictionary_does", [
            NotFoundOfItsOwn, EmptyIsAbsent, UpsertsOnCompare, NoneIsEmpty, HalfATransaction, ChecksConditionsBackwards,
            CachesInEachThread, LosesTheLastOfTwo, AnswersInItsOwnOrder, JoinsPartitionAndKey]),
        ("arguments_are_refused_before_a_write", [HalfATransaction]),
        ("limits_can_be_reached", [ClaimsLongerKeys]),
        ("throttled_store_says_slow_down", [NeverThrottles]),
        ("predicate_of_another_store_fails", [OrdersPredicates]),
        ("scan_agrees_with_a_list", [TextCollation, EndsEarly]),
        ("scan_skips_nothing_during_writes", [PagesByOffset]),
        ("scan_returns_predicates", [ForgetsPredicatesInScans]),
        ("partitions_and_keys_do_not_run_together", [JoinsPartitionAndKey]),
        ("threads_lose_no_write", [ReadsThenWrites, CommitsEachPartition, LosesTheLastOfTwo]),
        ("closed_store_says_so", [StaysOpen]),
        ("several_open_a_new_store_at_once", [IsAnotherStoreEachTime]),
        ("two_handles_are_one_store", [IsAnotherStoreEachTime]),
        ("place_is_constant_and_unique", [CountsAsItsPlace, HasEveryonesPlace]),
    ],
    ObjectStoreConformance: [
        ("object_is_read_as_it_was_created", [RefusesLongRanges, CountsFromTheEnd, EmptyIsNoObject]),
        ("object_is_never_overwritten", [ReadsThenCreates]),
        ("absent_object_is_named", [NamesAnotherKey]),
        ("listing_ascends", [FolderByFolder]),
        ("key_is_refused_if_some_store_cannot_store_it", [TakesAnyKey]),
        ("key_that_continues_another_is_kept_or_refused", [LosesTheShorterKey]),
        ("many_objects_are_removed", [RemovesBeforeItChecks]),
        ("closed_store_says_so", [ObjectsStayOpen]),
    ],
    ExecutorConformance: [
        ("each_task_has_one_outcome", [LosesTheLast]),
        ("attempts_have_unique_ids", [ReusesAttemptIds]),
        ("results_travel_unchanged", [RoundsResults]),
        ("errors_are_returned", [FlattensLibraryErrors, LetsForeignErrorsThrough, ForgetsTheTraceback]),
        ("observer_that_raises_breaks_nothing", [LetsObserversBreakTasks]),
        ("duplicate_names_are_refused_at_once", [RefusesDuplicatesLate]),
        ("bytes_are_charged_to_the_budget", [RunsTwice]),
        ("spent_budget_runs_no_task", [GivesUpSilently]),
        ("leaving_early_does_no_harm", [IsBusyOnceLeft]),
        ("task_is_retried_if_its_process_died", [ClaimsToIsolate]),
    ],
    FenceConformance: [
        ("any_steps_do_what_a_plain_fence_does", [
            ForgetsTheHighest, CommitsLate, ForgetsWhatWasDone, TheLastCommitWins,
            ForgetsTheFloor]),
        ("names_tokens_and_values_have_bounds", [TakesAnyName]),
        ("highest_token_of_threads_commits_last", [CommitsNothing]),
        ("newer_token_waits_for_a_guarded_step", [GuardsNothing]),
        ("guarded_step_cannot_admit_a_newer_token", [GuardsNothing]),
        ("guarded_steps_of_threads_do_not_overlap", [GuardsOnce]),
    ],
    RangeFormatConformance: [
        ("rows_agree_with_a_list", [LosesTheLastRow]),
        ("parts_and_whole_have_the_id_of_their_rows", [PartsKeepTheirEnds, HashesKeysAlone]),
        ("merge_agrees_with_a_dictionary", [CountsAbsentKeys]),
        ("file_gives_back_its_rows", [RecognizesNothing, IgnoresTheId, NamesNoPath]),
        ("damage_is_detected_or_harmless", [TrustsTheFile]),
    ],
}
ROWS = [pytest.param(suite, promise, plugin, id=f"{plugin.__name__}-{promise}")
        for suite, rows in PLANTED.items() for promise, plugins in rows for plugin in plugins]


def suite_of(kind: type[Any], plugin: Any) -> Any:
    """The suite with the plug-in, and the plug-in's description of itself."""
    suite: Any = kind()
    if issubclass(plugin, PlainRows):
        made = RowsOf()
        made.kind = plugin
        suite.make_format = lambda: made
    elif kind is FenceConformance:
        suite.make_fence = lambda folder: plugin()
        suite.make_impatient_fence = lambda folder: plugin(wait_seconds=0)
    else:
        maker = {RangeFormatConformance: "make_format", ExecutorConformance: "make_executor"}.get(kind, "make_store")
        setattr(suite, maker, lambda *_, **__: plugin())
    for capability in ("shared", "throttled", "isolates_tasks"):
        if hasattr(plugin, capability):
            setattr(suite, capability, getattr(plugin, capability))
    return suite


@pytest.mark.parametrize(("suite", "promise", "plugin"), ROWS)
def test_mistake_breaks_its_promise(suite: type[Any], promise: str, plugin: Any, tmp_path: Path) -> None:
    test = getattr(suite_of(suite, plugin), f"test_{promise}")
    with pytest.raises(PromiseBroken) as caught:
        test(*([] if suite is RangeFormatConformance else [tmp_path]))
    check_lesson(caught.value, f"test_{promise}")


@pytest.mark.parametrize("suite", PLANTED)
def test_every_promise_has_a_planted_mistake(suite: type[Any]) -> None:
    assert [f"test_{promise}" for promise, _ in PLANTED[suite]] == [
        name for name in vars(suite) if name.startswith("test_")]


@pytest.mark.parametrize(("suite", "given"), [
    (KVStoreConformance, {"make_store": lambda folder: MemoryStore(), "effort_percent": 10}),
    (ObjectStoreConformance, {"make_store": lambda folder: MemoryObjects()}),
    (ExecutorConformance, {"make_executor": Sound}),
    (FenceConformance, {"make_fence": lambda folder: MemoryFence(),
                        "make_impatient_fence": lambda folder: MemoryFence(wait_seconds=0)}),
    (RangeFormatConformance, {"make_format": PlainFormat}),
])
def test_check_returns_names_without_pytest(suite: type[Any], given: dict[str, Any], tmp_path: Path) -> None:
    assert suite.check(tmp_path, **given) == sorted(name for name in vars(suite) if name.startswith("test_"))


@pytest.mark.parametrize("suite", PLANTED)
def test_suite_names_the_methods_to_fill_in(suite: Any) -> None:
    maker = next(name for name in vars(suite) if name.startswith("make_"))
    with pytest.raises(NotImplementedError, match="override make"):
        getattr(suite(), maker)(*([Path()] if "folder" in getattr(suite, maker).__annotations__ else []))


# ------------------------------------------------------------------------------------- the tasks of the executors


def test_deadly_task_spares_the_callers_process(tmp_path: Path) -> None:
    with pytest.raises(PromiseBroken, match="mortal"):
        suite_of(ExecutorConformance, ClaimsToIsolate).test_task_is_retried_if_its_process_died(tmp_path)
    result_of(next(LocalExecutor().run([DieTask("mortal", str(tmp_path), 0, spared_process=0)])))
