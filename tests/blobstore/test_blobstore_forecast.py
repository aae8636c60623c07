"""Which stores keep time buckets, and what `ExpiryForecast` does with those of a real one."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.policies import policy_of
from compactlib.blobstore.policies.choose import bucket_count_of
from compactlib.blobstore.policy import why_no_plan
from compactlib.blobstore.sense import Sensor
from compactlib.blobstore.store import BlobStore
from compactlib.clock import ManualClock
from compactlib.errors import InvalidInput
from tests.blobstore.policy_views import DAY, NOW


@pytest.mark.parametrize(("name", "count", "kept"), [
    ("stats_based", None, 0), ("Expiry-Forecast", None, 168), ("expiry_forecast", 24, 24), ("greedy", 12, 12),
    ("stats_based", 0, 0),
])
def test_only_a_policy_that_looks_ahead_gets_time_buckets_unasked(name: str, count: int | None, kept: int) -> None:
    config = BlobStoreConfig(compaction_policy=name, stats_bucket_count=count)
    assert bucket_count_of(config) == kept
    longer = attrs.evolve(config, stats_bucket_seconds=7200.0)
    assert bucket_count_of(longer) == (kept if count is not None else kept // 2)


def test_a_policy_that_looks_ahead_is_refused_where_nothing_can_be_seen() -> None:
    with pytest.raises(InvalidInput, match="stats_bucket_count is 0"):
        policy_of(BlobStoreConfig(compaction_policy="expiry_forecast", stats_bucket_count=0))


def test_a_real_store_with_that_policy_in_its_configuration_knows_what_will_die(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    config = BlobStoreConfig(capacity_bytes=40 * 2048, segment_bytes=2048, compaction_policy="expiry_forecast",
                             min_used_fraction=0.0, max_blob_bytes=0, journal_max_entries=1, durability="interval")
    with BlobStore(tmp_path / "store", config, clock=clock) as store:
        for number in range(24):
            store.put(f"b{number}", bytes(150), ttl_seconds=20_000 if number % 3 else None)
        sensor, policy = Sensor(store), policy_of(config)
        view = sensor.view(clock.now())
        assert any(segment.dying for segment in view.segments)
        assert policy.plan(view, clock.now()) is None
        assert "wait for what dies" in why_no_plan(policy, view, clock.now())
        clock.advance(2 * DAY)
        plan = policy.plan(sensor.view(clock.now()), clock.now())
        assert plan is not None
        assert plan.benefit_segments >= 1
