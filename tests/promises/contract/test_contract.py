# SPDX-License-Identifier: Apache-2.0
"""Every store and policy of the library keeps the one contract."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compactlib.budget import Budget
from compactlib.errors import BudgetSpent, CompactlibError
from compactlib.testing import CompactionConformance, Driver, check_policy
from tests.promises.contract.offered import offered, promises


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory, where a sync costs nothing."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="compactlib-contract-", dir=memory) as scratch:
        yield Path(scratch)


@pytest.mark.parametrize("promise", promises(CompactionConformance))
@pytest.mark.parametrize("driver", offered("COMPACTIONS"))
def test_compaction_keeps_the_contract(driver: Driver[Any], promise: str, folder: Path) -> None:
    kit = CompactionConformance()
    kit.make_driver = lambda: driver  # type: ignore[method-assign]
    getattr(kit, promise)(folder)


@pytest.mark.parametrize("driver", offered("COMPACTIONS"))
def test_total_that_is_never_enough_names_one_that_is(driver: Driver[Any], folder: Path) -> None:
    kit = CompactionConformance()
    kit.make_driver = lambda: driver  # type: ignore[method-assign]
    total, raised = 1, 0
    with kit.opened(folder, acts=3) as opened:
        for _ in range(100):
            report = opened.ended(budget=Budget(total_bytes=total))
            is_spent = isinstance(report, BudgetSpent)
            if not is_spent and not getattr(report, "is_partial", False):
                break
            if named := re.search(r"at least (\d+)", str(report) if is_spent else report.why):
                needed = int(named[1])
                assert needed > total
                total, raised = needed, raised + 1
        assert not isinstance(report, CompactlibError), f"{report!r} at {total} bytes"
        assert not getattr(report, "is_partial", False), f"{report!r} at {total} bytes"
        assert raised
        opened.finish("a total that was raised until it was enough")


@pytest.mark.parametrize("offer", offered("POLICIES"))
def test_policy_keeps_the_contract(offer: tuple[Any, Any]) -> None:
    policy, views = offer
    check_policy(policy, views, max_examples=15)
