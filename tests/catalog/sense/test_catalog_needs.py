# SPDX-License-Identifier: Apache-2.0
"""The sources of need: transactions, published times, rebalance, index builds, pins; and the report."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from compactlib.catalog import (
    ActiveTransactions,
    CreateSchema,
    HybridClock,
    LocalNeeds,
    LowWatermark,
    NodeId,
    PublishedTimes,
)
from compactlib.catalog.errors import (
    BelowLowWatermark,
    CatalogMoved,
    CatalogVersionNotFound,
    ObjectNotFound,
    PinExpired,
    RecordDamaged,
    StaleIncarnation,
    TimeBeforeHistory,
)
from compactlib.catalog.log import keys
from compactlib.catalog.model.partitions import HostedPartitions
from compactlib.catalog.model.timestamp import timestamp
from compactlib.catalog.model.values import Culprit, Factor, Floor, Unavailable
from compactlib.catalog.schema.catalog import EMPTY, Change, DropObject, PutObject
from compactlib.catalog.schema.descriptors import IndexStatus, Schema, Zone
from compactlib.catalog.schema.versions import RetainedVersions
from compactlib.catalog.sense.index_builds import IndexBuilds
from compactlib.catalog.sense.pins import MAX_OWNER, Pins
from compactlib.catalog.sense.published import FlushTicket
from compactlib.catalog.sense.rebalance import (
    Placement,
    PlacementTracker,
    RebalanceNeed,
    ZoneProgress,
    rebalance_minimum,
)
from compactlib.clock import ManualClock
from compactlib.errors import AuditFailed, InvalidInput, StorageError
from compactlib.kv import KVStore, MemoryStore, OutcomeUnknown
from compactlib.outcome import Done, Failed
from tests.catalog.cases import TABLE_X, ZONE, drop_table, history, index, schema_and_zone, table, with_table_x
from tests.catalog.services import cut, grown, plan_to, service_in
from tests.harness.catalog_logs import log_in, sound
from tests.harness.faulty_store import FaultyStore, KVFault, KVOperation
from tests.tools.faults.kv_faults import KVRun, explore_kv_faults

# --- transactions -------------------------------------------------------------------------------------------------


def timed_history(*seconds: float) -> RetainedVersions:
    """Version 0, then one version at each of these seconds."""
    catalogs = [EMPTY]
    for version, at in enumerate(seconds, 1):
        time = timestamp(int(at * 1000))
        catalogs.append(catalogs[-1].apply((), version=version, commit=time, activation=time, next_id=0))
    return RetainedVersions(catalogs)


def test_the_oldest_version_in_use_counts_until_its_last_transaction_ends() -> None:
    clock = ManualClock(0.5)
    hybrid = HybridClock(clock)
    view = timed_history(1, 2, 3, 4, 5)
    active = ActiveTransactions(lambda: view, hybrid)
    begun = []
    for _ in range(5):
        clock.advance(1.0)
        begun += [active.begin() for _ in range(100)]
    assert len(active) == 500
    for number, transaction in enumerate(begun):
        assert active.minimum() == timestamp(1000 * (number // 100 + 1))
        active.audit()
        active.end(transaction)
    before = hybrid.now()
    assert before < active.minimum() < hybrid.now()


def test_ending_a_transaction_twice_counts_once() -> None:
    active = ActiveTransactions(RetainedVersions, HybridClock(ManualClock(1.0)))
    one, two = active.begin(), active.begin()
    active.end(one)
    active.end(one)
    assert len(active) == 1
    assert "ended" in repr(one)
    assert "ended" not in repr(two)


def test_a_transaction_that_begins_after_a_report_begins_above_it() -> None:
    active = ActiveTransactions(RetainedVersions, HybridClock(ManualClock(1.0)))
    for _ in range(100):
        told = active.minimum()
        transaction = active.begin()
        assert transaction.began > told
        active.end(transaction)


def test_transactions_name_themselves() -> None:
    active = ActiveTransactions(RetainedVersions, HybridClock(ManualClock(1.0)))
    assert active.need(RetainedVersions()) == Floor(Factor.ACTIVE_TRANSACTIONS, timestamp(1000))
    active.begin()
    assert active.need(RetainedVersions()) == Floor(
        Factor.ACTIVE_TRANSACTIONS, 1, Culprit(owner="1 transactions at catalog version 0"))


def test_a_transaction_before_history_is_refused() -> None:
    view = timed_history(1, 2).from_version(2)
    active = ActiveTransactions(lambda: view, HybridClock(ManualClock(1.5)))
    with pytest.raises(TimeBeforeHistory):
        active.begin()
    assert len(active) == 0


def test_the_audit_of_transactions_finds_a_version_that_was_cut() -> None:
    views = [timed_history(1, 2, 3)]
    active = ActiveTransactions(lambda: views[-1], HybridClock(ManualClock(1.5)))
    active.begin()
    views.append(views[0].from_version(2))
    with pytest.raises(AssertionError, match="1 transactions use version 1"):
        active.audit()


# --- published times ----------------------------------------------------------------------------------------------


def published(store: KVStore | None = None) -> PublishedTimes:
    return PublishedTimes(MemoryStore() if store is None else store, "A")


def test_the_collector_keeps_the_greatest_time_of_what_is_registered() -> None:
    times = published()
    assert [times.register(7, partition, incarnation=1, created_at=1) for partition in (1, 2)] == [1, 1]
    for partition, time in ((1, 2), (2, 4), (1, 3), (1, 2)):
        times.publish(7, partition, 1, time)
        times.audit()
    assert (times.published(7, 1), times.published(7, 2)) == (3, 4)
    times.remove(7, 2, 1)
    with pytest.raises(StaleIncarnation) as caught:
        times.publish(7, 2, 1, 1000)
    assert (caught.value.incarnation, caught.value.current) == (1, 0)
    times.remove(7, 1, 1)
    times.remove(7, 1, 1)
    assert times.needs_and_hosted() == (None, HostedPartitions())
    assert times.register(7, 1, incarnation=2, created_at=1) == 1


def test_a_time_is_published_after_the_next_successful_flush() -> None:
    times = published()
    times.register(7, 0, incarnation=1, created_at=20, flushed_index=8)
    times.applied(7, 0, 1, index=9, time=70)
    assert times.published(7, 0) == 20
    times.begin_flush(7, 0, 1)  # and it fails: nobody tells
    assert times.published(7, 0) == 20
    assert times.flushed([times.begin_flush(7, 0, 1)]) == 1
    assert times.published(7, 0) == 70
    times.applied(7, 0, 1, index=8, time=500)
    assert times.flushed([times.begin_flush(7, 0, 1)]) == 0
    assert times.published(7, 0) == 70


def test_a_flush_covers_only_what_was_applied_when_it_began() -> None:
    times = published()
    times.register(7, 0, incarnation=1, created_at=20)
    times.applied(7, 0, 1, index=1, time=30)
    ticket = times.begin_flush(7, 0, 1)
    times.applied(7, 0, 1, index=2, time=60)
    times.flushed([ticket])
    assert times.published(7, 0) == 30


def test_tickets_may_be_drawn_as_they_are_asked_for() -> None:
    one = published()
    for partition in range(3):
        one.register(7, partition, incarnation=1, created_at=5)
        one.applied(7, partition, 1, index=4, time=90)
    assert one.flushed(one.begin_flush(7, partition, 1) for partition in range(3)) == 3
    assert one.published(7, 2) == 90


@pytest.mark.parametrize("max_transact", [0, 1, 2, 3, 4])
def test_what_is_published_is_kept_or_the_store_is_refused(max_transact: int) -> None:
    store = MemoryStore(limits=attrs.evolve(MemoryStore().limits, max_transact=max_transact))
    if max_transact < 3:
        with pytest.raises(InvalidInput, match="keys in one step"):
            published(store)
        return
    one = published(store)
    one.register(7, 0, incarnation=1, created_at=5)
    one.publish(7, 0, 1, 90)
    assert published(store).register(7, 0, incarnation=1, created_at=5) == 90


def test_a_restart_keeps_what_was_published_and_a_new_partition_begins_at_its_version() -> None:
    store = MemoryStore()
    before = published(store)
    before.register(7, 0, incarnation=5, created_at=20)
    before.publish(7, 0, 5, 70)
    again = published(store)
    assert again.register(7, 0, incarnation=5, created_at=20) == 70
    assert again.register(8, 0, incarnation=1, created_at=60) == 60
    assert again.needs_and_hosted() == (Floor(Factor.RAFT_RECOVERY, 60, Culprit(table=8, partitions=(0,))),
                                        HostedPartitions.of({7: [0], 8: [0]}))


def test_a_late_flush_of_an_earlier_life_publishes_nothing() -> None:
    times = published()
    times.register(7, 0, incarnation=1, created_at=20)
    times.applied(7, 0, 1, index=5, time=70)
    late = times.begin_flush(7, 0, 1)
    assert times.register(7, 0, incarnation=1, created_at=20) == 20
    assert times.register(7, 0, incarnation=2, created_at=20) == 20
    assert times.flushed([late]) == 0
    assert times.published(7, 0) == 20
    for call in (lambda: times.applied(7, 0, 1, index=6, time=80), lambda: times.begin_flush(7, 0, 1)):
        with pytest.raises(StaleIncarnation):
            call()
    times.remove(7, 0, 1)
    assert times.published(7, 0) == 20


def test_another_life_after_a_restart_does_not_inherit() -> None:
    store = MemoryStore()
    before = published(store)
    before.register(7, 0, incarnation=5, created_at=20)
    before.publish(7, 0, 5, 70)
    assert published(store).register(7, 0, incarnation=6, created_at=20) == 20


def test_a_replica_that_was_moved_inherits_what_its_source_had_published() -> None:
    store = MemoryStore()
    times = published(store)
    assert times.register(7, 1, incarnation=7, created_at=20, inherited=70) == 70
    assert times.needs_and_hosted()[0] == Floor(Factor.RAFT_RECOVERY, 70, Culprit(table=7, partitions=(1,)))
    times.audit()
    # After a restart, when nobody knows any more where the copy came from.
    again = published(store)
    assert again.register(7, 1, incarnation=7, created_at=20) == 70
    assert again.register(7, 1, incarnation=8, created_at=20, inherited=60) == 60  # a later copy, from another source
    assert published(store).register(7, 1, incarnation=8, created_at=20) == 60
    assert times.register(7, 2, incarnation=1, created_at=20, inherited=10) == 20


def test_a_replica_that_inherits_is_kept_before_it_counts_after_a_fault_at_any_step() -> None:
    def run(store: FaultyStore) -> None:
        store.acknowledge(published(store).register(7, 0, incarnation=1, created_at=20, inherited=70))

    def check(store: KVStore, run: KVRun) -> None:
        assert published(store).register(7, 0, incarnation=1, created_at=20) >= max(run.acknowledged, default=20)

    assert explore_kv_faults(MemoryStore, run, check).runs >= 10


def test_a_replica_that_needs_what_was_cut_is_refused() -> None:
    view = history({}, latest=8, earliest=5)
    times = published()
    with pytest.raises(TimeBeforeHistory, match="50"):
        times.register(7, 0, incarnation=7, created_at=20, history=view)
    assert len(times) == 0
    assert times.register(7, 0, incarnation=7, created_at=20, inherited=55, history=view) == 55
    assert times.register(7, 1, incarnation=1, created_at=50, history=view) == 50


@pytest.mark.parametrize("fault", [KVFault.FAIL, KVFault.UNKNOWN_LOST, KVFault.UNKNOWN_DONE])
def test_nothing_is_published_that_may_not_have_been_kept(fault: KVFault) -> None:
    failing = [False]
    store = FaultyStore(MemoryStore(), lambda one: fault if one.changes and failing[0] else None)
    times = PublishedTimes(store, "A", clock=ManualClock(1.0))
    times.register(7, 0, incarnation=1, created_at=20)
    failing[0] = True
    times.applied(7, 0, 1, index=9, time=70)
    if fault is not KVFault.UNKNOWN_DONE:
        with pytest.raises(StorageError):
            times.flushed([times.begin_flush(7, 0, 1)])
        assert times.published(7, 0) == 20
        times.audit()
    failing[0] = False
    assert times.flushed([times.begin_flush(7, 0, 1)]) == 1
    assert published(store).register(7, 0, incarnation=1, created_at=20) == 70


def test_what_was_published_is_kept_after_a_fault_at_any_step() -> None:
    def run(store: FaultyStore) -> None:
        times = published(store)
        times.register(7, 0, incarnation=1, created_at=20)
        for number in (1, 2, 3):
            times.applied(7, 0, 1, index=number, time=30 * number)
            times.flushed([times.begin_flush(7, 0, 1)])
            store.acknowledge(times.published(7, 0))

    def check(store: KVStore, run: KVRun) -> None:
        assert published(store).register(7, 0, incarnation=1, created_at=20) >= max(run.acknowledged, default=20)

    assert explore_kv_faults(MemoryStore, run, check).runs >= 40


def test_a_pin_that_was_granted_is_there_after_a_fault_at_any_step() -> None:
    view = timed_history(1, 2, 3)

    def run(store: FaultyStore) -> None:
        pins = Pins(log_in(store), HybridClock(ManualClock(5.0)))
        pins.pin("a", 1, view, ttl_seconds=60)
        pins.release("a")
        store.acknowledge(pins.pin("a", 2, view, ttl_seconds=60))

    def check(store: KVStore, run: KVRun) -> None:
        assert set(run.acknowledged) <= set(Pins(log_in(store), HybridClock(ManualClock(5.0))).active())

    assert explore_kv_faults(MemoryStore, run, check).runs >= 40


def test_many_partitions_are_kept_in_few_writes() -> None:
    store = FaultyStore(MemoryStore())
    times = published(store)
    for number in range(1200):
        times.register(7, number, incarnation=1, created_at=1)
        times.applied(7, number, 1, index=1, time=50)
    assert times.flushed([times.begin_flush(7, number, 1) for number in range(1200)]) == 1200
    assert sum(one.changes for one in store.operations) == 1 + 3  # the first says whose times they are


def test_times_of_partitions_that_are_gone_are_forgotten() -> None:
    store = MemoryStore()
    PublishedTimes(store, "A/B")
    other = PublishedTimes(store, "A/7")
    other.register(7, 0, incarnation=1, created_at=1)
    other.publish(7, 0, 1, 5)
    times = published(store)
    for number in (1, 2):
        times.register(7, number, incarnation=1, created_at=1)
        times.publish(7, number, 1, 5)
    again = published(store)
    again.register(7, 1, incarnation=1, created_at=1)
    assert again.forget_removed() == 1
    assert len([*store.scan(b"catalog", prefix=keys.PUBLISHED)]) == 2


@pytest.mark.parametrize("wrong", [
    {"incarnation": 0}, {"created_at": 0}, {"partition": -1}, {"partition": 65_000}, {"created_at": -5},
])
def test_a_partition_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    good = {"table": 7, "partition": 0, "incarnation": 1, "created_at": 10}
    with pytest.raises(InvalidInput):
        published().register(**{**good, **wrong})


def test_a_damaged_published_time_is_named() -> None:
    store = MemoryStore()
    times = published(store)
    times.register(7, 0, incarnation=1, created_at=1)
    times.publish(7, 0, 1, 5)
    store.set(b"catalog", keys.published_key("A", 7, 0), b"nonsense, but of some length")
    with pytest.raises(RecordDamaged, match="published/A/7/0"):
        published(store).register(7, 0, incarnation=1, created_at=1)


def test_a_ticket_of_an_unknown_partition_does_nothing() -> None:
    assert published().flushed([FlushTicket(7, 0, 1, 1, 50)]) == 0


# --- rebalance ----------------------------------------------------------------------------------------------------


def zone_history(*more: tuple[int, int, Sequence[Change]]) -> RetainedVersions:
    """Zone Z with update time 15 and activation 20; table T1 in v3@30; its filter changed with 35 and 40."""
    def zone(**fields: str | int) -> Change:
        return PutObject(Zone(id=ZONE, name="Z", partitions=4, **fields))  # type: ignore[arg-type]

    steps: list[tuple[int, int, Sequence[Change]]] = [
        (5, 10, [PutObject(Schema(1, "PUBLIC"))]), (15, 20, [zone()]), (30, 30, table(TABLE_X)),
        (35, 40, [zone(node_filter="ssd")]), *more,
    ]
    catalogs = [EMPTY]
    for version, (commit, activation, changes) in enumerate(steps, 1):
        catalogs.append(catalogs[-1].apply(changes, version=version, commit=commit, activation=activation, next_id=999))
    return RetainedVersions(catalogs)


def everywhere(time: int) -> dict[int, int]:
    return dict.fromkeys(range(4), time)


@pytest.mark.parametrize(("progress", "expected"), [
    (ZoneProgress(), 34),
    (ZoneProgress(stable=everywhere(30)), 34),
    (ZoneProgress(pending=everywhere(40), trigger=35), 100),
    (ZoneProgress(pending={0: 40, 2: 40}, trigger=35), 34),
    (ZoneProgress(pending={0: 40, 2: 40}, stable=everywhere(30), trigger=35), 34),
    (ZoneProgress(pending={1: 40}, stable={**everywhere(30), 0: 40}, trigger=35), 34),
    (ZoneProgress(pending={**everywhere(30), 3: 40}, trigger=35), 34),
])
def test_a_zone_holds_what_lies_before_the_change_it_has_not_followed(progress: ZoneProgress,
                                                                               expected: int) -> None:
    time, zone = rebalance_minimum(zone_history(), Placement(safe=100, zones={ZONE: progress}))
    assert time == expected
    assert zone == (ZONE if expected < 100 else None)


@pytest.mark.parametrize("named", [(35, 38), (40, 43)], ids=["by their commits", "by their activations"])
def test_a_change_that_was_committed_before_the_last_one_was_in_force_is_not_followed_by_that(
        named: tuple[int, int]) -> None:
    first, second = named
    view = zone_history((38, 43, [PutObject(Zone(id=ZONE, name="Z", partitions=4, node_filter="nvme"))]))
    for progress, expected in [
        (ZoneProgress(trigger=first), 37), (ZoneProgress(stable=everywhere(first), trigger=first), 37),
        (ZoneProgress(pending=everywhere(first), trigger=first), 37),
        (ZoneProgress(pending=everywhere(second), stable=everywhere(first), trigger=first), 37),
        (ZoneProgress(pending={**everywhere(second), 2: first}, trigger=second), 37),
        (ZoneProgress(stable=everywhere(first), planned=everywhere(second), trigger=second), 37),
        (ZoneProgress(pending=everywhere(second), stable=everywhere(first), trigger=second), 100),
        (ZoneProgress(stable=everywhere(second), trigger=second), 100),
    ]:
        assert rebalance_minimum(view, Placement(safe=100, zones={ZONE: progress}))[0] == expected, progress


def test_a_change_may_be_named_by_a_later_one_that_moves_no_data() -> None:
    later = [PutObject(Zone(id=ZONE, name="Z", partitions=4, node_filter="ssd", scale_up_seconds=9))]
    view = zone_history((38, 43, later))
    for named in (35, 38, 40, 43):
        done = ZoneProgress(stable=everywhere(named), trigger=named)
        assert rebalance_minimum(view, Placement(safe=100, zones={ZONE: done})) == (100, None), named


def test_a_finished_rebalance_holds_nothing_while_both_descriptors_are_retained() -> None:
    view = zone_history()
    tracker = PlacementTracker(lambda: 100)
    need = RebalanceNeed(tracker)
    assert need.need(view) == Floor(Factor.REBALANCE, 34, Culprit(zone=ZONE))
    tracker.started(ZONE, 35)
    for partition in range(4):
        tracker.moving(ZONE, partition, 40)
        for _ in range(partition < 3):
            assert need.need(view) == Floor(Factor.REBALANCE, 34, Culprit(zone=ZONE))
    for partition in range(4):
        tracker.settled(ZONE, partition, 40)
    assert need.need(view) == Floor(Factor.REBALANCE, 100)


def test_assignments_that_are_only_planned_hold_what_lies_before_their_change() -> None:
    view = zone_history((45, 50, [PutObject(Zone(id=ZONE, name="Z", partitions=4, node_filter="nvme"))]))
    tracker = PlacementTracker(lambda: 100)
    need = RebalanceNeed(tracker)
    held = Floor(Factor.REBALANCE, 44, Culprit(zone=ZONE))
    tracker.started(ZONE, 35)
    for partition in range(4):
        tracker.moving(ZONE, partition, 35)
    assert need.need(view) == held
    tracker.started(ZONE, 45)  # its assignments are worked out, and wait until the partitions have moved once
    for partition in range(4):
        tracker.plans(ZONE, partition, 45)
    assert need.need(view) == held
    for partition in range(4):
        tracker.settled(ZONE, partition, 35)
        assert need.need(view) == held
    for partition in range(4):
        tracker.moving(ZONE, partition, 45)
        tracker.audit()
        assert need.need(view) == (Floor(Factor.REBALANCE, 100) if partition == 3 else held)
    for partition in range(4):
        tracker.settled(ZONE, partition, 45)
    assert need.need(view) == Floor(Factor.REBALANCE, 100)
    tracker.plans(ZONE, 0, 35)
    with pytest.raises(AuditFailed, match="from change 45 back to 35"):
        tracker.audit()


def test_a_change_that_moves_no_data_is_no_change_point() -> None:
    later = [PutObject(Zone(id=ZONE, name="Z", partitions=4, node_filter="ssd", scale_up_seconds=9))]
    view = zone_history((45, 50, later))
    done = ZoneProgress(stable=everywhere(40), trigger=35)
    assert rebalance_minimum(view, Placement(safe=100, zones={ZONE: done})) == (100, None)


def test_a_dropped_zone_holds_only_while_something_of_it_is_left() -> None:
    view = zone_history((45, 50, drop_table(TABLE_X)), (55, 60, [DropObject("zone", ZONE)]))
    left = ZoneProgress(stable=everywhere(40), trigger=35)
    assert rebalance_minimum(view, Placement(safe=100, zones={ZONE: left})) == (59, ZONE)
    assert rebalance_minimum(view, Placement(safe=100)) == (100, None)


def test_a_zone_that_never_had_a_table_holds_nothing() -> None:
    view = history({1: schema_and_zone(), 3: [PutObject(Zone(id=ZONE, name="Z", partitions=30))]})
    assert rebalance_minimum(view, Placement(safe=100)) == (100, None)


def test_the_audit_of_the_tracker_finds_a_partition_that_moves_back() -> None:
    tracker = PlacementTracker(lambda: 100)
    tracker.settled(ZONE, 0, 40)
    tracker.moving(ZONE, 0, 50)
    tracker.audit()
    tracker.moving(ZONE, 0, 30)
    with pytest.raises(AssertionError, match="from change 40 back to 30"):
        tracker.audit()


def test_the_tracker_forgets_a_zone_that_is_gone() -> None:
    tracker = PlacementTracker(lambda: 100)
    tracker.settled(ZONE, 0, 40)
    tracker.gone(ZONE)
    assert tracker.placement() == Placement(safe=100)


# --- index builds -------------------------------------------------------------------------------------------------


def builds_over(view: RetainedVersions, low_watermark: int | None = None) -> IndexBuilds:
    """Over a history and a low watermark that stand still."""
    watermark = LowWatermark(MemoryStore(), "A", HybridClock(ManualClock(1000.0)))
    if low_watermark is not None:
        watermark.advance(low_watermark)
    return IndexBuilds(lambda: view, watermark)


def test_a_build_needs_the_version_it_reads_until_it_ends() -> None:
    view = with_table_x({3: index(9, IndexStatus.BUILDING), 5: index(10, IndexStatus.BUILDING)})
    builds = builds_over(view)
    assert builds.need(view) is None
    builds.begin(10, 5)
    builds.begin(9, 4)
    assert builds.need(view) == Floor(Factor.INDEX_BUILD, 40, Culprit(index=9, table=TABLE_X))
    with pytest.raises(InvalidInput, match="being built already"):
        builds.begin(9, 5)
    builds.end(9)
    builds.end(9)
    builds.audit()
    assert len(builds) == 1
    assert builds.need(view) == Floor(Factor.INDEX_BUILD, 50, Culprit(index=10, table=TABLE_X))


def test_a_build_of_what_is_not_there_is_refused() -> None:
    with pytest.raises(ObjectNotFound):
        builds_over(with_table_x({3: index(9, IndexStatus.BUILDING)})).begin(9, 2)
    with pytest.raises(CatalogVersionNotFound):
        builds_over(with_table_x()).begin(9, 20)


@pytest.mark.parametrize(("version", "low_watermark", "after", "is_taken"), [
    (5, 59, IndexStatus.AVAILABLE, True),   # in force at the low watermark
    (5, 60, IndexStatus.AVAILABLE, False),  # nobody needs it any more by then, and a report may have said so
    (6, 60, IndexStatus.AVAILABLE, True),
    (5, 60, IndexStatus.BUILDING, True),    # history cannot be cut past an index that is being built ever since
    (5, 60, None, False),                   # it was dropped
])
def test_a_build_below_the_low_watermark_is_refused(version: int, low_watermark: int, after: IndexStatus | None,
                                                    is_taken: bool) -> None:
    later = [DropObject("index", 9)] if after is None else index(9, after)
    builds = builds_over(with_table_x({5: index(9, IndexStatus.BUILDING), 6: later}), low_watermark)
    if is_taken:
        builds.begin(9, version)
    else:
        with pytest.raises(BelowLowWatermark) as caught:
            builds.begin(9, version)
        assert (caught.value.time, caught.value.low_watermark) == (50, 60)
    assert len(builds) == is_taken


@pytest.mark.parametrize("begins", range(4))
@pytest.mark.parametrize("rises", range(4))
@pytest.mark.parametrize("low_watermark_first", [True, False])
def test_a_build_that_begins_while_its_node_reports_needs_nothing_below_the_report(
        begins: int, rises: int, low_watermark_first: bool) -> None:
    """A build begins and the low watermark passes its version, each before, between or after the asking of the two.

    Whichever order a host names its sources in: no build goes on that needs less than the report says.
    """
    view = with_table_x({5: index(9, IndexStatus.BUILDING), 7: index(9, IndexStatus.AVAILABLE)})
    clock = HybridClock(ManualClock(1000.0))
    watermark = LowWatermark(MemoryStore(), "A", clock)
    watermark.advance(50)
    builds = IndexBuilds(lambda: view, watermark)
    refused = []

    class Meanwhile:
        def __init__(self, at: int) -> None:
            self.at = at

        def need(self, view: RetainedVersions) -> None:
            if rises == self.at:
                watermark.advance(80)
            if begins == self.at:
                try:
                    builds.begin(9, 5)
                except BelowLowWatermark as error:
                    refused.append(error)

    pair = (watermark, builds) if low_watermark_first else (builds, watermark)
    needs = LocalNeeds(NodeId("A"), lambda: view, transactions=ActiveTransactions(lambda: view, clock),
                       sources=[Meanwhile(0), pair[0], Meanwhile(1), Meanwhile(2), pair[1], Meanwhile(3)])
    minimum = needs.report().minimum()
    assert minimum is not None
    assert refused or view.version_at(minimum) <= 5
    assert bool(refused) == (rises <= begins)
    assert watermark.value.time == 80


# --- pins ---------------------------------------------------------------------------------------------------------


def test_a_pin_holds_its_version_until_it_expires_on_every_clock() -> None:
    clock = ManualClock(1000.0)
    service = grown(service_in(clock=clock), 5)
    pins = Pins(service.log, HybridClock(clock, max_skew_seconds=0.5))
    pins.pin("backup", 3, service.history, ttl_seconds=60)
    pins.pin("report", 4, service.history, ttl_seconds=600)
    held = Floor(Factor.PIN, service.history.activation(3), Culprit(owner="pinned by 'backup'"))
    assert pins.need(service.history) == held
    clock.advance(60.4)
    assert [pin.owner for pin in pins.active()] == ["backup", "report"]
    clock.advance(0.2)
    assert [pin.owner for pin in pins.active()] == ["report"]
    assert pins.forget_expired() == 1
    assert [pin.owner for pin in pins.all()] == ["report"]
    with pytest.raises(PinExpired) as caught:
        pins.renew("backup", ttl_seconds=5)
    assert caught.value.owner == "backup"


def test_a_pin_is_renewed_moved_and_released() -> None:
    clock = ManualClock(1000.0)
    service = grown(service_in(clock=clock), 5)
    pins = Pins(service.log, service.clock)
    first = pins.pin("backup", 3, service.history, ttl_seconds=60)
    clock.advance(50)
    assert pins.renew("backup", ttl_seconds=60).expires > first.expires
    pins.pin("backup", 4, service.history, ttl_seconds=60)
    assert [pin.version for pin in pins.all()] == [4]
    pins.release("backup")
    pins.release("backup")
    assert pins.need(service.history) is None


def test_a_pin_that_was_granted_holds_against_a_decision_made_before_it() -> None:
    service = grown(service_in(), 6)
    plan = plan_to(service, 5)
    service.pins.pin("backup", 3, service.history, ttl_seconds=60)
    outcome = service.compact(plan)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, CatalogMoved)
    assert outcome.changed == "no"
    assert service.history.earliest == 0
    assert plan_to(service, 5).target == 3  # a plan made after it keeps it by itself


def test_a_pin_holds_on_a_node_whose_time_is_ahead_since_the_clock_was_set_back() -> None:
    clock = ManualClock(100_000.0)
    service = grown(service_in(clock=clock), 5)
    clock.set_now(90_000.0)
    one, other = (service_in(service.log.store, clock=clock) for _ in range(2))
    assert other.pins.forget_expired() == 0  # while the step is in doubt
    clock.advance(31.0)
    one.pins.pin("backup", 3, one.history, ttl_seconds=60)
    assert [pin.owner for pin in other.pins.active()] == ["backup"]
    assert other.pins.forget_expired() == 0
    assert other.pins.renew("backup", ttl_seconds=60).version == 3
    third = service_in(service.log.store, clock=clock)
    assert [pin.owner for pin in third.pins.active()] == ["backup"]


def test_a_pin_that_had_run_out_where_history_was_cut_is_not_renewed() -> None:
    clock, behind = ManualClock(1000.0), ManualClock(1000.0)
    service = grown(service_in(clock=clock), 6)
    service.pins.pin("backup", 3, service.history, ttl_seconds=60)
    other = Pins(service.log, HybridClock(behind))
    clock.advance(61)
    assert isinstance(cut(service, 5), Done)
    with pytest.raises(PinExpired):
        other.renew("backup", ttl_seconds=60)
    assert other.all() == []


def test_a_pin_of_a_version_that_was_cut_meanwhile_is_not_granted() -> None:
    service = grown(service_in(), 6)
    pins = Pins(service.log, service.clock)
    old = service.history
    cut(service, 5)
    with pytest.raises(CatalogVersionNotFound) as caught:
        pins.pin("backup", 3, old, ttl_seconds=60)
    assert caught.value.earliest == 5
    assert pins.all() == []


@pytest.mark.parametrize("fault", [KVFault.FAIL, KVFault.CONFLICT], ids=str)
def test_a_pin_of_a_version_that_was_cut_and_that_cannot_be_taken_back_is_not_said_to_be_nothing(
        fault: KVFault) -> None:
    writes: list[int] = []

    def strikes(one: KVOperation) -> KVFault | None:
        if one.changes and writes:
            writes.append(one.number)
        return fault if one.changes and len(writes) > 2 else None

    service = grown(service_in(FaultyStore(MemoryStore(), strikes)), 6)
    pins = Pins(service.log, service.clock)
    old = service.history
    cut(service, 5)
    writes.append(0)
    with pytest.raises(OutcomeUnknown, match="release it"):
        pins.pin("backup", 3, old, ttl_seconds=60)
    assert [pin.version for pin in pins.all()] == [3]


@pytest.mark.parametrize(("owner", "ttl"), [
    ("", 1.0), ("x" * (MAX_OWNER + 1), 1.0), ("ok", -1.0), ("ok", float("nan")),
])
def test_a_pin_that_cannot_be_is_refused(owner: str, ttl: float) -> None:
    service = grown(service_in(), 3)
    with pytest.raises(InvalidInput):
        Pins(service.log, service.clock).pin(owner, 2, service.history, ttl_seconds=ttl)


# --- the report ---------------------------------------------------------------------------------------------------


class Waiting:
    def need(self, view: RetainedVersions) -> Unavailable:
        return Unavailable(Factor.LOW_WATERMARK, "none yet")


class Broken:
    def need(self, view: RetainedVersions) -> None:
        raise PinExpired(owner="somebody")


def test_a_report_holds_the_lowest_floor_of_each_factor_and_what_is_not_available() -> None:
    view = with_table_x({3: index(9, IndexStatus.BUILDING)})
    times = published()
    times.register(TABLE_X, 3, incarnation=1, created_at=20)
    builds, more_builds = builds_over(view), builds_over(view)
    builds.begin(9, 5)
    more_builds.begin(9, 4)
    active = ActiveTransactions(lambda: view, HybridClock(ManualClock(1.0)))
    needs = LocalNeeds(NodeId("A", 3), lambda: view, transactions=active, partitions=times,
                       sources=[builds, more_builds, Waiting(), Broken()])
    report = needs.report()
    assert report.node == NodeId("A", 3)
    assert {floor.factor: floor.time for floor in report.floors} == {
        Factor.RAFT_RECOVERY: 20, Factor.INDEX_BUILD: 40, Factor.ACTIVE_TRANSACTIONS: timestamp(1000)}
    assert report.transactions_from == timestamp(1000, 1)
    assert report.minimum() == 20
    assert [one.reason for one in report.unavailable] == [
        "none yet", "Broken failed: the pin of 'somebody' has expired or was released; pin again"]
    assert report.hosted == HostedPartitions.of({TABLE_X: [3]})


def test_the_partitions_of_a_report_are_those_its_floor_speaks_for() -> None:
    """A partition that is registered in between is in both or in neither, since both come from one call."""
    generator = random.Random(7)
    times = published()
    for number in range(50):
        times.register(7, number, incarnation=1, created_at=generator.randrange(10, 99))
        need, hosted = times.needs_and_hosted()
        assert isinstance(need, Floor)
        assert need.time == min(times.published(7, one) or 0 for one in range(number + 1))
        assert hosted == HostedPartitions.of({7: range(number + 1)})


def test_commands_and_pins_share_a_store() -> None:
    service = grown(service_in(), 3)
    Pins(service.log, service.clock).pin("backup", 2, service.history, ttl_seconds=60)
    service.execute([CreateSchema("MORE")], wait=False)
    sound(service)
    assert attrs.evolve(service.history.catalog(4), version=4) == service.history.catalog(4)
