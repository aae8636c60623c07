# SPDX-License-Identifier: Apache-2.0
"""The kits of the contract are content with a small store and small services that do everything right."""

from __future__ import annotations

from pathlib import Path

from compactlib.testing import (
    AsyncServiceConformance,
    AsyncServiceFactory,
    CompactionConformance,
    CompactionFactory,
    ServiceConformance,
    ServiceFactory,
    check_async_service,
    check_compaction,
    check_service,
)
from tests.testing.contract.toy_factory import LineStores
from tests.testing.contract.toy_service import ToyAsyncServices, ToyServices
from tests.testing.contract.toy_shared import SharedLineStores


class TestLineStore(CompactionConformance):
    effort_percent = 50

    def make_factory(self) -> CompactionFactory:
        return LineStores()


SHARED = SharedLineStores()


class TestSharedLineStore(CompactionConformance):
    effort_percent = 20

    def make_factory(self) -> CompactionFactory:
        return SHARED


class TestToyService(ServiceConformance):
    def make_factory(self) -> ServiceFactory:
        return ToyServices()


class TestToyAsyncService(AsyncServiceConformance):
    def make_factory(self) -> AsyncServiceFactory:
        return ToyAsyncServices()


def test_without_pytest_each_check_says_what_was_passed(tmp_path: Path) -> None:
    for name in ("compaction", "service", "async"):
        (tmp_path / name).mkdir()
    passed = check_compaction(LineStores(), tmp_path / "compaction", effort_percent=5)
    assert len(passed) > 35
    assert "test_a_plan_changes_nothing" in passed
    assert len(check_service(ToyServices(), tmp_path / "service")) > 12
    assert len(check_async_service(ToyAsyncServices(), tmp_path / "async")) > 10
