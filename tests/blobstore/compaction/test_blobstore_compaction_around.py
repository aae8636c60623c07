# SPDX-License-Identifier: Apache-2.0
"""What lies around a compaction: killed owners and their successors, other settings, forks."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.blobstore import Blob, BlobStore, BlobStoreConfig, CompactAll, Deleted, Missing
from compactlib.blobstore.config import Durability
from compactlib.clock import ManualClock
from compactlib.errors import Closed, CompactlibError
from compactlib.files import Files
from compactlib.outcome import Done, Failed
from compactlib.runtime import Budget
from compactlib.testing import RecordingFiles, explore_kills
from tests.blobstore.compaction_stores import plan_of, strays
from tests.harness.forks import check_fork
from tests.tools.settings import check_settings

NOW = 1_000_000.0
CONFIG = BlobStoreConfig(capacity_bytes=1 << 15, segment_bytes=1 << 10, index_max_entries=5, journal_max_entries=0,
                         deleted_retention_seconds=0, max_blob_bytes=0, durability="interval",
                         ttl_update_buffer_seconds=0.0, pace=None,
                         stats_entries_per_second=None, compaction_buffer_bytes=1, swap_segments=1)


def opened(folder: Path, files: Files | None = None, *, config: BlobStoreConfig = CONFIG,
           clock: ManualClock | None = None) -> BlobStore:
    return BlobStore(folder / "store", config, files=files, clock=ManualClock(NOW) if clock is None else clock,
                     name="store", new_incarnation=lambda: b"the incarnation.")


def secret(key: bytes) -> bytes:
    """The content of a blob, which no other one has."""
    return b"<" + key * 30 + b">" * (40 + 7 * (key[-1] % 9))


# ----------------------------------------------------------------------------------- kill, acknowledge, power failure

def life(name: bytes) -> Any:
    """Puts and deletes, a compaction that is stopped and goes on, one that is dropped, a hard delete, the end."""
    def live(folder: Path, files: RecordingFiles) -> None:
        clock = ManualClock(NOW)
        # A killed process dies in the middle: what it would still do while it unwinds goes nowhere.
        with opened(folder, files, clock=clock) as store:
            keys = [b"%s%d" % (name, number) for number in range(9)]
            for key in keys:
                store.put(key, secret(key))
            for key in keys[::2]:
                store.delete(key)
            store.flush()
            for number, key in enumerate(keys):
                files.acknowledge((key, "put" if number % 2 else "deleted"))
            clock.advance(1.0)
            if store.compaction is not None:
                store.resume(budget=Budget())
            store.close_active_segment()
            store.compact(plan(store), budget=Budget(total_bytes=700))
            store.resume(budget=Budget())
            outcome = store.hard_delete(budget=Budget())
            if isinstance(outcome, Done):
                for key in keys[::2]:
                    files.acknowledge((key, "erased"))
            store.put(b"%sx" % name, secret(b"%sx" % name))
            store.delete(keys[1])
            store.close_active_segment()
            clock.advance(1.0)
            if store.snapshot().eligible():
                stopped = store.compact(plan(store), budget=Budget(total_bytes=300))
                if isinstance(stopped, Failed):
                    store.drop_compaction()
        files.acknowledge((b"closed", name))
    return live


def plan(store: BlobStore) -> Any:
    return attrs.evolve(plan_of(store, reference=store.clock.now()), reference_time=store.clock.now())


def check_killed(folder: Path, acknowledged: Sequence[Any]) -> None:
    told = dict(acknowledged)
    if not told:
        return
    clock = ManualClock(NOW + 10)
    with opened(folder, clock=clock) as store:
        assert not store.recovery.damage, store.recovery.damage
        check_told(store, told)
        store.audit()
        assert not isinstance(store.resume(budget=Budget()), Failed)
        store.put(b"after", secret(b"after"))
        store.close_active_segment()
        assert isinstance(store.compact(plan(store), budget=Budget()), Done)
        check_told(store, told)
    assert strays(folder / "store") == []


def check_told(store: BlobStore, told: dict[bytes, str]) -> None:
    found = store.verify()
    assert found.is_sound, str(found)
    store.audit()
    on_disk = b"".join(path.read_bytes() for path in sorted(Path(store.folder).glob("*.log")))
    for key, state in told.items():
        if key == b"closed":
            continue
        answer = store.get(key)
        if state == "put":
            # The second one of each life is deleted at the end.
            assert isinstance(answer, Blob) or (key.endswith(b"1") and isinstance(answer, Deleted)), (key, answer)
            assert not isinstance(answer, Blob) or answer.content == secret(key)
        else:
            assert isinstance(answer, Deleted | Missing), (key, answer)
        if state == "erased":
            assert secret(key) not in on_disk, key


def kills(scratch: Path, *, limit: int, points: list[int] | None = None,
          max_states: int | None = None) -> int:
    return explore_kills(life(b"first"), life(b"next"), check_killed, limit_per_point=limit, points=points,
                         max_states=max_states, seed=0, scratch=scratch)


def test_what_a_compactions_successor_acknowledges_survives_a_power_failure(scratch: Path) -> None:
    assert kills(scratch, limit=2, points=[14, 98]) >= 100


@pytest.mark.soak
@pytest.mark.parametrize("part", range(13))
def test_what_a_compactions_successor_acknowledges_survives_a_power_failure_long(part: int, scratch: Path) -> None:
    checked = kills(scratch, limit=2, points=list(range(part + 1, 196, 13)))
    assert checked >= 500


# ------------------------------------------------------------------------------------------------------ other settings

_DRAWN: list[tuple[int, int, int, bool, Durability, int, float]] = [
    (1, 5, 0, False, "each", 1, 0.0), (3, 2, 0, True, "interval", 4096, 5.0), (2, 100, 4, False, "group", 1, 100.0),
    (8, 3, 0, False, "interval", 1 << 20, 0.0)]
SETTINGS = [attrs.evolve(CONFIG, swap_segments=swaps, index_max_entries=entries, journal_max_entries=journal,
                         purge_tombstones=purge, durability=durability, compaction_buffer_bytes=buffer,
                         deleted_retention_seconds=retention, max_open_segments=1 + swaps)
            for swaps, entries, journal, purge, durability, buffer, retention in _DRAWN]


@attrs.define
class World:
    """A store and what was acknowledged in it."""

    folder: Path
    clock: ManualClock = attrs.Factory(lambda: ManualClock(NOW))
    live: dict[bytes, bytes] = attrs.Factory(dict)
    dead: set[bytes] = attrs.Factory(set)
    count: int = 0


def live(world: World, config: BlobStoreConfig, rng: random.Random) -> None:
    """Write, compact as far as a budget goes, resume, drop, erase, in any order; close."""
    with opened(world.folder, config=config, clock=world.clock) as store:
        for _ in range(rng.randrange(2, 8)):
            work = rng.choice(["put", "put", "delete", "compact", "resume", "drop", "erase", "check"])
            world.clock.advance(rng.choice([0.0, 1.0, 7.0]))
            budget = Budget(total_bytes=rng.choice([1, 500, 1500, 1 << 30]))
            if work == "put":
                for _ in range(rng.randrange(1, 6)):
                    world.count += 1
                    key = b"b%d" % world.count
                    store.put(key, secret(key) * rng.randrange(1, 4))
                    world.live[key] = store.get(key).content  # type: ignore[union-attr]
            elif work == "delete" and world.live:
                key = rng.choice(sorted(world.live))
                store.delete(key)
                del world.live[key]
                world.dead.add(key)
            elif work == "compact" and store.compaction is None and store.snapshot().eligible():
                store.compact(attrs.evolve(plan_of(store), reference_time=(
                    store.clock.now() - config.deleted_retention_seconds)), budget=budget)
            elif work == "resume":
                store.resume(budget=budget)
            elif work == "drop" and (store.compaction is None or store.compaction.phase.value in ("prepare", "copy")):
                store.drop_compaction()
            elif work == "erase":
                store.hard_delete(budget=budget)
            elif work == "check":
                store.compact(policy=CompactAll(min_used_fraction=0.0), budget=budget)
                store.reclaim(budget=budget)


def audit(world: World, config: BlobStoreConfig) -> None:
    with opened(world.folder, config=config, clock=world.clock) as store:
        assert not store.recovery.damage
        store.audit()
        for key, content in world.live.items():
            answer = store.get(key)
            assert isinstance(answer, Blob), (key, answer)
            assert answer.content == content
        for key in world.dead:
            assert isinstance(store.get(key), Deleted | Missing), key
        report = store.verify()
        assert report.is_sound, str(report)


def under_settings(scratch: Path, histories: int) -> None:
    numbers = itertools.count()

    def world() -> World:
        folder = scratch / str(next(numbers))
        folder.mkdir()
        return World(folder)

    report = check_settings(world, SETTINGS, live, audit, histories=histories, lives=5)
    assert report.changes > histories


def test_a_compaction_goes_on_under_other_settings(scratch: Path) -> None:
    under_settings(scratch, 8)


@pytest.mark.soak
def test_a_compaction_goes_on_under_other_settings_long(scratch: Path) -> None:
    under_settings(scratch, 1000)


# ---------------------------------------------------------------------------------------------------------------- forks

@pytest.mark.parametrize("work", ["compact", "resume", "drop", "erase", "view", "check"])
def test_a_fork_compacts_nothing_of_what_its_parent_has_open(work: str, scratch: Path) -> None:
    count, parent = itertools.count(), os.getpid()
    plans: list[Any] = []

    def write(store: BlobStore) -> None:
        if work == "compact":
            if os.getpid() == parent:
                plans.append(plan(store))
            store.compact(plans[-1], budget=Budget(total_bytes=1))
            store.drop_compaction()
        elif work == "resume":
            store.resume(budget=Budget())
        elif work == "drop":
            store.drop_compaction()
        elif work == "erase":
            outcome = store.hard_delete(budget=Budget())
            if isinstance(outcome, Failed):
                raise outcome.error
        elif work == "view":
            store.view()
        else:
            store.compact(policy=CompactAll(min_used_fraction=0.0))
        if os.getpid() != parent:
            return
        key = b"new %d" % next(count)
        store.put(key, secret(key))
        store.delete(key)
        store.close_active_segment()

    def open_it() -> BlobStore:
        store = opened(scratch)
        if not store.snapshot().eligible():
            for number in range(6):
                store.put(b"%d" % number, secret(b"%d" % number))
            store.close_active_segment()
        return store

    refused: CompactlibError = check_fork(open_it, write, BlobStore.close)
    assert isinstance(refused, Closed)
    assert "fork" in str(refused)
