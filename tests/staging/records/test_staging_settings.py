# SPDX-License-Identifier: Apache-2.0
"""A repository reopened under other settings, after a close or a crash: nothing acknowledged changes."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import attrs
import pytest

from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError
from compactlib.kv import MemoryStore
from compactlib.objects import MemoryObjects
from compactlib.staging import (
    AlwaysPolicy,
    CommittedRanges,
    ParquetFormat,
    PlainFormat,
    Repository,
    SplitRule,
    StagingOptions,
)
from compactlib.staging.committed.formats.rows import RangeFormat
from compactlib.staging.compaction.reclaim.cleanup import TokenCleaner
from compactlib.staging.compaction.reclaim.garbage import collect_garbage
from tests.harness.faulty_store import FaultyStore, KVFault, KVOperation
from tests.tools.faults.plan import Crash
from tests.tools.settings import check_settings

KEYS = [b"a", b"a/1", b"a/\xff", b"b", b"\x00", b"\xff\xff", *(b"k%02d" % number for number in range(12))]


@attrs.frozen
class Settings:
    """What a process may be started with."""

    options: StagingOptions
    rule: SplitRule
    range_format: RangeFormat
    cache_bytes: int
    window_seconds: float
    grace_seconds: float


def _drawn(rng: random.Random) -> Settings:
    return Settings(
        StagingOptions(max_write_tries=rng.choice([1, 8]), max_read_tries=rng.choice([1, 10]),
                       max_update_tries=rng.choice([1, 10]), first_backoff_seconds=rng.choice([0, 0.5]),
                       max_backoff_seconds=rng.choice([0, 5]), max_scanned=rng.choice([1, 3, 100_000]),
                       diff_cache_bytes=rng.choice([0, 1 << 20]), on_new_sealed=rng.choice(["abort", "keep"])),
        SplitRule(min_bytes=rng.choice([0, 50]), max_bytes=rng.choice([60, 10_000]), raggedness=rng.choice([2, 50])),
        FORMATS[rng.randrange(3)], rng.choice([0, 1 << 20]),
        rng.choice([0.0, 300.0]), rng.choice([0.0, 3600.0]))


FORMATS: list[RangeFormat] = [PlainFormat(), PlainFormat(), ParquetFormat()]
SETTINGS = [_drawn(random.Random(number)) for number in range(12)]


class World:
    """The stores, and beside them what was acknowledged."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000.0)
        self.store, self.objects = MemoryStore(), MemoryObjects(clock=self.clock)
        self.now: dict[bytes, set[bytes | None]] = {}
        self.lives = 0

    def repo(self, settings: Settings, store: Any = None) -> Repository:
        self.lives += 1
        committed = CommittedRanges(self.objects, rule=settings.rule, range_format=settings.range_format,
                                    cache_bytes=settings.cache_bytes, clock=self.clock)
        return Repository(self.store if store is None else store, committed, options=settings.options,
                           clock=self.clock, rng=random.Random(self.lives))


def life(world: World, settings: Settings, rng: random.Random) -> None:
    """Random work; it ends in a crash at any request, or in order."""
    crash_at = rng.choice([None, rng.randrange(1, 150)])

    def choose(operation: KVOperation) -> KVFault | None:
        return rng.choice([KVFault.CRASH_BEFORE, KVFault.CRASH_AFTER]) if operation.number == crash_at else None

    with contextlib.suppress(Crash):
        _live(world, settings, rng, world.repo(settings, FaultyStore(world.store, choose)))


def _live(world: World, settings: Settings, rng: random.Random, repo: Repository) -> None:
    main = repo.branch("main")
    with contextlib.suppress(CompactlibError):
        main = repo.create_branch("main")
    for _ in range(rng.randrange(3, 15)):
        match rng.randrange(9):
            case 0 | 1 | 2 | 3:
                key, value = rng.choice(KEYS), rng.choice([b"", b"v%d" % rng.randrange(100), None])
                before = world.now.get(key, {None})
                world.now[key] = before | {value}
                main.delete(key) if value is None else main.put(key, value)
                world.now[key] = {value}
            case 4:
                main.commit("a step")
            case 5:
                key = rng.choice(KEYS)
                with contextlib.suppress(CompactlibError):
                    kept = world.now.get(key, {None})
                    world.now[key] = kept | {b"conditional"}
                    main.put_if(key, b"conditional", None)
                    world.now[key] = {b"conditional"}
                    continue
                world.now[key] = kept
            case 6:
                repo.compact(policy=AlwaysPolicy(window_seconds=settings.window_seconds))
            case 7:
                cleaner = TokenCleaner(repo.context, grace_seconds=settings.grace_seconds, orphan_seconds=3600)
                cleaner.run()
                cleaner.sweep()
            case _:
                collect_garbage(repo.context, grace_seconds=3600)
        world.clock.advance(rng.choice([0.001, 1.0, 400.0, 4000.0]))


def audit(world: World, settings: Settings) -> None:
    """Every key is what was acknowledged last, or, if a crash came before the answer, what was asked for."""
    repo = world.repo(settings)
    try:
        main = repo.branch("main")
        main.record()
    except CompactlibError:
        assert not world.now
        return
    found = {entry.key: entry.record.data for entry in main.entries(page_limit=3) if entry.record is not None}
    for key in KEYS:
        allowed = world.now.get(key, {None})
        assert found.get(key) in allowed, f"{key!r} is {found.get(key)!r}, and {allowed} was written"
        world.now[key] = {found.get(key)}
    for key in KEYS[:4]:
        assert (main.get_many([key]).get(key) is None) == (key not in found)
    assert all(record.data is not None for _, record in main.head().records())
    list(main.differences(page_limit=2))
    repo.audit()


def test_nothing_acknowledged_changes_under_other_settings() -> None:
    assert check_settings(World, SETTINGS, life, audit, histories=16, lives=4).changes > 20


@pytest.mark.soak
@pytest.mark.parametrize("part", range(8))
def test_nothing_acknowledged_changes_in_a_thousand_histories(part: int) -> None:
    report = check_settings(World, SETTINGS, life, audit, histories=125, lives=5, first_seed=1000 * (part + 1))
    assert report.lives == 625
