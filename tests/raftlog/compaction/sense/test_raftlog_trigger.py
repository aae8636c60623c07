# SPDX-License-Identifier: Apache-2.0
"""Triggers: each at its edge, and joined with `|` and `&`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import given, strategies as st

from compactlib.errors import InvalidInput
from compactlib.raftlog import DeadRatio, EveryNMinors
from compactlib.raftlog.compaction.sense.trigger import (
    AllOf,
    AnyOf,
    CompactionState,
    DeadBytes,
    Elapsed,
    Manual,
    Trigger,
)
from tests.tools.raft_segments import segments_of

QUIET = CompactionState(minors_since_major=0, live_entries=0, dead_entries=0, live_bytes=0, dead_bytes=0,
                        last_major_at=1000.0, now=1000.0)


def state(**changes: Any) -> CompactionState:
    return attrs.evolve(QUIET, **changes)


@attrs.frozen
class Says:
    """A host's own trigger: a plain class with the one method."""

    reason: str | None

    def wants_major(self, state: CompactionState) -> str | None:
        return self.reason


states = st.builds(CompactionState, minors_since_major=st.integers(0, 20), live_entries=st.integers(0, 10**6),
                   dead_entries=st.integers(0, 10**6), live_bytes=st.integers(0, 10**12),
                   dead_bytes=st.integers(0, 10**12), last_major_at=st.floats(0, 2e9), now=st.floats(0, 2e9))
simple = st.one_of(
    st.just(Manual()), st.builds(EveryNMinors, st.integers(0, 20)), st.builds(DeadBytes, st.integers(1, 10**12)),
    st.builds(DeadRatio, st.floats(0, 10), st.sampled_from(["bytes", "entries"])),
    st.builds(Elapsed, st.floats(0, 2e9)))


def test_note_1_7_with_two_minors_the_third_request_is_major() -> None:
    trigger = EveryNMinors(2)
    minors, kinds = 0, []
    for _ in range(7):
        if trigger.wants_major(state(minors_since_major=minors)) is None:
            kinds.append("minor")
            minors += 1
        else:
            kinds.append("major")
            minors = 0
    assert kinds == ["minor", "minor", "major", "minor", "minor", "major", "minor"]


def test_every_n_minors_is_eight_unless_said_and_zero_means_always() -> None:
    assert EveryNMinors().wants_major(state(minors_since_major=7)) is None
    assert EveryNMinors().wants_major(state(minors_since_major=8)) == "8 minors since the last major, at least 8"
    assert EveryNMinors(0).wants_major(QUIET) is not None


@given(states)
def test_manual_never_wants_one(any_state: CompactionState) -> None:
    assert Manual().wants_major(any_state) is None


def test_dead_ratio_compares_dead_with_live_bytes() -> None:
    trigger = DeadRatio(3.0)
    assert trigger.wants_major(state(dead_bytes=299, live_bytes=100)) is None
    assert trigger.wants_major(state(dead_bytes=300, live_bytes=100)) \
        == "300 bytes dead beside 100 live, at least 3 to 1"
    assert trigger.wants_major(state(dead_entries=300, live_entries=100, live_bytes=1)) is None


def test_dead_ratio_can_compare_entries() -> None:
    trigger = DeadRatio(0.5, measure="entries")
    assert trigger.wants_major(state(dead_entries=49, live_entries=100, dead_bytes=10**9)) is None
    assert trigger.wants_major(state(dead_entries=50, live_entries=100)) \
        == "50 entries dead beside 100 live, at least 0.5 to 1"


def test_dead_ratio_needs_something_dead_and_nothing_live() -> None:
    assert DeadRatio(0.0).wants_major(state(live_bytes=100)) is None
    assert DeadRatio(0.0).wants_major(QUIET) is None
    assert DeadRatio(1e9).wants_major(state(dead_bytes=1)) is not None


def test_dead_bytes_at_its_edge() -> None:
    assert DeadBytes(1000).wants_major(state(dead_bytes=999)) is None
    assert DeadBytes(1000).wants_major(state(dead_bytes=1000)) == "1,000 bytes dead, at least 1,000"


def test_elapsed_at_its_edge_and_with_a_clock_set_back() -> None:
    trigger = Elapsed(60.0)
    assert trigger.wants_major(state(now=1059.5)) is None
    assert trigger.wants_major(state(now=1060.0)) == "60 seconds since the last major, at least 60"
    assert trigger.wants_major(state(now=500.0)) is None


