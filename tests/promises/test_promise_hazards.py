# SPDX-License-Identifier: Apache-2.0
"""Every store in every misfortune; `KNOWN` names what does not hold yet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from compactlib.testing.driver import Driver
from compactlib.testing.hazards import HAZARDS, Effort, check_hazards
from tests import effort as efforts
from tests.promises.drivers.file_fence import FileFenceDriver
from tests.promises.drivers.local_log import LocalLogDriver
from tests.promises.drivers.raft_log_store import RaftLogStoreDriver
from tests.promises.drivers.segment_log import SegmentLogDriver

DRIVERS: Mapping[str, Driver[Any]] = {
    "segment_log": SegmentLogDriver(),
    "raft_log_store": RaftLogStoreDriver(),
    "local_log": LocalLogDriver(),
    "file_fence": FileFenceDriver(),
}

NOWHERE: Mapping[str, frozenset[str]] = {
    # The lock of a folder is the kernel's: nobody takes it from a process that lives.
    "segment_log": frozenset({"paused_owners"}),
    "raft_log_store": frozenset({"paused_owners"}),
    "local_log": frozenset({"paused_owners"}),
    # Any process may use a fence at any time, one after the other by the same lock; a fork goes on with its parent's.
    # Its clock is for waiting alone, and one owner waits for nobody. It has nothing to close.
    "file_fence": frozenset({"paused_owners", "forks", "clock_jumps", "interrupts_of_closing"}),
}
"""Hazards that have no place in a store."""

KNOWN: Mapping[tuple[str, str], str] = {
    ("segment_log", "interrupts_of_closing"): "a close that was interrupted lets the folder go when it is called again",
    ("raft_log_store", "interrupts_of_closing"): "the same",
    ("local_log", "interrupts_of_closing"): "the same",
    ("segment_log", "missing_files"): "a missing segment is named at opening, by verify() and by read()",
    ("raft_log_store", "missing_files"): "a missing segment, row, snapshot, checkpoint or vote is named at opening",
    ("raft_log_store", "older_files"): "an older segment is named: it hides no entry and brings none back",
    ("local_log", "missing_files"): "a log whose newest segment is missing is named at opening",
    ("file_fence", "missing_files"): "a fence whose record is missing says so, and admits no lower token",
    ("file_fence", "older_files"): "a fence with an older record says so, and admits no lower token",
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
