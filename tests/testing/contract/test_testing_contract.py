# SPDX-License-Identifier: Apache-2.0
"""The contract is content with small stores that do everything right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compactlib.testing import (
    CompactionConformance,
    Driver,
    check_compaction,
)
from tests.testing.contract.toy_shared import SharedLineDriver
from tests.testing.contract.toy_store import LineDriver


class TestLineStore(CompactionConformance):
    def make_driver(self) -> Driver[Any]:
        return LineDriver()


class TestSharedLineStore(CompactionConformance):
    def make_driver(self) -> Driver[Any]:
        return SharedLineDriver()


def test_checks_without_pytest_return_the_promises(tmp_path: Path) -> None:
    (tmp_path / "compaction").mkdir()
    promises = check_compaction(LineDriver(), tmp_path / "compaction")
    assert len(promises) == 18
    assert "test_plan_is_a_function_that_changes_nothing" in promises
