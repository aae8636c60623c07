# SPDX-License-Identifier: Apache-2.0
"""A fence that fails after the commit of a staging area or a catalog takes nothing back: the error's report has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactlib.catalog import (
    CatalogPlan,
    CatalogService,
    CutReport,
    HybridClock,
    NodeId,
    NodeReport,
    PutObject,
    Schema,
    Topology,
    UpdateLog,
)
from compactlib.clock import ManualClock
from compactlib.errors import CompactionFailed, Conflict
from compactlib.kv import MemoryStore
from compactlib.staging import StagingCompactionReport
from tests.promises.raftlog.test_raftlog_fence import FailsToLeave
from tests.promises.test_promise_staging_outputs import POLICY, assert_all_live, staged

each_error = pytest.mark.parametrize("error", [Conflict("the lease is lost"), RuntimeError("the lease is lost")],
                                     ids=repr)


@each_error
def test_compaction_of_a_branch_stays(error: Exception, tmp_path: Path) -> None:
    repository, branch, live = staged(tmp_path)
    with pytest.raises((CompactionFailed, RuntimeError)) as raised:
        repository.compact(policy=POLICY, fence=FailsToLeave(1, error))
    assert isinstance(raised.value, CompactionFailed) == isinstance(error, Conflict)
    if isinstance(raised.value, CompactionFailed):
        report = raised.value.report
        assert isinstance(report, StagingCompactionReport)
        assert report.metarange_id is not None
        assert list(raised.value.failures.values()) == [error]
    repository.reclaim()
    assert_all_live(repository, live)
    assert repository.verify().is_sound
    branch.put(b"later", b"entry")
    assert not repository.compact(policy=POLICY).is_empty
    assert_all_live(repository, {**live, b"later": b"entry"})


@each_error
def test_cut_of_a_catalog_stays(error: Exception) -> None:
    store, clock = MemoryStore(), ManualClock(3000.0)
    service = CatalogService(UpdateLog(store), HybridClock(clock))
    for name in "ABCDE":
        service.execute([PutObject(Schema(name))])

    def cut_to(version: int) -> CatalogPlan:
        time = service.history.activation(version)
        return service.plan(view=service.view(reports=[NodeReport(node=NodeId("A"), transactions_from=time)],
                                              topology=Topology.of("A"), low_watermark=time))

    with pytest.raises((CompactionFailed, RuntimeError)) as raised:
        service.compact(cut_to(3), fence=FailsToLeave(1, error))
    assert isinstance(raised.value, CompactionFailed) == isinstance(error, Conflict)
    if isinstance(raised.value, CompactionFailed):
        report = raised.value.report
        assert isinstance(report, CutReport)
        assert report.earliest == 3
        assert list(raised.value.failures.values()) == [error]
    assert CatalogService(UpdateLog(store), HybridClock(clock)).history.earliest == 3
    assert service.compact(cut_to(4)).earliest == 4
    again = CatalogService(UpdateLog(store), HybridClock(clock))
    assert again.verify().is_sound
    assert {schema.name for schema in again.catalog(again.history.latest).schemas.values()} == set("ABCDE")
