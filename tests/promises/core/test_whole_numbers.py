# SPDX-License-Identifier: Apache-2.0
"""A count may be one of NumPy's integers, as an analyst has it; what is kept is Python's, which does not overflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compactlib.blobstore import Blob, BlobStore, RecordKind
from compactlib.budget import Budget, BudgetLimits
from compactlib.catalog import CatalogService, HybridClock, PutObject, Schema, UpdateLog
from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent, InvalidInput
from compactlib.executors import LocalExecutor, ProcessExecutor
from compactlib.kv import MemoryStore, SqliteStore
from compactlib.objects import LocalObjects
from compactlib.raftlog import StoreOptions
from compactlib.scheduler import WorkerOptions
from compactlib.staging import SplitRule

SMALL: Any = np.uint8(3)


def test_a_total_of_numpy_is_one_of_python() -> None:
    total: Any = np.uint8(200)
    budget = Budget(total_bytes=total)
    budget.spend(150)
    budget.charge(250)
    assert budget.remaining == BudgetLimits(total_bytes=0)
    with pytest.raises(BudgetSpent):
        budget.spend(1)
    limits = BudgetLimits(total_bytes=total)
    assert type(limits.total_bytes) is type(limits.share(3).total_bytes) is int


def test_arguments(tmp_path: Path) -> None:
    assert repr(LocalExecutor(SMALL)) == "LocalExecutor(workers=3)"
    assert repr(ProcessExecutor(SMALL)) == "ProcessExecutor(workers=3)"
    with SqliteStore(tmp_path / "kv", page_size=SMALL) as store:
        for key in range(20):
            store.set(b"p", bytes([key]), b"v")
        assert len(list(store.scan(b"p"))) == len(list(store.scan(b"p", page_size=SMALL))) == 20
    with LocalObjects(tmp_path / "objects") as objects:
        objects.create("a", bytes(range(256)) * 2)
        long: Any = np.uint8(250)
        assert objects.get_range("a", long, long) == (bytes(range(256)) * 2)[250:500]


def test_a_setting_is_kept_as_an_integer_of_python() -> None:
    assert type(StoreOptions(max_wal_bytes=SMALL).max_wal_bytes) is int
    assert type(WorkerOptions(capacity=SMALL).capacity) is type(SplitRule(max_bytes=SMALL).max_bytes) is int


@pytest.mark.parametrize("refused", [np.int64(-1), np.float64(3), 3.0, "3", None])
def test_what_is_no_count_is_refused(refused: Any) -> None:
    with pytest.raises(InvalidInput, match="give a whole number, at least 1"):
        LocalExecutor(refused)
    for settings in (WorkerOptions, SplitRule):
        field = "capacity" if settings is WorkerOptions else "max_bytes"
        with pytest.raises(InvalidInput, match=f"{field} is .*; give a whole number, at least 1"):
            settings(**{field: refused})


def test_a_number_of_a_blob_is_stored_and_returned_as_it_was_given(tmp_path: Path) -> None:
    half: Any = 7.0
    with BlobStore(tmp_path / "blobs") as store:
        for numbers in ({"account": half}, {"container": half}):
            with pytest.raises(InvalidInput, match=r"is 7\.0; give a whole number, at least 0"):
                store.put("a", b"", **numbers)
        with pytest.raises(InvalidInput, match="life_version"):
            store.append_replicated(RecordKind.DELETE, "a", op_time=1.0, life_version=half)
        store.put(np.bytes_(b"a"), b"", account=SMALL)
        token = store.entries_since().token
    with BlobStore(tmp_path / "blobs") as store:
        assert not store.entries_since(token).was_reset


def test_a_time_of_numpy_does_not_overflow(tmp_path: Path) -> None:
    month: Any = np.int32(30 * 86_400)
    with BlobStore(tmp_path / "blobs") as store:
        store.put("a", b"", ttl_seconds=month)
        assert isinstance(store.get("a"), Blob)
    catalog = CatalogService(UpdateLog(MemoryStore()), HybridClock(ManualClock(1.7e9)))
    catalog.execute([PutObject(Schema("S"))])
    catalog.pins.pin("a reader", 1, catalog.history, ttl_seconds=month)
    assert [pin.owner for pin in catalog.pins.active()] == ["a reader"]
