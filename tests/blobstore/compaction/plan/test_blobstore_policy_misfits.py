# SPDX-License-Identifier: Apache-2.0
"""Values of other types at the face of policies, plans and the reader: `InvalidInput`, and nothing bare."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import compactlib.blobstore as policies
from compactlib.blobstore import BlobReader, CompactAll, Greedy
from compactlib.blobstore.compaction.plan import plan as plan_module, policy
from compactlib.blobstore.compaction.plan.policies.declining_cost import DecliningCost
from compactlib.clock import ManualClock
from compactlib.errors import InvalidInput
from tests.blobstore.compaction_stores import config, open_store
from tests.blobstore.policy_views import NOW, toy
from tests.harness.misfits import Calls, misfits, public_calls

VIEW = toy([0, 300, 900])
PLAN = plan_module.plan_for(VIEW, Greedy(), NOW)


@pytest.mark.parametrize("name", ["CompactAll", "CopyBudget", "CostBenefit", "DChoices", "ExpiryForecast", "Greedy",
                                  "Hybrid", "StatsBased"])
def test_policies(name: str) -> None:
    make: Any = getattr(policies, name)
    calls: Calls = {"choose": (VIEW, NOW)}
    assert list(misfits(make, calls)) == []
    assert list(misfits(lambda: policies, {name: ()})) == []


def test_the_policy_that_is_imported_from_its_module() -> None:
    assert list(misfits(DecliningCost, {"choose": (VIEW, NOW)})) == []
    for decline in (0, -1.0, math.inf, math.nan, 10**400, "1", True):
        with pytest.raises(InvalidInput, match="decline"):
            DecliningCost(decline=decline)  # type: ignore[arg-type]


def test_plans() -> None:
    calls: Calls = {
        "plan_for": (VIEW, Greedy(), NOW), "plan_for_choice": (VIEW, Greedy().choose(VIEW, NOW), Greedy(), NOW),
        "forecast": (PLAN, VIEW)}
    assert list(misfits(lambda: plan_module, calls)) == []


def test_what_policies_are_made_of() -> None:
    calls: Calls = {"shut_gate": (VIEW, 0.5), "too_little": (VIEW, 1), "emptiest_first": (VIEW.eligible,),
                    "fewest_that_free": (VIEW, VIEW.eligible, 1),
                    "fullest_that_free": (VIEW, VIEW.eligible, 1, 2)}
    assert list(misfits(lambda: policy, calls)) == []


def test_the_reader(tmp_path: Path) -> None:
    with open_store(tmp_path / "store", ManualClock(NOW)) as store:
        store.put("a", b"1")
    calls: Calls = {"get": ("a",), "info": ("a",), "infos": (), "view": (), "plan": (CompactAll(),), "verify": ()}
    assert set(public_calls(BlobReader)) <= calls.keys()
    with BlobReader(tmp_path / "store", config()) as reader:
        assert list(misfits(lambda: reader, calls)) == []
