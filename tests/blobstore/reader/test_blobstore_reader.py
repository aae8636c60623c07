# SPDX-License-Identifier: Apache-2.0
"""`BlobReader`: what it answers, while nobody writes and while its owner writes, compacts and erases, and on damage."""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compactlib.blobstore import (
    Blob,
    BlobReader,
    BlobStore,
    CompactAll,
    Deleted,
    Expired,
    ExpiryForecast,
    GetOptions,
    Missing,
    NotAStore,
)
from compactlib.blobstore.compaction.progress.compaction_file import LOG_NAME
from compactlib.blobstore.model.values import BlobInfo
from compactlib.blobstore.segment.descriptor import DESCRIPTOR_FILE
from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent, Closed, CompactlibError, CorruptData
from compactlib.files import LocalFiles, OutFile
from compactlib.files.disk import StrPath
from compactlib.outcome import Done
from compactlib.runtime import Budget
from tests.blobstore.compaction_stores import (
    EVERYTHING,
    compact_all,
    config,
    delete_some,
    fill,
    flip,
    garbage_store,
    open_store,
    plan_of,
)


def picture(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def entries(store: BlobStore | BlobReader) -> list[object]:
    snapshot = store.snapshot()
    return [entry._replace(flags=entry.flags & ~1) for info in snapshot.segments
            for entry in snapshot.entries_of(info.name)]


def reading(folder: Path, clock: ManualClock, **changes: Any) -> BlobReader:
    return BlobReader(folder, config(**changes), clock=clock, name="store")


# ------------------------------------------------------------------------------------------------ nobody writes

def test_it_answers_as_the_store_does_and_changes_nothing(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock, count=20) as store:
        store.put("soon", b"s", ttl_seconds=5, account=3, container=4)
        store.put("never", b"n", ttl_seconds=5)
        store.ttl_update("never")
        store.delete("b0")
        store.undelete("b0")
        store.flush()
        clock.advance(6)
        ids = [*(f"b{number}" for number in range(21)), "soon", "never", "absent"]
        before = picture(folder)
        with reading(folder, clock) as reader:
            for each in ids:
                for options in (GetOptions(), EVERYTHING):
                    assert reader.get(each, options) == store.get(each, options)
                    assert reader.info(each, options) == store.info(each, options)
            assert isinstance(reader.get("soon"), Expired)
            assert isinstance(reader.get("b1"), Deleted)
            assert isinstance(reader.get("absent"), Missing)
            readable = [store.info(each) for each in ids]
            assert sorted(reader.infos(), key=lambda info: info.id) == sorted(
                (info for info in readable if isinstance(info, BlobInfo)), key=lambda info: info.id)
            assert len(list(reader.infos(EVERYTHING))) > len(list(reader.infos()))
            assert entries(reader) == entries(store)
            assert reader.verify().is_sound
            assert (reader.incarnation, reader.capacity_bytes, reader.segment_bytes, reader.name) == (
                store.incarnation, store.capacity_bytes, store.segment_bytes, store.name)
            status = reader.status()
            assert (status.records, status.is_busy, status.damage) == (store.status().records, False, 0)
            assert "records" in repr(status)
            reader.audit()
        assert picture(folder) == before


def test_it_sees_what_was_there_when_it_looked(folder: Path, clock: ManualClock) -> None:
    with open_store(folder, clock) as store, reading(folder, clock) as reader:
        assert list(reader.infos()) == []
        store.put("a", b"1")
        assert isinstance(reader.get("a"), Missing)
        reader.refresh()
        assert isinstance(reader.get("a"), Blob)
        store.delete("a")
        assert isinstance(reader.get("a"), Blob)
        reader.refresh()
        assert isinstance(reader.get("a"), Deleted)


def test_a_second_look_reads_what_has_changed_and_nothing_else(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store, reading(folder, clock) as reader:
        before = dict(reader.look.loaded)
        fill(store, 9, random.Random(3), first=1000)
        reader.refresh()
        after = reader.look.loaded
        same = [name for name, found in before.items() if after[name] is found]
        assert len(same) == len(before) - 1
        assert isinstance(reader.get("b1008"), Blob)


def test_segments_that_a_compaction_took_away_make_it_look_anew(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock) as store, reading(folder, clock, max_open_segments=1) as reader:
        compact_all(store)
        assert [shown(reader, number) for number in range(60)] == [shown(store, number) for number in range(60)]
        reader.refresh()
        assert entries(reader) == entries(store)


def test_its_plan_and_view_are_the_owners(folder: Path, clock: ManualClock) -> None:
    settings: dict[str, Any] = {"journal_max_entries": 0, "max_blob_bytes": 0}
    policy = CompactAll(min_used_fraction=0.0)
    with garbage_store(folder, clock, **settings) as store, reading(folder, clock, **settings) as reader:
        store.flush()
        assert reader.view() == store.view()
        plan, own = reader.plan(policy), store.plan(policy)
        assert (plan.victims, plan.bytes_to_copy, plan.is_exact) == (own.victims, own.bytes_to_copy, own.is_exact)
        assert plan.bytes_available is not None
        assert reader.plan().policy.name == "stats_based"
        assert reader.plan(policy, view=reader.view()).victims == plan.victims
        assert isinstance(store.compact(plan), Done)
        ahead = reader.plan(ExpiryForecast(min_used_fraction=0.0))
        assert "wait for what dies" in ahead.why


def test_closed_is_closed(folder: Path, clock: ManualClock) -> None:
    with garbage_store(folder, clock):
        reader = reading(folder, clock)
        infos = reader.infos()
        next(infos)
        reader.close()
        reader.close()
        calls: list[Callable[[], object]] = [
            lambda: reader.get("b0"), lambda: reader.info("b0"), reader.infos, lambda: next(infos), reader.view,
            reader.plan, reader.verify, reader.status, reader.audit, reader.refresh, reader.snapshot]
        for call in calls:
            with pytest.raises(Closed, match="open another one"):
                call()
        assert "closed" in repr(reader)


@pytest.mark.parametrize("call", [lambda reader, budget: reader.view(budget=budget),
                                  lambda reader, budget: reader.verify(budget=budget)])
def test_a_cancelled_budget_is_asked(folder: Path, clock: ManualClock, call: Any) -> None:
    with garbage_store(folder, clock), reading(folder, clock) as reader:
        budget = Budget()
        budget.cancel()
        with pytest.raises(BudgetSpent):
            call(reader, budget)


def test_what_is_no_store_is_named(tmp_path: Path, clock: ManualClock) -> None:
    with pytest.raises(NotAStore, match="is no folder"):
        BlobReader(tmp_path / "absent")
    with pytest.raises(NotAStore, match="holds no blob store"):
        BlobReader(tmp_path)
    assert os.listdir(tmp_path) == []
    open_store(tmp_path / "store", clock).close()
    with reading(tmp_path / "store", clock) as reader:
        shutil.rmtree(tmp_path / "store")
        with pytest.raises(NotAStore):
            reader.refresh()
        BlobStore(tmp_path / "store").close()
        with pytest.raises(CorruptData, match="another store; open a reader of it"):
            reader.refresh()


# ------------------------------------------------------------------------------------------------------ damage

def damaged_record(folder: Path) -> None:
    flip(folder / "1_0.log", 120)


def damaged_index(folder: Path) -> None:
    flip(next(folder.glob("1_0.*.index")), 90)


def index_gone(folder: Path) -> None:
    for path in folder.glob("2_0.*.index"):
        path.unlink()


def damaged_header(folder: Path) -> None:
    flip(folder / "2_0.log", 20)


def damaged_descriptor(folder: Path) -> None:
    flip(folder / DESCRIPTOR_FILE, 20)


def descriptor_gone(folder: Path) -> None:
    (folder / DESCRIPTOR_FILE).unlink()


def torn_tail(folder: Path) -> None:
    newest = max(folder.glob("*.log"), key=lambda path: int(path.name.split("_")[0]))
    newest.write_bytes(newest.read_bytes()[:-3])


def segment_gone(folder: Path) -> None:
    (folder / "2_0.log").unlink()


def damaged_compaction_log(folder: Path) -> None:
    (folder / LOG_NAME).write_bytes(b"no log")


def half_a_segment(folder: Path) -> None:
    (folder / "1000_0.log").write_bytes(b"CLBLOBSG")


@pytest.mark.parametrize("harm", [
    damaged_record, damaged_index, index_gone, damaged_header, damaged_descriptor, descriptor_gone, torn_tail,
    segment_gone, damaged_compaction_log, half_a_segment], ids=lambda harm: harm.__name__)
def test_damage_is_named_and_hides_nothing_else(harm: Callable[[Path], None], folder: Path, clock: ManualClock) -> None:
    garbage_store(folder, clock).close()
    harm(folder)
    before = picture(folder)
    with reading(folder, clock) as reader:
        found = [answer_of(reader, number) for number in range(60)]
        named = {(Path(error.path).name, error.offset) for error in reader.damage}
        report = reader.verify()
        everything = entries(reader)
    assert picture(folder) == before
    with open_store(folder, clock) as store:
        assert found == [answer_of(store, number) for number in range(60)]
        assert everything == entries(store)
        assert named == {(Path(error.path).name, error.offset) for error in store.recovery.damage} | {
            (Path(error.path).name, error.offset) for error in (store.compaction_recovery.damage,) if error is not None}
        assert report.is_sound == (store.verify().is_sound and not named)


def shown(store: BlobStore | BlobReader, number: int) -> object:
    """As `answer_of`; whether the content of a deleted blob is still there does not matter."""
    answer = answer_of(store, number)
    return (answer.id, answer.deleted_at) if isinstance(answer, Deleted) else answer


def answer_of(store: BlobStore | BlobReader, number: int) -> object:
    try:
        answer = store.get(f"b{number}")
    except CorruptData as error:
        return Path(error.path).name, error.offset
    return answer.content if isinstance(answer, Blob) else answer


@pytest.mark.parametrize("size", [0, 1, 40, 79, 200])
def test_any_bytes_under_the_names_of_a_store_are_read_or_refused(size: int, tmp_path: Path,
                                                                  clock: ManualClock) -> None:
    random_bytes = random.Random(size).randbytes
    for name in (DESCRIPTOR_FILE, LOG_NAME, "HARD_DELETE", "plan_history.json", "0_0.log", "5_0.log", "0_0.80.index"):
        folder = tmp_path / f"{name} {size}"
        garbage_store(folder, clock, count=10).close()
        (folder / name).write_bytes(random_bytes(size))
        before = picture(folder)
        try:
            with reading(folder, clock) as reader:
                list(reader.infos())
                reader.plan()
                reader.verify()
        except CompactlibError as error:
            assert str(folder) in str(error)
        assert picture(folder) == before


# ---------------------------------------------------------------------------------------- while the owner works

class Watched(LocalFiles):
    """A disk that somebody looks at before each change of a name, and after it."""

    def __init__(self) -> None:
        self.look: Callable[[], object] = lambda: None
        self.looks = 0

    def _watched(self, change: Callable[[], Any]) -> Any:
        self._looked()
        done = change()
        self._looked()
        return done

    def _looked(self) -> None:
        self.looks += 1
        self.look()

    def create(self, path: StrPath) -> OutFile:
        return self._watched(lambda: LocalFiles.create(self, path))  # type: ignore[no-any-return]

    def open(self, path: StrPath) -> OutFile:
        return self._watched(lambda: LocalFiles.open(self, path))  # type: ignore[no-any-return]

    def rename(self, source: StrPath, target: StrPath) -> None:
        self._watched(lambda: LocalFiles.rename(self, source, target))

    def unlink(self, path: StrPath) -> None:
        self._watched(lambda: LocalFiles.unlink(self, path))

    def sync_folder(self, path: StrPath) -> None:
        self._watched(lambda: LocalFiles.sync_folder(self, path))


@pytest.mark.parametrize("swaps", [1, 3])
def test_at_each_step_of_a_compaction_a_new_reader_and_an_old_one_answer_right(swaps: int, scratch: Path,
                                                                             clock: ManualClock) -> None:
    files = Watched()
    folder = scratch / "store"
    with garbage_store(folder, clock, count=24, files=files, swap_segments=swaps) as store:
        wanted = [shown(store, number) for number in range(24)]
        with reading(folder, clock, max_open_segments=1) as old:
            def look() -> None:
                assert [shown(old, number) for number in range(24)] == wanted
                with reading(folder, clock) as new:
                    assert not new.damage
                    assert [shown(new, number) for number in range(24)] == wanted

            files.look = look
            compact_all(store)
            files.look = lambda: None
    assert files.looks > 40


def test_at_each_step_of_a_hard_delete_nothing_is_half_of_each(scratch: Path, clock: ManualClock) -> None:
    files = Watched()
    folder = scratch / "store"
    with garbage_store(folder, clock, count=24, files=files) as store, reading(folder, clock) as old:
        wanted = [shown(store, number) for number in range(24)]
        contents = [store.get(f"b{number}", EVERYTHING) for number in range(24)]

        def look() -> None:
            with reading(folder, clock) as new:
                assert not new.damage
                for reader in (old, new):
                    assert [shown(reader, number) for number in range(24)] == wanted
                    for number, content in enumerate(contents):
                        found = reader.get(f"b{number}", EVERYTHING)
                        assert found == content or (isinstance(found, Deleted) and found.content_gone)

        files.look = look
        assert isinstance(store.hard_delete(budget=Budget()), Done)
        files.look = lambda: None
        with reading(folder, clock) as after:
            assert all(isinstance(after.get(f"b{number}", EVERYTHING), Deleted) for number in range(12)
                       if number % 3) or entries(after) == entries(store)
    assert files.looks > 10


def test_threads_share_a_reader_while_the_owner_compacts(folder: Path, clock: ManualClock) -> None:
    stop, errors = threading.Event(), list[BaseException]()
    with garbage_store(folder, clock, count=30, swap_segments=2) as store:
        kept = {number: shown(store, number) for number in range(0, 30, 3)}

        def read(seed: int) -> None:
            order = random.Random(seed)
            try:
                while not stop.is_set():
                    number = order.choice(list(kept))
                    assert shown(reader, number) == kept[number]
                    if order.random() < 0.1:
                        reader.refresh()
            except BaseException as error:
                errors.append(error)

        with reading(folder, clock, max_open_segments=2) as reader:
            threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
            for thread in threads:
                thread.start()
            for number in range(6):
                fill(store, 6, random.Random(number), first=100 * (number + 1))
                delete_some(store, range(100 * (number + 1), 100 * (number + 1) + 5), clock)
                store.compact(plan_of(store))
            stop.set()
            for thread in threads:
                thread.join()
    assert errors == []


def test_a_file_that_the_owner_removes_while_a_reader_looks_at_it_is_no_damage(
        folder: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    with garbage_store(folder, clock, count=10) as store:
        expected = entries(store)
    (folder / LOG_NAME).write_bytes(b"")
    real = os.stat

    def and_remove(path: Any, *args: Any, **options: Any) -> os.stat_result:
        found = real(path, *args, **options)
        if str(path).endswith(LOG_NAME):
            os.unlink(path)
        return found

    monkeypatch.setattr(os, "stat", and_remove)
    with reading(folder, clock) as reader:
        assert entries(reader) == expected
    assert not (folder / LOG_NAME).exists()
