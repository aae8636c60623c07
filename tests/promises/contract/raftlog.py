# SPDX-License-Identifier: Apache-2.0
"""The offers of `compactlib.raftlog` to the contract: a single log, a log of a store, and the policies."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import attrs

from compactlib.raftlog import (
    DropDead,
    Entry,
    EveryNMinors,
    LogOptions,
    RaftLog,
    SeedPolicy,
    SegmentLimits,
    StoreOptions,
    open_log,
)
from compactlib.testing import Driver, Journal, World
from compactlib.testing.views import log_views
from tests.promises.drivers.segment_log import SegmentLogDriver

_EACH = 10
"""Entries that one act appends."""


def _payload(index: int) -> bytes:
    return b"entry %d " % index * 3


def _live_after(first: int, last: int, snapshot: Sequence[int]) -> list[int]:
    """Return the live indexes up to `last`: the earlier ones, every fourth of the new entries, and the last."""
    return sorted({*snapshot, *range(first, last + 1, 4), last})


class RaftLogs(Driver[RaftLog]):
    """A log of a store, with its entries in memory and in the write-ahead log."""

    def settings(self) -> Sequence[LogOptions]:
        # Every compaction rewrites, and old names go at once.
        return [LogOptions(limits=SegmentLimits(max_entries=4), trigger=EveryNMinors(0), keep_links_seconds=0.0)]

    def open(self, world: World, settings: LogOptions) -> RaftLog:
        options = attrs.evolve(settings, clock=world.clock, files=world.files)
        return open_log(world.folder, StoreOptions(log=options, background=False))

    def policy(self) -> SeedPolicy:
        return SeedPolicy()

    def act(self, store: RaftLog, rng: Random, journal: Journal) -> None:
        last = max(store.last_index, 0)
        new = range(last + 1, last + _EACH + 1)
        live = _live_after(new[0], new[-1], list(store.state.live))
        with journal.trying({index: _payload(index) for index in new if index in live}):
            store.append((index, 1, _payload(index)) for index in new)
            # Before the snapshot: entries dead at a flush are not written to segments.
            store.flush()
            store.snapshot(new[-1], live)

    def check(self, store: RaftLog, journal: Journal, *, damage: str) -> None:
        for change in journal.changes:
            for index, payload in change.what.items():
                found = store.read(index)
                assert isinstance(found, Entry), (index, found)
                assert found.payload == payload, index


COMPACTIONS = [SegmentLogDriver(), RaftLogs()]
POLICIES = [(policy, log_views()) for policy in (DropDead(), SeedPolicy())]
