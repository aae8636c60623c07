# SPDX-License-Identifier: Apache-2.0
"""A blob that was put, or deleted and undeleted, again and again: what is decided is the same, and it is looked for by
a few of its records."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.blobstore import Blob, BlobStore, BlobStoreConfig, CompactAll, RecordKind
from compactlib.blobstore.compaction.rewrite.cycle_plan import CyclePlan, plan_cycle
from compactlib.blobstore.errors import BlobConflict, BlobMissing
from compactlib.blobstore.log import contents
from compactlib.blobstore.model.values import IndexEntry
from compactlib.blobstore.segment.reader import SEGMENT_HEADER_BYTES
from compactlib.blobstore.store.state import blob_state
from compactlib.blobstore.validity.verdicts import Rules
from compactlib.clock import ManualClock
from compactlib.outcome import Done

CONFIG = BlobStoreConfig(capacity_bytes=1 << 18, segment_bytes=1 << 11, journal_max_entries=0, max_blob_bytes=0,
                         index_max_entries=8, deleted_retention_seconds=1e6, ttl_update_buffer_seconds=0.0,
                         stats_entries_per_second=None, durability="interval")


def story(store: BlobStore, clock: ManualClock, rng: random.Random) -> dict[bytes, bytes]:
    """Two blobs that are put hundreds of times, and others; what each holds at the end."""
    held: dict[bytes, bytes] = {}
    for number in range(400):
        clock.advance(0.01)
        key = rng.choice([b"hot", b"hot", b"warm", b"%d" % number])
        try:
            match rng.choice(["put"] * 6 + ["delete", "undelete", "permanent"]):
                case "put":
                    content = b"%d" % number * rng.randrange(1, 40)
                    store.put(key, content, replace=True, ttl_seconds=rng.choice([None, 1e5]),
                              container=rng.randrange(2))
                    held[key] = content
                case "delete":
                    store.delete(key)
                case "undelete":
                    store.undelete(key)
                case _:
                    store.ttl_update(key)
        except (BlobConflict, BlobMissing):
            continue
    return held


def updates_since(sequence: int, records: list[IndexEntry]) -> list[IndexEntry]:
    return [entry for entry in records if entry.kind == RecordKind.TTL_UPDATE and entry.sequence > sequence]


@pytest.mark.parametrize("seed", range(6))
def test_what_a_blob_of_many_records_keeps_is_decided_as_that_of_one_with_few(
        scratch: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, rng = ManualClock(1_000.0), random.Random(seed)
    with BlobStore(scratch / "blobs", CONFIG, clock=clock) as store:
        held = story(store, clock, rng)
        for key in held:
            found = store.get(key)
            assert not isinstance(found, Blob) or found.content == held[key]
            records = store.snapshot().history(key)
            last_put = max(entry.sequence for entry in records if entry.kind == RecordKind.PUT)
            looked_up = store._log.contents.find(key)  # noqa: SLF001
            assert blob_state(looked_up) == blob_state(records)
            assert updates_since(last_put, looked_up) == updates_since(last_put, records)
        victims = list(store.snapshot().eligible())
        rng.shuffle(victims)
        victims = victims[:rng.randrange(2, len(victims) + 1)]
        rules = Rules(reference_ms=rng.choice([0, 2_000_000]), now_ms=rng.choice([0, 10**9]))

        def planned(often: int) -> tuple[CyclePlan, list[int]]:
            monkeypatch.setattr(contents, "OFTEN", often)
            dropped: list[int] = []
            return plan_cycle(store.snapshot(), victims, {name: turn for turn, name in enumerate(victims)}, None, rules,
                              swap_segments=len(victims), segment_bytes=CONFIG.segment_bytes,
                              header_bytes=SEGMENT_HEADER_BYTES,
                              dropped_put=lambda entry: dropped.append(entry.sequence)), dropped

        looked: list[tuple[Any, ...]] = []
        for often in (1 << 30, 16, 0):
            plan, dropped = planned(often)
            looked.append((plan.verdicts, plan.dropped_bytes, plan.sources, dropped,
                           [(target.name, target.fingerprint) for target in plan.targets]))
        assert looked[0] == looked[1] == looked[2]
        assert looked[0][1] > 0
        monkeypatch.undo()
        before = {key: store.get(key) for key in held}
        store.close_active_segment()
        assert isinstance(store.compact(policy=CompactAll(min_used_fraction=0.0)), Done)
        after = {key: store.get(key) for key in held}
        assert {key: each for key, each in after.items() if isinstance(each, Blob)} == {
            key: each for key, each in before.items() if isinstance(each, Blob)}
        assert not store.verify().findings


def test_a_blob_of_many_lives_is_looked_up_and_judged_by_a_few_records(scratch: Path) -> None:
    """Each operation looked at all of its records, and a compaction at all of them for each of them."""
    config = attrs.evolve(CONFIG, capacity_bytes=1 << 20, segment_bytes=1 << 15, index_max_entries=150)
    with BlobStore(scratch / "blobs", config) as store:
        store.put(b"often", b"content")
        for _ in range(1000):
            store.delete(b"often")
            store.undelete(b"often")
        snapshot = store.snapshot()
        assert len(store._log.contents.find(b"often")) <= 2 + len(snapshot.index_parts())  # noqa: SLF001
        sealed = [info.name for info in snapshot.segments[:-1]]
        compared = sum(len(history) for name in sealed for _, history in snapshot.histories_of(name))
        assert compared <= 5 * 2001
        store.close_active_segment()
        done = store.compact(policy=CompactAll(min_used_fraction=0.0))
        assert isinstance(done, Done)
        assert done.stats.copied_records == 2
        found = store.get(b"often")
        assert isinstance(found, Blob)
        assert (found.content, found.info.life_version) == (b"content", 1000)
