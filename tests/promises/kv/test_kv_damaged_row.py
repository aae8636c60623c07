# SPDX-License-Identifier: Apache-2.0
"""A damaged row of an SQLite file that no one needs any more is deleted like its sound neighbours."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from compactlib.clock import ManualClock
from compactlib.kv import SnapshotStore, SqliteStore
from compactlib.kv.errors import DamagedStore
from compactlib.objects import MemoryObjects
from compactlib.staging import CommittedRanges, Repository, StagingOptions

WEEK = 7 * 86_400.0


def damage(path: Path, partition: bytes, key: bytes) -> None:
    """Change the value of a row, and not its checksum."""
    with closing(sqlite3.connect(path)) as connection, connection:
        changed = connection.execute("UPDATE cells SET value = x'00' WHERE partition = ? AND key = ?",
                                     (partition, key)).rowcount
    assert changed == 1


def test_damaged_entry_of_a_dropped_token_is_removed_with_the_token(tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000.0)
    with closing(SqliteStore(tmp_path / "kv")) as kv:
        ranges = CommittedRanges(MemoryObjects(clock=clock), clock=clock)
        repository = Repository(kv, ranges, options=StagingOptions(owns_ranges=True), clock=clock, rng=Random(1))
        main = repository.create_branch("main")
        main.put_many({b"%d" % number: b"data" for number in range(5)})
        token = main.record().staging_token.encode()
        main.reset()
        partition, = (each for each in kv.partitions() if token in each)
        damage(tmp_path / "kv", partition, b"3")
        with pytest.raises(DamagedStore):
            list(kv.scan(partition))
        clock.advance(WEEK)
        report = repository.reclaim()
        assert (report.tokens_removed, report.entries_removed) == (1, 5)
        assert not list(kv.scan(partition))


def test_damaged_chunk_of_a_replaced_snapshot_is_deleted(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "kv")) as kv:
        snapshots = SnapshotStore(kv, b"s")
        snapshots.save(1, 7, b"replaced")
        old = {entry.key for entry in kv.scan(b"s") if entry.value == b"replaced"}
        snapshots.save(1, 9, b"in force")
        damage(tmp_path / "kv", b"s", *old)
        snapshots.delete_leftovers()
        assert old.isdisjoint(entry.key for entry in kv.scan(b"s"))
        assert (found := snapshots.load()) is not None
        assert found.data == b"in force"


def test_damaged_value_is_named_by_each_call_that_returns_values(tmp_path: Path) -> None:
    keys = [b"a", b"b", b"c"]
    with closing(SqliteStore(tmp_path / "kv")) as kv:
        for key in keys:
            kv.set(b"p", key, b"v")
        damage(tmp_path / "kv", b"p", b"b")
        for cells in ([(b"p", b"b")], [(b"p", key) for key in keys]):
            with pytest.raises(DamagedStore):
                kv.get_many(cells)
        with pytest.raises(DamagedStore):
            kv.get(b"p", b"b")
        with kv.scan(b"p") as entries:
            assert next(entries).key == b"a"
            for _ in range(2):
                with pytest.raises(DamagedStore):
                    next(entries)
        found = list(kv.scan(b"p", keys_only=True))
        assert [(each.key, each.damage is None) for each in found] == [(b"a", True), (b"b", False), (b"c", True)]
        kv.set_if(b"p", b"b", b"new", found[1].predicate)
        assert [each.value for each in kv.scan(b"p")] == [b"v", b"new", b"v"]
