# SPDX-License-Identifier: Apache-2.0
"""Every store in every misfortune; `KNOWN` names what does not hold yet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from compactlib.errors import InvalidInput
from compactlib.testing import HAZARDS, Driver, Effort, check_hazards
from tests.harness import effort as efforts
from tests.promises.drivers.blob_store import BlobStoreDriver
from tests.promises.drivers.catalog import CatalogDriver
from tests.promises.drivers.file_fence import FileFenceDriver, KVFenceDriver
from tests.promises.drivers.kv_sqlite import SqliteDriver
from tests.promises.drivers.lease_election import LeaseElectionDriver
from tests.promises.drivers.local_log import LocalLogDriver
from tests.promises.drivers.local_objects import LocalObjectsDriver
from tests.promises.drivers.raft_log_store import RaftLogStoreDriver
from tests.promises.drivers.repository import RepositoryDriver
from tests.promises.drivers.scheduler import KVSchedulerDriver, LocalSchedulerDriver
from tests.promises.drivers.segment_log import SegmentLogDriver

DRIVERS: Mapping[str, Driver[Any]] = {
    "segment_log": SegmentLogDriver(),
    "catalog": CatalogDriver(),
    "scheduler_in_store": KVSchedulerDriver(),
    "scheduler_in_folder": LocalSchedulerDriver(),
    "raft_log_store": RaftLogStoreDriver(),
    "local_log": LocalLogDriver(),
    "file_fence": FileFenceDriver(),
    "kv_fence": KVFenceDriver(),
    "lease_election": LeaseElectionDriver(),
    "blob_store": BlobStoreDriver(),
    "local_objects": LocalObjectsDriver(),
    "kv_sqlite": SqliteDriver(),
    "repository_memory": RepositoryDriver("memory"),
    "repository_values": RepositoryDriver("values"),
    "repository_sqlite": RepositoryDriver("sqlite"),
    "repository_folder": RepositoryDriver("folder"),
}

_POWER = frozenset({"crashes", "crashes_of_recovery", "kills_and_power"})
_PUT_BACK = frozenset({"damages", "missing_files", "older_files", "older_folders"})
_FULL_DISK = frozenset({"full_disk", "opened_on_a_full_disk"})
_ON_A_DISK = _POWER | _PUT_BACK | _FULL_DISK

# A folder that is put back whole is the older store, unless something elsewhere has seen more.
_ALONE = frozenset({"older_folders"})
# The lock of a folder is the kernel's: nobody takes it from a process that lives. A disk has no lost answers.
_OWNED_FOLDER = frozenset({"paused_owners", "lost_answers"})

HAVE_READERS = frozenset({"segment_log", "blob_store"})
"""Stores that others may read while they are open."""

SAME = frozenset({"repository_memory", "repository_values", "repository_sqlite", "scheduler_in_folder"})
"""A repository and a scheduler over other stores, which have hazards of their own: tried half as often every day."""

NOWHERE: Mapping[str, frozenset[str]] = {
    "segment_log": _OWNED_FOLDER | _ALONE,
    "raft_log_store": _OWNED_FOLDER | _ALONE,
    "local_log": frozenset({"paused_owners"}),  # its host's snapshots are in a key-value store
    "blob_store": _OWNED_FOLDER | _ALONE,
    "scheduler_in_folder": frozenset({"paused_owners"}),
    # Any process may use a fence at any time, one after the other by the same lock; a fork continues with its parent's.
    # Its clock is for waiting alone, and one owner waits for nobody. It has nothing to close. To ask it for a token is
    # to write one.
    "file_fence": _OWNED_FOLDER | _ALONE | {"opened_on_a_full_disk", "forks", "clock_jumps", "interrupts_of_closing"},
    # They write to a key-value store alone, which loses nothing; have no settings, go by no wall clock, and a fork has
    # its own copy of the memory. A fence has nothing to close, and neither has an election without a thread.
    "kv_fence": _ON_A_DISK | {"forks", "clock_jumps", "other_settings", "interrupts_of_closing"},
    "lease_election": _ON_A_DISK | {"forks", "clock_jumps", "other_settings", "interrupts_of_closing"},
    # It reads no clock and has no settings, and any process may write to its folder. An object is a
    # file, and there is no list of them: one that was taken away was never there, or was deleted.
    "local_objects": _ALONE | frozenset({"lost_answers", "clock_jumps", "other_settings", "missing_files",
                                "older_files"}),
    # They write to a key-value store alone, which loses nothing that it has acknowledged.
    "catalog": _ON_A_DISK,
    "scheduler_in_store": _ON_A_DISK,
    # SQLite writes its file without `Files`; it reads no wall clock; one file put back whole is the older store.
    "kv_sqlite": _POWER | _ALONE | {"clock_jumps", "older_files"},
    "repository_sqlite": _POWER | _ALONE | {"older_files"},
    # Nothing is on a disk, and a fork has its own copy of the memory.
    "repository_memory": _POWER | _PUT_BACK | _FULL_DISK | {"forks"},
    "repository_values": _POWER | _PUT_BACK | _FULL_DISK | {"forks"},
    # A fork has its own copy of the branches, which are in memory.
    "repository_folder": frozenset({"forks"}),
}
"""Hazards that have no place in a store."""

KNOWN: Mapping[tuple[str, str], str] = {
    ("local_log", "opened_on_a_full_disk"): "a log is opened and read on a full disk; a new term needs room",
    ("scheduler_in_folder", "opened_on_a_full_disk"): "the same",
    ("segment_log", "missing_files"): "a missing segment between others is named, in a log that may have gaps",
    ("segment_log", "older_files"): "an older snapshot's record is named: what is dead was not never there",
    ("raft_log_store", "missing_files"): "a missing log, checkpoint, vote or stateless row is named at opening",
    ("raft_log_store", "older_files"): "the same",
    ("file_fence", "missing_files"): "a fence whose record is missing says so, and admits no lower token",
    ("file_fence", "older_files"): "a fence with an older record says so, and admits no lower token",
}
"""What ought to hold and does not, by store and hazard."""


CASES = [pytest.param(store, hazard, id=f"{store}-{hazard}") for store in DRIVERS for hazard in HAZARDS
         if hazard not in NOWHERE.get(store, ()) and (hazard != "readers" or store in HAVE_READERS)]

HISTORIES = 8
"""The everyday sample of a hazard, in one life; 100 in 10 lives for a row of KNOWN, which end at the first failure."""
MORE = frozenset({"crashes", "lost_answers"})
"""Hazards that find most planted mistakes, and some of them in the second life: 6 histories in each of two."""


@pytest.mark.parametrize(("store", "hazard"), CASES)
def test_store_keeps_its_acknowledged_state(store: str, hazard: str, tmp_path: Path, effort: efforts.Effort) -> None:
    """See the hazard's own docstring."""
    known = KNOWN.get((store, hazard))
    few, lives = (100, 10) if known else (12, effort(2, 3)) if hazard in MORE else (
        HISTORIES // 2 if store in SAME else HISTORIES, effort(1, 3))
    many = effort(few, 200 if known else 60)
    try:
        found = [check_hazards(DRIVERS[store], tmp_path, hazards=[hazard], effort=Effort(
            acts=effort(6, 12), histories=many // lives, most=effort(1, 2), seed=seed))[hazard]
            for seed in range(lives)]
    except Exception:
        if known is None:
            raise
    else:
        assert known is None, f"this holds now, take its row out of KNOWN: {known}"
        assert sum(found) > lives, "the hazard has found no place where it can happen"
        return
    pytest.xfail(known)


@pytest.mark.parametrize("hazards", [["crashes", "crashs"], "crashes"])
def test_unknown_hazard_is_refused_before_any_runs(hazards: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"there is no hazard 'c.*; there are "):
        check_hazards(SegmentLogDriver(), tmp_path, hazards=hazards)
    assert not any(tmp_path.iterdir())
