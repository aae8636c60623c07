# SPDX-License-Identifier: Apache-2.0
"""Try a policy of the sensor of a staging repository: does it decide by the counts alone, and does it ever compact?

>>> from compactlib.staging.compaction.sense_policies import DeletesPolicy
>>> check_sense_policy(DeletesPolicy(threshold=100), max_examples=20)
"""

from __future__ import annotations

import copy
from typing import Any

import attrs

from compactlib.errors import MissingDependency
from compactlib.staging.compaction.plan import StagingChoice
from compactlib.staging.compaction.sense import CompactionSensor
from compactlib.staging.compaction.sense_policies import BranchPressure, SensePolicy
from compactlib.staging.model.names import StagingToken
from compactlib.staging.records.record import BranchRecord

try:
    from hypothesis import given, note, strategies as st
except ImportError:
    raise MissingDependency(package="hypothesis", extra="testing", purpose="trying a policy on random counts") from None

from compactlib.testing.kit.examples import as_always

_MOST = 1_000_000_000
_EXTREME = BranchPressure(deletes=_MOST, sealed_tokens=10_000, tombstones_listed=_MOST)
_SWEEP = 1_100
_NOW = 1_700_000_000.0
_COUNTS = ("deletes", "sealed_tokens", "tombstones_listed")


def branch_pressures() -> st.SearchStrategy[BranchPressure]:
    """What may have been counted of a branch: nothing, a little, very much. Shrinks to nothing."""
    counts = st.integers(0, 20) | st.sampled_from([999, 1_000, 10_000]) | st.integers(0, _MOST)
    return st.builds(BranchPressure, deletes=counts, sealed_tokens=st.integers(0, 20) | st.integers(0, 10_000),
                     tombstones_listed=counts)


def check_sense_policy(policy: SensePolicy, *, max_examples: int = 200) -> None:
    """Try `policy` on random counts and in a real sensor, and return if it keeps its contract.

    It must answer the same question the same way, with a `StagingChoice` that says why; want nothing on a branch on
    which nothing happened; want a compaction under some pressure; never change its mind because there is more pressure;
    and begin anew after a trigger, as the counts do.

    Args:
        policy: the policy, configured as it will be used.
        max_examples: how many counts.

    Raises:
        AssertionError: it does not; the message says which rule, why there is one, and what to do.
    """
    name = type(policy).__name__
    assert _wanted(policy, BranchPressure()) is None, (
        f"{name}: it wants to compact a branch on which nothing was counted. Every new "
        f"branch would be compacted at once, for nothing; answer an empty choice below a threshold of at least 1")
    assert _wanted(policy, _EXTREME) is not None, (
        f"{name}: it does not even want to compact under {_EXTREME}: tombstones would pile up for ever. Give a reason "
        f"from some count on")

    @as_always(max_examples)
    @given(branch_pressures(), st.sampled_from(_COUNTS), st.integers(1, 1_000))
    def decides_by_pressure_alone(pressure: BranchPressure, count: str, more: int) -> None:
        why = _wanted(policy, pressure)
        note(f"{name} answers {why!r} to {pressure}")
        assert _wanted(copy.deepcopy(policy), pressure) == why, (
            f"{name}: two equal questions got two answers, the first {why!r}. Decide by the counts that are given; the "
            f"sensor keeps them, a policy keeps nothing")
        _compare(policy, pressure, attrs.evolve(pressure, **{count: getattr(pressure, count) + more}))

    decides_by_pressure_alone()
    for count in _COUNTS:
        _stays_decided(policy, count)
    _in_a_sensor(policy, name)


def _stays_decided(policy: SensePolicy, count: str) -> None:
    """One count alone, rising: who looked for the right moment only would be found here."""
    for number in range(_SWEEP):
        _compare(policy, BranchPressure(**{count: number}), BranchPressure(**{count: number + 1}))


def _compare(policy: SensePolicy, pressure: BranchPressure, higher: BranchPressure) -> None:
    assert _wanted(policy, pressure) is None or _wanted(policy, higher) is not None, (
        f"{type(policy).__name__}: it wants to compact at {pressure}, and no more at {higher}. The sensor may miss the "
        f"moment between two looks, and the branch would never be compacted; compare with >=")


def _wanted(policy: SensePolicy, pressure: BranchPressure) -> str | None:
    """Why it wants to compact; `None` if it does not."""
    name = type(policy).__name__
    try:
        choice: Any = policy.choose(pressure, _NOW)
    except Exception as error:
        raise AssertionError(f"{name}: choose({pressure}, {_NOW}) raised {error!r}. It is called with every write, and "
                             f"nothing is triggered then; answer an empty Choice if it does not know") from error
    assert isinstance(choice, StagingChoice), (
        f"{name}: choose() answered {choice!r}; give a StagingChoice, also to say that nothing is to be done")
    why: Any = choice.why
    assert isinstance(why, str) and why.strip(), (
        f"{name}: choose() answered {choice!r}; its why is a sentence for logs and status pages: what was counted, of "
        f"an empty choice which setting it lies below")
    return None if choice.is_empty else choice.why


def _in_a_sensor(policy: SensePolicy, name: str) -> None:
    """One trigger, and then counting anew: what was counted before must not trigger again."""
    sensor = CompactionSensor(policy, buffer=10)
    record = BranchRecord(staging_token=StagingToken("stg-1"))
    events = sensor.events("repository")
    events.tombstones_written("main", record, _MOST)
    events.tombstones_listed("main", record, _MOST)
    triggers = 0
    while sensor.take() is not None:
        triggers += 1
    events.tombstones_written("main", record, 0)
    sensor.audit()
    assert sensor.take() is None, (
        f"{name}: after {triggers} triggers and without a new tombstone it wants to compact again. Decide by the "
        f"counts that are given, which begin anew with each trigger")