def test_the_state_counts_the_stored_bytes_of_the_segments_it_is_given() -> None:
    found = CompactionState.of(segments_of((100, 10, 1000, 300), (50, 50, 600, 600)), minors_since_major=3,
                               last_major_at=5.0, now=7.0)
    assert found == CompactionState(minors_since_major=3, live_entries=60, dead_entries=90,
                                    live_bytes=900 + 60 * 40, dead_bytes=700 + 90 * 40, last_major_at=5.0, now=7.0)
    # Entries without a payload are stored too.
    empty = CompactionState.of(segments_of((100, 10, 0, 0)), minors_since_major=0, last_major_at=5.0, now=7.0)
    assert DeadBytes(90 * 40).wants_major(empty) == "3,600 bytes dead, at least 3,600"
    assert DeadRatio(9.0).wants_major(empty) is not None
    assert CompactionState.of([], minors_since_major=0, last_major_at=1000.0, now=1000.0) == QUIET


@given(simple, simple, states)
def test_either_and_both(one: EveryNMinors, other: EveryNMinors, any_state: CompactionState) -> None:
    first, second = one.wants_major(any_state), other.wants_major(any_state)
    either, both = (one | other).wants_major(any_state), (one & other).wants_major(any_state)
    assert (either is None) == (first is None and second is None)
    assert (both is None) == (first is None or second is None)
    for reason in (first, second):
        assert reason is None or (either is not None and reason in either)


def test_the_reasons_are_joined() -> None:
    yes, also, no = Says("yes"), Says("also"), Says(None)
    assert AnyOf((yes, no, also)).wants_major(QUIET) == "yes; also"
    assert AnyOf((no, no)).wants_major(QUIET) is None
    assert AllOf((yes, also)).wants_major(QUIET) == "yes and also"
    assert AllOf((yes, no)).wants_major(QUIET) is None


def test_of_no_triggers_none_wants_a_major() -> None:
    assert AnyOf(()).wants_major(QUIET) is None
    assert AllOf(()).wants_major(QUIET) is None


def test_chains_are_flat_and_and_binds_closer() -> None:
    a, b, c = EveryNMinors(1), DeadBytes(2), Elapsed(3.0)
    assert a | b | c == AnyOf((a, b, c)) == a | (b | c)
    assert a & b & c == AllOf((a, b, c)) == a & (b & c)
    assert a | b & c == AnyOf((a, AllOf((b, c))))
    assert (a | b) & c == AllOf((AnyOf((a, b)), c))


@pytest.mark.parametrize("make", [lambda own: Manual() | own, lambda own: own | Manual()])
def test_a_hosts_own_trigger_joins_in_on_either_side(make: Callable[[Trigger], Trigger]) -> None:
    assert make(Says("mine")).wants_major(QUIET) == "mine"
    assert make(Says(None)).wants_major(QUIET) is None


def test_a_hosts_own_trigger_joins_in_on_the_left_of_and() -> None:
    assert (Says("mine") & EveryNMinors(0)).wants_major(QUIET) \
        == "mine and 0 minors since the last major, at least 0"


@given(simple)
def test_triggers_are_values(trigger: EveryNMinors) -> None:
    joined = (trigger | Manual()) & Elapsed(5.0)
    assert pickle.loads(pickle.dumps(joined)) == joined
    assert hash(joined) == hash((trigger | Manual()) & Elapsed(5.0))
    assert "Elapsed(seconds=5.0)" in repr(joined)


@pytest.mark.parametrize("make", [
    lambda: EveryNMinors(-1), lambda: DeadRatio(-0.5), lambda: DeadRatio(float("nan")), lambda: DeadBytes(0),
    lambda: DeadRatio(1.0, measure="records"),  # type: ignore[arg-type]
    lambda: Elapsed(-1.0), lambda: Elapsed(float("inf")),
])
def test_an_amount_out_of_range_is_refused_by_name(make: Callable[[], Trigger]) -> None:
    with pytest.raises(InvalidInput, match=r"^\w+ is .*; "):
        make()


@pytest.mark.parametrize("strange", ["x", b"x", None, float("nan"), object(), [1], (), {}, int])
@pytest.mark.parametrize("make", [EveryNMinors, DeadRatio, DeadBytes, Elapsed])
def test_what_is_no_amount_is_refused_by_name(make: Any, strange: object) -> None:
    with pytest.raises(InvalidInput, match=r"^(n|dead_per_live|min_bytes|seconds) is "):
        make(strange)
