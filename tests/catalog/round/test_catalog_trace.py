# SPDX-License-Identifier: Apache-2.0
"""What the simulation did, held against the actions of docs/tla/CatalogCompaction.tla."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest

from tests.catalog.simulation.run import CatalogSimulation
from tests.catalog.simulation.trace import CatalogSpecification, SpecificationTrace, TraceRefused, to_tla, traced

TLA = Path(__file__).parents[3] / "docs" / "tla"


def trace_of(seed: int) -> SpecificationTrace:
    return traced(CatalogSimulation(seed))


@pytest.mark.parametrize("first", [1, 21, 41])
def test_every_step_of_the_simulation_is_one_of_the_specification(first: int) -> None:
    cuts = 0
    for seed in range(first, first + 20):
        trace = trace_of(seed)
        state = trace.check()
        assert state.earliest == state.latest
        cuts += sum(step[0] == "Cut" for step in trace.steps)
    assert cuts > 20


@pytest.fixture(scope="module")
def trace() -> SpecificationTrace:
    return trace_of(1)


@pytest.mark.parametrize("left_out", ["Report", "Confirm", "StartRound", "Begin", "MoveWatermark", "Flush", "Join"])
def test_a_trace_without_its_steps_of_one_kind_is_refused(trace: SpecificationTrace, left_out: str) -> None:
    broken = attrs.evolve(trace, steps=tuple(step for step in trace.steps if step[0] != left_out))
    with pytest.raises((TraceRefused, KeyError)):
        broken.check()


def test_a_cut_that_goes_too_far_is_refused(trace: SpecificationTrace) -> None:
    at = next(place for place, step in enumerate(trace.steps) if step[0] == "Cut")
    action, name, _ = trace.steps[at]
    broken = attrs.evolve(trace, steps=(*trace.steps[:at], (action, name, 1000), *trace.steps[at + 1:]))
    with pytest.raises(TraceRefused, match="is not possible"):
        broken.check()


def test_a_state_that_is_not_safe_is_refused() -> None:
    specification = CatalogSpecification(["a"], ["a"], [0], [0], 3)
    for step in (("Join", "a"), ("Begin", "a", 1), ("Write", 0, 1), ("End", "a", 1), ("MoveWatermark", "a", 3),
                 ("StartRound", "r"), ("Report", "a", "r", 3, 3)):
        specification.take(step)
    # The published time says that nothing below 3 must be replayed, which the write above contradicts.
    with pytest.raises(TraceRefused, match="must replay 1, below 3"):
        specification.take(("Cut", "r", 3))


def test_the_actions_here_are_those_of_the_specification(trace: SpecificationTrace) -> None:
    text = (TLA / "TraceCatalogCompaction.tla").read_text()
    told = set(re.findall(r's\[1\] = "(\w+)"', text))
    assert told == {name[1:] for name in vars(CatalogSpecification) if re.fullmatch("_[A-Z][A-Za-z]+", name)}
    assert {step[0] for step in trace.steps} <= told
    for action in told:
        assert re.search(rf"^{action}(\(.*\))? ==", (TLA / "CatalogCompaction.tla").read_text(), re.MULTILINE)


def test_a_trace_becomes_a_module_for_tlc(trace: SpecificationTrace) -> None:
    module = to_tla(trace)
    assert module.startswith("---- MODULE Traces ----\nEXTENDS Naturals\nTraceNodes == {\"a\", ")
    assert '<<"Join", "a">>' in module
    assert re.search(r'<<"Cut", \d+, \d+>>', module)
    assert module.count("<<\"") - module.count("Owners == <<\"") == len(trace.steps)
