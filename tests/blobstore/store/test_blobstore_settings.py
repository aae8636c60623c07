# SPDX-License-Identifier: Apache-2.0
"""Settings may change between two openings: whatever was acknowledged under the old ones stays, whatever the new ones.

Each life opens the store under settings drawn for it, writes, deletes, compacts, goes on with what an earlier life had
begun, erases; and is closed, or dies at some change to the disk. Capacity and the size of segments come from the disk.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from compactlib.blobstore import Blob, BlobStore, BlobStoreConfig, CompactAll, Deleted, Expired, Missing, StoreFull
from compactlib.blobstore.store.replication import ReplicaEntry
from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent, Conflict, NotFound
from compactlib.outcome import Failed
from compactlib.runtime import Budget
from tests.tools.faults.plan import Crash, FailingFiles, Fault
from tests.tools.settings import SettingsReport, check_settings

CREATED = BlobStoreConfig(capacity_bytes=1 << 15, segment_bytes=1 << 10)
REFUSED = (NotFound, Conflict, StoreFull)


def drawn_settings(seed: int, count: int) -> list[BlobStoreConfig]:
    """Legal settings far from each other."""
    rng = random.Random(seed)
    return [BlobStoreConfig(
        capacity_bytes=rng.choice([1 << 15, 1 << 13, 1 << 20]), segment_bytes=rng.choice([1 << 10, 1 << 13]),
        durability=rng.choice(["each", "group", "interval"]), sync_interval_seconds=rng.choice([0.0, 1e6]),
        max_open_segments=rng.choice([1, 256]), index_max_entries=rng.choice([1, 3, 10_000]),
        index_max_bytes=rng.choice([1, 300, 1 << 20]), journal_max_entries=rng.choice([0, 1, 10_000]),
        find_max_entries=rng.choice([1, 5_000]), ttl_update_buffer_seconds=rng.choice([0.0, 86_400.0]),
        deleted_retention_seconds=rng.choice([0.0, 5.0, 1e6]), pace=None,
        compaction_buffer_bytes=rng.choice([1, 1 << 20]), swap_segments=rng.choice([1, 2, 5]),
        purge_tombstones=rng.random() < 0.3,
        max_blob_bytes=rng.choice([0, 500])) for _ in range(count)]


@attrs.define
class Known:
    """What was acknowledged of a blob; of a step without an answer, both that it happened and that it did not."""

    content: bytes
    expires_at: float | None
    states: set[str]
    permanent: bool = False


class World:
    """A folder, a clock, and what was acknowledged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock(1_000_000.0)
        self.known: dict[bytes, Known] = {}
        self.names = (b"%d" % number for number in itertools.count())
        BlobStore(folder, CREATED, clock=self.clock).close()

    def open(self, config: BlobStoreConfig, files: FailingFiles | None = None) -> BlobStore:
        store = BlobStore(self.folder, config, files=files, clock=self.clock)
        store.accept_clock()
        return store


def life(world: World, config: BlobStoreConfig, rng: random.Random) -> None:
    """A few dozen steps, and the end: closed, or dead at some change to the disk."""
    dies_at = rng.choice([None, rng.randrange(1, 15), rng.randrange(1, 150)])
    files = FailingFiles(faults=lambda number: Fault.CRASH_BEFORE if number == dies_at else None)
    with contextlib.suppress(Crash), world.open(config, files) as store:
        assert (store.capacity_bytes, store.segment_bytes) == (CREATED.capacity_bytes, CREATED.segment_bytes)
        for _ in range(rng.randrange(5, 30)):
            rng.choice(STEPS)(world, store, rng)
            world.clock.advance(rng.choice([0.0, 0.5, 3.0]))


