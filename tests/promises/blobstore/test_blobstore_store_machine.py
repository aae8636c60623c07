# SPDX-License-Identifier: Apache-2.0
"""A store against a dictionary: everything that a host may do, in any order, with restarts and kills in between."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from compactlib.blobstore import (
    BlobStore,
    BlobStoreConfig,
    CompactAll,
    GetOptions,
    Greedy,
    ReplicationToken,
    StatsBased,
    StoreFull,
)
from compactlib.budget import Budget
from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent, CompactlibError
from tests.harness.plain_blob_store import PlainStore, told

POLICIES = {each.name: each for each in (
    CompactAll(min_used_fraction=0.0), StatsBased(min_used_fraction=0.0), Greedy(min_used_fraction=0.0))}
Durability = Literal["each", "group", "interval"]
IDS = [b"%d" % number for number in range(8)]
RETENTION_SECONDS = 5.0
BUFFER_SECONDS = 1.5
OPTIONS = [GetOptions(include_deleted=deleted, include_expired=expired)
           for deleted in (False, True) for expired in (False, True)]
ids = st.sampled_from(IDS)
contents = st.sampled_from([b"", b"a", b"content of some length", b"x" * 300])
ttls = st.sampled_from([None, 0.0, 0.001, 2.0, 7.5])
times = st.sampled_from([0.001, 0.5, 1.0, 1.5, 5.0])


def config_of(durability: Durability) -> BlobStoreConfig:
    return BlobStoreConfig(capacity_bytes=1 << 20, segment_bytes=1 << 10, durability=durability,
                           sync_interval_seconds=1.0, compaction_bytes_per_second=None,
                           deleted_retention_seconds=RETENTION_SECONDS,
                           ttl_update_buffer_seconds=BUFFER_SECONDS, journal_max_entries=4, max_open_segments=2,
                           find_max_entries=3)


class StoreMachine(RuleBasedStateMachine):
    """Tiny segments and index segments, so that each few steps begin new ones."""

    def __init__(self) -> None:
        super().__init__()
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.scratch = tempfile.TemporaryDirectory(prefix="compactlib-blobs-", dir=memory)
        self.folder = Path(self.scratch.name) / "0"
        self.lives = 0
        self.clock = ManualClock(1000.0)
        self.model = PlainStore(round(RETENTION_SECONDS * 1000), round(BUFFER_SECONDS * 1000))
        self.followed: dict[bytes, tuple[bool, bool, int]] = {}
        self.token: ReplicationToken | None = None
        self.killed: list[BlobStore] = []

    @initialize(durability=st.sampled_from(["each", "group", "interval"]))
    def create(self, durability: Durability) -> None:
        self.config = config_of(durability)
        self.store = BlobStore(self.folder, self.config, clock=self.clock)

    def teardown(self) -> None:
        self.store.close()
        self.scratch.cleanup()

    @property
    def now_ms(self) -> int:
        return round(self.clock.now() * 1000)

    def both(self, expected: type[CompactlibError] | None, operation: Callable[[], object]) -> None:
        try:
            operation()
        except CompactlibError as error:
            assert type(error) is expected, (error, expected)
        else:
            assert expected is None

    @rule(key=ids, content=contents, ttl=ttls, replace=st.booleans())
    def put(self, key: bytes, content: bytes, ttl: float | None, replace: bool) -> None:
        expected = self.model.put(key, content, self.now_ms, None if ttl is None else round(ttl * 1000),
                                  replace=replace)
        self.both(expected, lambda: self.store.put(key, content, ttl_seconds=ttl, replace=replace))

    @rule(key=ids)
    def delete(self, key: bytes) -> None:
        self.both(self.model.delete(key, self.now_ms), lambda: self.store.delete(key))

    @rule(key=ids)
    def undelete(self, key: bytes) -> None:
        self.both(self.model.undelete(key, self.now_ms), lambda: self.store.undelete(key))

    @rule(key=ids)
    def ttl_update(self, key: bytes) -> None:
        self.both(self.model.ttl_update(key, self.now_ms), lambda: self.store.ttl_update(key))

    @rule(seconds=times)
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def close_active_segment(self) -> None:
        try:
            self.store.close_active_segment()
        except StoreFull:
            assert self.store.status().free_segments == 0

    @rule(policy=st.sampled_from(sorted(POLICIES)), crashes=st.booleans())
    def compact(self, policy: str, crashes: bool) -> None:
        """Dead records are removed, all others stay; a spent budget leaves whole steps."""
        plan = self.store.plan(POLICIES[policy])
        if plan.is_empty:
            assert plan.why
            return
        if crashes:
            with contextlib.suppress(BudgetSpent):
                self.store.compact(plan, budget=Budget(total_bytes=400))
            self.store.close()
            self.store = BlobStore(self.folder, self.config, clock=self.clock)
        else:
            report = self.store.compact(plan)
            assert not report.is_partial
        for key in IDS:
            self.model.compacted(key, self.store.get(key), round(plan.reference_time * 1000), self.now_ms)
        if not crashes:
            there = {str(segment.name) for segment in self.store.view().segments}
            assert there.isdisjoint(map(str, plan.names))

    @rule(lose_index=st.booleans())
    def reopen(self, lose_index: bool) -> None:
        self.store.close()
        self.open_again(lose_index)

    @rule(lose_index=st.booleans())
    def kill(self, lose_index: bool) -> None:
        """The process ends; its writes reach the disk."""
        self.lives += 1
        again = self.folder.with_name(str(self.lives))
        shutil.copytree(self.folder, again)
        self.store.close()
        self.folder = again
        self.open_again(lose_index)

    def open_again(self, lose_index: bool) -> None:
        if lose_index:
            for path in self.folder.glob("*.index"):
                path.unlink()
        self.store = BlobStore(self.folder, self.config, clock=self.clock)
        assert not self.store.recovery.damage
        assert not self.store.recovery.cut_bytes

    @rule()
    def follow(self) -> None:
        """A peer that polls now and then has the present state each time it has reached the end."""
        at_end = False
        while not at_end:
            found = self.store.entries_since(self.token)
            assert not found.was_reset
            for entry in found.entries:
                self.followed[entry.id] = (entry.is_deleted, entry.is_permanent, entry.life_version)
            self.token = ReplicationToken.from_bytes(found.token.to_bytes())
            at_end = found.at_end
        # The peer may know blobs that the store has forgotten.
        now = {key: (blob.deleted_ms is not None, blob.permanent, blob.life) for key, blob in self.model.blobs.items()}
        assert {key: self.followed.get(key) for key in now} == now

    @invariant()
    def every_get_is_right(self) -> None:
        if hasattr(self, "store"):
            for key in IDS:
                for options in OPTIONS:
                    expected = self.model.expect(key, self.now_ms, options)
                    assert told(self.store.get(key, options)) == expected
                    info = self.store.info(key, options)
                    assert (len(expected) == getattr(info, "size_bytes", None) if isinstance(expected, bytes)
                            else info == expected)
            self.store.audit()


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(stateful_step_count=40)
