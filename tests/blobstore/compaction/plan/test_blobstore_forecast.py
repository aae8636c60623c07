# SPDX-License-Identifier: Apache-2.0
"""Which stores keep time buckets, and what `ExpiryForecast` does with those of a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactlib.blobstore import BlobPolicy, BlobStore, BlobStoreConfig, ExpiryForecast, Greedy, Hybrid, StatsBased
from compactlib.blobstore.compaction.plan.policies.declining_cost import DecliningCost
from compactlib.clock import ManualClock
from tests.blobstore.policy_views import DAY, NOW

CONFIG = BlobStoreConfig(capacity_bytes=40 * 2048, segment_bytes=2048, max_blob_bytes=0, journal_max_entries=1,
                         durability="interval")


def filled(folder: Path, clock: ManualClock, policy: BlobPolicy, config: BlobStoreConfig = CONFIG) -> BlobStore:
    store = BlobStore(folder / "store", config, policy=policy, clock=clock)
    for number in range(24):
        store.put(f"b{number}", bytes(150), ttl_seconds=20_000 if number % 3 else None)
    return store


@pytest.mark.parametrize(("policy", "looks_ahead"), [
    (StatsBased(), False), (Greedy(), False), (Hybrid(), False), (ExpiryForecast(), True), (DecliningCost(), True),
    (Hybrid(usual=ExpiryForecast()), True),
])
def test_only_a_policy_that_looks_ahead_gets_time_buckets_unasked(tmp_path: Path, policy: BlobPolicy, looks_ahead: bool
                                                                  ) -> None:
    with filled(tmp_path, ManualClock(NOW), policy) as store:
        assert any(segment.dying for segment in store.view().segments) == looks_ahead


def test_a_store_whose_policy_looks_ahead_knows_what_will_die(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    with filled(tmp_path, clock, ExpiryForecast(min_used_fraction=0.0)) as store:
        plan = store.plan()
        assert plan.is_empty
        assert "wait for what dies within horizon_seconds=86400.0" in plan.why
        clock.advance(2 * DAY)
        plan = store.plan()
        assert plan.benefit_segments >= 1
        assert not plan.is_exact
