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
from tests.promises.drivers.kv_sqlite import SqliteDriver
from tests.promises.drivers.repository import RepositoryDriver
from tests.promises.drivers.segment_log import SegmentLogDriver

DRIVERS: Mapping[str, Driver[Any]] = {
    "segment_log": SegmentLogDriver(),
    "kv_sqlite": SqliteDriver(),
    "repository_memory": RepositoryDriver("memory"),
    "repository_cells": RepositoryDriver("cells"),
    "repository_sqlite": RepositoryDriver("sqlite"),
    "repository_folder": RepositoryDriver("folder"),
}

_POWER = frozenset({"crashes", "crashes_of_recovery", "kills_and_power"})
_PUT_BACK = frozenset({"damages", "missing_files", "older_files"})

NOWHERE: Mapping[str, frozenset[str]] = {
    # The lock of a folder is the kernel's: nobody takes it from a process that lives.
    "segment_log": frozenset({"paused_owners"}),
    # SQLite writes its file by itself; it reads no wall clock; one file that is put back whole is the older store.
    "kv_sqlite": _POWER | {"clock_jumps", "older_files"},
    "repository_sqlite": _POWER | {"older_files"},
    # Nothing is on a disk, and a fork has its own copy of what is in memory.
    "repository_memory": _POWER | _PUT_BACK | {"full_disk", "forks"},
    "repository_cells": _POWER | _PUT_BACK | {"full_disk", "forks"},
    # A fork has its own copy of the branches, which are in memory.
    "repository_folder": frozenset({"forks"}),
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