def put(world: World, store: BlobStore, rng: random.Random) -> None:
    key, content = next(world.names), rng.randbytes(rng.choice([0, 30, 300, 800]))
    seconds = rng.choice([None, None, 2.0, 30.0])
    with contextlib.suppress(StoreFull):
        known = Known(content, None if seconds is None else world.clock.now() + seconds, {"live", "missing"})
        world.known[key] = known
        try:
            store.put(key, content, ttl_seconds=seconds)
        except StoreFull:
            del world.known[key]
            raise
        known.states = {"live"}


def _changes(operation: str, state: str) -> Callable[[World, BlobStore, random.Random], None]:
    def change(world: World, store: BlobStore, rng: random.Random) -> None:
        if not world.known:
            return
        key = rng.choice(sorted(world.known))
        known = world.known[key]
        before = set(known.states)
        known.states.add(state)
        try:
            getattr(store, operation)(key)
        except REFUSED:
            known.states = before
        else:
            known.states = {state}
            if operation == "ttl_update":
                known.permanent = True
    return change


def compact(world: World, store: BlobStore, rng: random.Random) -> None:
    budget = Budget(total_bytes=rng.choice([None, 200, 2_000]))
    if store.compaction is not None:
        outcome = store.resume(budget=budget) if rng.random() < 0.8 else store.drop_compaction()
    else:
        with contextlib.suppress(StoreFull):
            store.close_active_segment()
        outcome = store.compact(policy=CompactAll(min_used_fraction=0.0), budget=budget)
    if isinstance(outcome, Failed) and not isinstance(outcome.error, BudgetSpent):
        raise outcome.error


def erase(world: World, store: BlobStore, rng: random.Random) -> None:
    outcome = store.hard_delete(budget=Budget())
    assert not isinstance(outcome, Failed) or store.compaction is not None, outcome


STEPS = [put, put, put, put, _changes("delete", "deleted"), _changes("undelete", "live"),
         _changes("ttl_update", "live"), compact, erase]


def audit(world: World, config: BlobStoreConfig) -> None:
    """Every blob is as it was acknowledged, and what nobody answered for is one or the other from now on."""
    with world.open(config) as store:
        assert not store.recovery.damage
        store.audit()
        assert store.verify().is_sound
        for key, known in list(world.known.items()):
            found = store.get(key)
            kept = {state for state in known.states if _fits(world, known, state, found, config)}
            assert kept, (key, known.states, known.expires_at, found, world.clock.now())
            known.states = kept
            if kept == {"missing"}:
                del world.known[key]
            if isinstance(found, Blob):
                known.permanent = found.info.expires_at is None
        told = {entry.id for entry in _everything(store)}
        assert told >= {key for key, known in world.known.items() if isinstance(store.get(key), Blob)}


def _fits(world: World, known: Known, state: str, found: object, config: BlobStoreConfig) -> bool:
    over = not known.permanent and known.expires_at is not None and known.expires_at < world.clock.now() + 0.001
    if state == "missing":
        return isinstance(found, Missing)
    if state == "deleted":
        return isinstance(found, Deleted) or (isinstance(found, Missing) and known.expires_at is not None)
    if isinstance(found, Blob):
        return found.content == known.content
    return over and isinstance(found, Expired | Missing)


def _everything(store: BlobStore) -> Iterator[ReplicaEntry]:
    token = None
    while True:
        found = store.entries_since(token)
        yield from found.entries
        token = found.token
        if found.at_end:
            return


def run(folder: Path, histories: int, first_seed: int) -> SettingsReport:
    folders = (folder / str(number) for number in itertools.count())
    return check_settings(lambda: World(next(folders)), drawn_settings(first_seed, 40), life, audit,
                          histories=histories, lives=5, first_seed=first_seed)


def test_settings_may_change_between_two_openings(scratch: Path) -> None:
    report = run(scratch, 12, 0)
    assert report.changes > 25


@pytest.mark.soak
@pytest.mark.parametrize("block", range(4))
def test_settings_may_change_between_two_openings_long(block: int, scratch: Path) -> None:
    run(scratch, 250, 1_000 + 250 * block)
