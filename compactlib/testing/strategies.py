"""All Hypothesis strategies of the library in one place. Needs the extra `compactlib[testing]`.

>>> from hypothesis import given
>>> from compactlib.testing import strategies
>>> @given(strategies.live_sets(1, 100))
... def a_live_set_survives(live):
...     assert type(live).from_bytes(live.to_bytes()) == live
>>> a_live_set_survives()

Each shrinks to the least that fails: the empty set, a clock that is right, a plan without faults, the shortest history.
"""

from __future__ import annotations

from compactlib.testing.faults.world_strategies import clock_scripts, fault_plans
from compactlib.testing.histories.blob_histories import blob_histories, blob_lifetimes
from compactlib.testing.histories.index_strategies import index_runs, indexes, live_sets, segment_refs, written_refs
from compactlib.testing.histories.log_histories import log_histories
from compactlib.testing.histories.scheduler_histories import scheduler_histories
from compactlib.testing.histories.staging_histories import staging_histories
from compactlib.testing.policies.assignment_views import assignment_views
from compactlib.testing.policies.blob_strategies import plan_histories, record_logs, store_views
from compactlib.testing.policies.need_strategies import (
    catalog_histories,
    floors,
    hosted_partitions,
    node_ids,
    node_reports,
)
from compactlib.testing.policies.raftlog_strategies import compaction_views, segment_limits, segment_sequences
from compactlib.testing.policies.sense_checks import branch_pressures

__all__ = [
    "assignment_views",
    "blob_histories",
    "blob_lifetimes",
    "branch_pressures",
    "catalog_histories",
    "clock_scripts",
    "compaction_views",
    "fault_plans",
    "floors",
    "hosted_partitions",
    "index_runs",
    "indexes",
    "live_sets",
    "log_histories",
    "node_ids",
    "node_reports",
    "plan_histories",
    "record_logs",
    "scheduler_histories",
    "segment_limits",
    "segment_refs",
    "segment_sequences",
    "staging_histories",
    "store_views",
    "written_refs",
]
