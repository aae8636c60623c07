# SPDX-License-Identifier: Apache-2.0
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

from collections.abc import Sequence

from compactlib.errors import MissingDependency
from compactlib.testing.faults.clocks import ClockEvent, ClockScript, Freeze, Jump, Rate
from compactlib.testing.faults.fault_plans import STORE_FAULTS, FaultPlan
from compactlib.testing.faults.plan import Fault
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

try:
    from hypothesis import strategies as st
except ImportError:
    raise MissingDependency(package="hypothesis", extra="testing", purpose="random clocks and faults") from None

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


def clock_scripts(*, seconds: float = 1_000.0, max_skew_seconds: float = 60.0, goes_back: bool = True,
                  max_events: int = 4) -> st.SearchStrategy[ClockScript]:
    """What goes wrong with a clock: set wrong, set forward and back, standing still, too fast or slow, waking late.

    Shrinks to a clock that is right; single events shrink to whole, small numbers of seconds.

    Args:
        seconds: in how much true time it happens.
        max_skew_seconds: how far it may be off at the start, and set by a jump.
        goes_back: whether it is ever set back.
        max_events: the most that happens to it.
    """
    moments = _whole(0, seconds)
    events: st.SearchStrategy[ClockEvent] = st.one_of(
        st.builds(Jump, moments, _whole(-max_skew_seconds if goes_back else 0, max_skew_seconds)),
        st.builds(Freeze, moments, _whole(0, seconds / 10)),
        st.builds(Rate, moments, st.sampled_from([1.0, 2.0, 0.5, 1.001, 0.999, 10.0])))
    return st.builds(ClockScript, skew_seconds=_whole(-max_skew_seconds, max_skew_seconds),
                     events=st.lists(events, max_size=max_events).map(tuple),
                     oversleep_seconds=st.sampled_from([0.0, 0.0, 0.001, 1.0, 100.0]))


def _whole(least: float, most: float) -> st.SearchStrategy[float]:
    """Whole seconds, which read and shrink better than others; rates and late wake-ups bring in the fractions."""
    return st.integers(int(least), int(most)).map(float)


def fault_plans(faults: Sequence[Fault] = STORE_FAULTS, *, operations: int = 30,
                max_faults: int = 4) -> st.SearchStrategy[FaultPlan]:
    """Which of the first operations fail, and how. Shrinks to the fewest faults, each as early as can be.

    Args:
        faults: which ones: `FILE_FAULTS`, `STORE_FAULTS`, `OBJECT_FAULTS`, or some of them, the simplest first.
        operations: among how many operations they are spread.
        max_faults: the most faults.
    """
    return st.dictionaries(st.integers(1, operations), st.sampled_from(list(faults)), max_size=max_faults) \
        .map(FaultPlan.of)
