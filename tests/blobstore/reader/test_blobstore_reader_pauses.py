# SPDX-License-Identifier: Apache-2.0
"""A reader stands still at any of its looks at the disk, while the owner writes, compacts, erases and opens anew: it
answers as of before or after, and calls nothing damaged or left over that is not."""

from __future__ import annotations

import builtins
import contextlib
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compactlib.blobstore import Blob, BlobReader, BlobStore, CompactAll
from compactlib.blobstore.compaction.progress.compaction_file import LOG_NAME
from compactlib.blobstore.log.load_log import list_log
from compactlib.blobstore.store import blob_reader, store_reader
from compactlib.blobstore.store.verify import verify_segment
from compactlib.clock import ManualClock
from compactlib.errors import Busy, CompactlibError
from compactlib.runtime import Budget
from tests.blobstore.compaction_stores import (
    EVERYTHING,
    RETENTION,
    START,
    compact_all,
    config,
    garbage_store,
    open_store,
    plan_of,
)
from tests.harness.effort import Effort

_LOOKS = ("open", "stat", "lstat", "scandir", "listdir", "pread", "preadv")
_WORK = ("put", "delete", "undelete", "ttl_update", "compact", "compact", "compact", "compact a little", "erase",
         "erase", "open anew", "reclaim", "wait")


class Pauses:
    """Counts what is asked of the system; `meanwhile` happens before the request with the chosen number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        self.meanwhile: Callable[[], object] = lambda: None
        for where, names in ((os, _LOOKS), (os.path, ("lexists", "isdir")), (builtins, ("open",))):
            for name in names:
                monkeypatch.setattr(where, name, self._counted(getattr(where, name)))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            if self.left:
                self.left -= 1
                if not self.left:
                    self.meanwhile()
            return call(*args, **options)

        return counted

    @contextlib.contextmanager
    def at(self, number: int, meanwhile: Callable[[], object]) -> Iterator[None]:
        self.left, self.meanwhile = number, meanwhile
        try:
            yield
        finally:
            self.left = 0


class Owner:
    """A store, and what was put into it."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.rng = rng
        self.folder = folder
        self.clock = ManualClock(START)
        self.contents: dict[bytes, bytes] = {}
        self.store = self._opened()
        for work in rng.choices(("put", "put", "delete", "compact", "wait"), k=rng.randrange(3, 8)):
            self.do(work)

    def _opened(self) -> BlobStore:
        return open_store(self.folder, self.clock, swap_segments=self.rng.choice([1, 2, 3]), capacity_bytes=60 * 2048)

    def do(self, work: str) -> None:
        store, rng = self.store, self.rng
        if work == "put":
            for _ in range(rng.randrange(1, 12)):
                key = b"k%d" % len(self.contents)
                self.contents[key] = key * rng.randrange(1, 60)
                with contextlib.suppress(CompactlibError):  # it may be full
                    store.put(key, self.contents[key], ttl_seconds=rng.choice([None, None, 5.0, 1e6]))
        elif work in ("delete", "undelete", "ttl_update"):
            for key in self.contents:
                if rng.random() < 0.4:
                    with contextlib.suppress(CompactlibError):
                        getattr(store, work)(key)
        elif work == "compact":
            store.compact(plan_of(store))
        elif work == "compact a little":
            store.compact(plan_of(store), budget=Budget(total_bytes=rng.randrange(100, 4000)))
        elif work == "erase":
            store.hard_delete(budget=Budget())
        elif work == "open anew":
            store.close()
            self.store = self._opened()
        elif work == "reclaim":
            store.reclaim()
        else:
            self.clock.advance(rng.choice([1, 6, RETENTION + 1]))


def told(store: BlobStore | BlobReader, owner: Owner) -> dict[bytes, list[object]]:
    answers: dict[bytes, list[Any]] = {
        key: [store.get(key), store.get(key, EVERYTHING)] for key in list(owner.contents)}
    for key, each in answers.items():
        assert all(answer.content == owner.contents[key] for answer in each if isinstance(answer, Blob))
    return {key: list(map(type, each)) for key, each in answers.items()}


