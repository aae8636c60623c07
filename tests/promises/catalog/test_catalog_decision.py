# SPDX-License-Identifier: Apache-2.0
"""A decision allows a version exactly if no limit forbids it; its reasons name the same gate."""

from __future__ import annotations

from random import Random
from typing import Any

import attrs
import pytest

from compactlib.catalog import (
    CatalogService,
    CatalogTable,
    Cut,
    DropObject,
    Factor,
    Floor,
    HybridClock,
    Index,
    IndexStatus,
    NodeId,
    NodeReport,
    PublishedTimes,
    PutObject,
    Schema,
    Topology,
    UpdateLog,
    Zone,
    ZoneAssignments,
)
from compactlib.catalog.errors import CatalogMoved, CatalogVersionNotFound, UnsafeCompaction
from compactlib.catalog.policy import CatalogView, limits_of
from compactlib.clock import ManualClock
from compactlib.errors import InvalidInput
from compactlib.kv import MemoryStore
from tests.harness.catalog_cluster import Cluster

NAMES = ("A", "B", "C")


def service() -> tuple[CatalogService, ManualClock]:
    clock = ManualClock(1000.0)
    made = CatalogService(UpdateLog(MemoryStore(), rng=Random(1), clock=clock),
                          HybridClock(clock, max_skew_seconds=0.0), delay_seconds=0.0)
    made.execute([PutObject(Schema("S")), PutObject(Zone("Z", 2))], wait=False)
    return made, clock


def some_view(rng: Random) -> CatalogView:
    """A cluster of up to three nodes, some tables and indexes, and reports of which some lack something."""
    catalog, clock = service()
    tables = list[str]()
    for number in range(rng.randint(2, 12)):
        clock.advance(1.0)
        kinds: list[Any] = [PutObject(Schema(f"S{number}"))]
        if tables:
            kinds += [DropObject("table", rng.choice(tables), schema="S"),
                      PutObject(Index(f"I{number}", rng.choice(list(IndexStatus))), schema="S",
                                table=rng.choice(tables))]
        kinds += [PutObject(CatalogTable(f"T{number}"), schema="S", zone="Z")] * 2
        command = rng.choice(kinds)
        catalog.execute([command], wait=False)
        if isinstance(command, DropObject):
            tables.remove(command.name)
        elif isinstance(command.object, CatalogTable):
            tables.append(command.object.name)
    history = catalog.history
    clock.advance(rng.choice([0.0, 100.0]))

    def time() -> int:
        return history.activation(rng.randint(max(history.latest - 3, 0), history.latest))

    ids = {table.id for version in history for table in version.tables.values()}
    reports = [NodeReport(node=NodeId(name), transactions_from=max(time(), 1),
                          floors=(Floor(Factor.RAFT_RECOVERY, time()), Floor(Factor.LOW_WATERMARK, time())),
                          hosted={each: 3 if rng.random() < 0.95 else 1 for each in ids})
               for name in NAMES if rng.random() < 0.97]
    hosts = ZoneAssignments.of([[name for name in NAMES if rng.random() < 0.95] for _ in range(2)])
    return catalog.view(reports=reports, topology=Topology.of(*NAMES), low_watermark=time(),
                        assignments={1: hosts})


@pytest.mark.parametrize("seed", range(150))
def test_decision_takes_the_highest_version_without_limits(seed: int) -> None:
    view = some_view(Random(seed))
    history, decision = view.history, view.decision
    in_force = history.version_at(view.now)
    free = [version for version in range(2, in_force + 1) if not limits_of(view, version)]
    assert decision.target == max(free, default=None), decision
    if decision.target != in_force and in_force > 1:
        assert decision.limits
        # The reason names the first gate, with its holder.
        assert decision.reason().startswith(str(decision.limits[0]))


def test_why_names_the_node_that_explain_names() -> None:
    """Also where the log begins with its first version, below which nothing lies."""
    catalog, clock = service()
    catalog.execute([PutObject(CatalogTable("T"), schema="S", zone="Z")], wait=False)
    for number in range(5):
        clock.advance(1.0)
        catalog.execute([PutObject(Schema(f"S{number}"))], wait=False)
    now = catalog.history.activation(catalog.history.latest)
    whole, none = {2: 3}, dict[int, int]()
    for topology, hosts, of_b, named in (
            (Topology.of("A", "B", "C"), "AB", whole, "node C, did not answer"),
            (Topology.of("A", "B"), "ABC", whole, "node C, zone 1, table 2, partitions 0, 1"),
            (Topology.of("A", "B"), "AB", none, "node B, zone 1, table 2, partitions 0, 1")):
        reports = [NodeReport(node=NodeId(name), transactions_from=now, hosted=hosted)
                   for name, hosted in (("A", whole), ("B", of_b))]
        plan = catalog.plan(view=catalog.view(
            reports=reports, topology=topology, low_watermark=now,
            assignments={1: ZoneAssignments.everywhere(list(hosts), 2)}))
        assert plan.is_empty
        assert named in plan.why
        assert named in plan.explain()


