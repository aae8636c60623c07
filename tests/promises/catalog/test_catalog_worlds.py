# SPDX-License-Identifier: Apache-2.0
"""No world of `catalog_worlds.py` is found in which something is cut that somebody needs; in many history is cut."""

from __future__ import annotations

import pytest

from tests.harness.catalog_worlds import play
from tests.harness.effort import Effort


@pytest.mark.parametrize("start", range(0, 10_000, 2_500))
def test_nothing_is_cut_that_somebody_needs(start: int, effort: Effort) -> None:
    cuts = sum(play(seed).cuts for seed in range(start, start + effort(5, 2500)))
    assert cuts > effort(2, 1000), f"{cuts} cuts: these worlds show nothing"
