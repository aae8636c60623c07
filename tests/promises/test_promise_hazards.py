# SPDX-License-Identifier: Apache-2.0
"""Every store in every misfortune; `KNOWN` names what does not hold yet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from compactlib.testing.driver import Driver
from compactlib.testing.hazards import HAZARDS, Effort, check_hazards
from tests.harness import effort as efforts
from tests.promises.drivers.segment_log import SegmentLogDriver

DRIVERS: Mapping[str, Driver[Any]] = {
    "segment_log": SegmentLogDriver(),
}

NOWHERE: Mapping[str, frozenset[str]] = {
    # The lock of a folder is the kernel's: nobody takes it from a process that lives.
    "segment_log": frozenset({"paused_owners"}),
}
"""Hazards that have no place in a store."""

KNOWN: Mapping[tuple[str, str], str] = {
    ("segment_log", "missing_files"): "a missing segment is named at opening, by verify() and by read()",
}
"""What ought to hold and does not, by store and hazard."""


def _cases() -> list[Any]:
    return [pytest.param(store, hazard, id=f"{store}-{hazard}", marks=(
                [pytest.mark.xfail(strict=True, reason=KNOWN[store, hazard])] if (store, hazard) in KNOWN else []))
            for store in DRIVERS for hazard in HAZARDS if hazard not in NOWHERE.get(store, ())]


@pytest.mark.parametrize(("store", "hazard"), _cases())
def test_store_keeps_what_it_acknowledged(store: str, hazard: str, tmp_path: Path, effort: efforts.Effort) -> None:
    """See the hazard's own docstring."""
    tried = Effort(acts=effort(6, 12), histories=effort(30, 3_000), most=effort(1, 2))
    (outcome,) = check_hazards(DRIVERS[store], tmp_path, hazards=[hazard], effort=tried)
    assert outcome.histories > 1, "the hazard has found no place where it can happen"