def test_a_running_round_learns_of_a_copied_replica() -> None:
    """A's report is from before its replica became a copy of C's, which has moved on since."""
    catalog, clock = service()
    catalog.execute([PutObject(CatalogTable("T"), schema="S", zone="Z")], wait=False)
    for number in range(8):
        clock.advance(1.0)
        catalog.execute([PutObject(Schema(f"S{number}"))], wait=False)
    history = catalog.history
    times = {name: PublishedTimes(catalog, name) for name in "AC"}
    for each in times.values():
        each.register(2, 0, incarnation=1, created_at=history.activation(2))
    times["C"].register(2, 1, incarnation=1, created_at=history.activation(9))
    times["A"].publish(2, 0, 1, history.activation(9))
    times["C"].publish(2, 0, 1, history.activation(4))
    inherited = times["C"].published(2, 0)
    assert inherited is not None
    before = catalog.view()
    now = history.activation(history.latest)
    old = NodeReport(node=NodeId("A"), transactions_from=now, hosted=times["A"].needs_and_hosted()[1],
                     floors=(Floor(Factor.RAFT_RECOVERY, history.activation(9)),))
    times["A"].remove(2, 0, 1)
    times["A"].register(2, 0, incarnation=2, created_at=history.activation(2), inherited=inherited)
    times["C"].publish(2, 0, 1, history.activation(9))
    new = NodeReport(node=NodeId("C"), transactions_from=now, hosted=times["C"].needs_and_hosted()[1],
                     floors=(Floor(Factor.RAFT_RECOVERY, history.activation(9)),))
    view = attrs.evolve(before, reports=(old, new), topology=Topology.of("A", "C"), low_watermark=now,
                        assignments={1: ZoneAssignments(2, {"A": 1, "C": 3})})
    plan = catalog.plan(view=view)
    assert plan.target == 9
    with pytest.raises(CatalogMoved):
        catalog.compact(plan)
    assert catalog.history.earliest == 0


def test_partition_moved_since_the_decision_keeps_its_table() -> None:
    """The assignments are read, and the decision is made, once more right before the cut."""
    cluster = Cluster()
    cluster.add_table(1)
    cluster.grow(6)
    cluster.settle()

    def move() -> None:
        cluster.assigned = {zone: ZoneAssignments.everywhere([*NAMES, "D"], 25) for zone in cluster.assigned}

    cluster.on["assignments"] = lambda: cluster.on.update(assignments=move)
    report, failures = cluster.round()
    assert isinstance(failures["compaction"], UnsafeCompaction)
    assert "node D" in str(failures["compaction"])
    assert report.cut is None
    assert cluster.service.history.earliest == 0


def test_copy_of_a_cut_version_is_refused() -> None:
    catalog, clock = service()
    for number in range(5):
        clock.advance(1.0)
        catalog.execute([PutObject(Schema(f"S{number}"))], wait=False)
    stale = CatalogService(catalog.log, catalog.clock, delay_seconds=60.0)
    before, now = catalog.history, catalog.history.activation(5)
    catalog.compact(catalog.plan(view=catalog.view(
        reports=[NodeReport(node=NodeId("A"), transactions_from=now)], topology=Topology.of("A"), low_watermark=now)))
    times = PublishedTimes(stale, "A")
    with pytest.raises(CatalogVersionNotFound):
        times.register(2, 0, incarnation=1, created_at=1, inherited=before.activation(3))
    assert times.published(2, 0) is None
    times.register(2, 0, incarnation=1, created_at=now)
    with pytest.raises(CatalogVersionNotFound):
        times.register(2, 0, incarnation=2, created_at=1, inherited=before.activation(3))
    assert times.published(2, 0) == now  # the earlier data still needs it


def test_choice_above_the_safe_version_is_refused() -> None:
    catalog, clock = service()
    for number in range(5):
        clock.advance(1.0)
        catalog.execute([PutObject(Schema(f"S{number}"))], wait=False)
    time = catalog.history.activation(3)
    view = catalog.view(reports=[NodeReport(node=NodeId("A"), transactions_from=time)], topology=Topology.of("A"),
                        low_watermark=time)

    class TooHigh:
        name = "too_high"
        target: Any = 5

        def choose(self, view: CatalogView, now: float) -> Cut:
            return Cut(self.target, "more than is safe")

    with pytest.raises(UnsafeCompaction):
        catalog.plan(TooHigh(), view=view)
    TooHigh.target = 77
    with pytest.raises(InvalidInput):
        catalog.plan(TooHigh(), view=view)
    nothing: Any = lambda self, view, now: None  # noqa: E731 - a policy without a return
    TooHigh.choose = nothing  # type: ignore[method-assign]
    with pytest.raises(InvalidInput, match=r"too_high.*None.*Cut"):
        catalog.plan(TooHigh(), view=view)
    plan = catalog.plan(view=view)
    catalog.execute([PutObject(Schema("X"))])
    assert catalog.compact(plan).earliest == 3
    with pytest.raises(CatalogMoved):
        catalog.compact(plan)