def live(folder: Path, seed: int, pauses: Pauses) -> None:
    rng = random.Random(seed)
    owner = Owner(folder, rng)
    with contextlib.ExitStack() as ends:
        ends.callback(lambda: owner.store.close())
        reader = ends.enter_context(BlobReader(folder, config(), clock=owner.clock))
        for work in rng.choices(_WORK, k=rng.randrange(4)):
            owner.do(work)
        script = rng.choices(_WORK, k=rng.randrange(1, 6))
        work = rng.choice(["open", "refresh", "verify", "get", "plan"])
        with pauses.at(rng.randrange(1, rng.choice([10, 40, 150])), lambda: list(map(owner.do, script))):
            if work == "open":
                reader = ends.enter_context(BlobReader(folder, config(), clock=owner.clock))
            elif work == "verify":
                report = reader.verify()
                assert not report.findings, (work, script, str(report))
            elif work == "get":
                told(reader, owner)
            else:
                reader.refresh()
                reader.plan(CompactAll(min_used_fraction=0.0))
        assert not reader.damage, (work, script)
        reader.audit()
        told(reader, owner)
        reader.refresh()
        assert not reader.damage
        assert told(reader, owner) == told(owner.store, owner), (work, script)
        assert not reader.verify().findings


def test_a_reader_that_stands_still_anywhere_answers_right(scratch: Path, monkeypatch: pytest.MonkeyPatch,
                                                           effort: Effort) -> None:
    pauses = Pauses(monkeypatch)
    for seed in range(effort(40, 4_000)):
        try:
            live(scratch / "store", seed, pauses)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        shutil.rmtree(scratch / "store")


def test_what_a_compaction_makes_that_begins_while_a_reader_verifies_is_not_left_over(
        folder: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    with garbage_store(folder, clock, count=24) as store, BlobReader(folder, config(), clock=clock) as reader:
        real = verify_segment

        def and_begin(*args: Any) -> Any:
            if store.compaction is None:
                store.compact(plan_of(store), budget=Budget(total_bytes=500))
            return real(*args)

        monkeypatch.setattr(blob_reader, "verify_segment", and_begin)
        assert not reader.verify().findings
        assert store.compaction is not None
        assert any(name.endswith(".temp") for name in os.listdir(folder))


def test_a_store_whose_segments_are_compacted_away_at_each_try_is_busy_and_not_damaged(
        folder: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    with garbage_store(folder, clock, count=24) as store, BlobReader(folder, config(), clock=clock) as reader:
        real = verify_segment

        def and_compact(*args: Any) -> Any:
            compact_all(store)
            return real(*args)

        monkeypatch.setattr(blob_reader, "verify_segment", and_compact)
        with pytest.raises(Busy):
            reader.verify()
        monkeypatch.undo()
        assert not reader.verify().findings


def test_an_index_of_a_segment_that_a_compaction_removes_while_a_reader_looks_is_no_loss(
        folder: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    with garbage_store(folder, clock, count=24) as store:
        last = store.snapshot().eligible()[-1]
        index = folder / next(name for name in os.listdir(folder)
                              if name.startswith(f"{last}.") and name.endswith(".index"))
        data, real, looks = index.read_bytes(), list_log, list[str]()

        def and_compact(path: str, **options: Any) -> Any:
            looks.append(path)
            if len(looks) > 1:
                return real(path, **options)
            assert not (folder / LOG_NAME).exists()
            compact_all(store)
            # The last but one step of the removal, as it was.
            index.write_bytes(data)
            found = real(path, **options)
            index.unlink()
            return found

        monkeypatch.setattr(store_reader, "list_log", and_compact)
        with BlobReader(folder, config(), clock=clock) as reader:
            assert not reader.damage
            assert last not in {info.name for info in reader.snapshot().segments}
