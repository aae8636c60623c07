# SPDX-License-Identifier: Apache-2.0
"""The contract is content with a small store and a small service that do everything right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compactlib.testing import (
    CompactionConformance,
    Driver,
    ServiceConformance,
    ServiceFactory,
    check_compaction,
    check_service,
)
from tests.testing.contract.toy_service import ToyServices
from tests.testing.contract.toy_shared import SharedLineDriver
from tests.testing.contract.toy_store import LineDriver


class TestLineStore(CompactionConformance):
    effort_percent = 50

    def make_driver(self) -> Driver[Any]:
        return LineDriver()


class TestSharedLineStore(CompactionConformance):
    effort_percent = 20

    def make_driver(self) -> Driver[Any]:
        return SharedLineDriver()


class TestToyService(ServiceConformance):
    def make_factory(self) -> ServiceFactory:
        return ToyServices()


def test_checks_without_pytest_return_the_promises(tmp_path: Path) -> None:
    (tmp_path / "compaction").mkdir()
    (tmp_path / "service").mkdir()
    promises = check_compaction(LineDriver(), tmp_path / "compaction", effort_percent=5)
    assert len(promises) == 26
    assert "test_plan_changes_nothing" in promises
    assert len(check_service(ToyServices(), tmp_path / "service")) == 12
