# SPDX-License-Identifier: Apache-2.0
"""Retained versions: immutable, sharing their lists, swapped in one step; and node topologies, assignments, bitmaps."""

from __future__ import annotations

import contextlib
import pickle
import threading

import attrs
import pytest
from hypothesis import given, strategies as st

from compactlib.catalog import NodeId, Topology, ZoneAssignments
from compactlib.catalog.errors import ActivationNotAscending, CatalogVersionNotFound, TimeBeforeHistory
from compactlib.catalog.model.partitions import (
    MAX_PARTITIONS,
    MAX_TABLES,
    HostedPartitions,
    mask_of,
    partitions_of,
)
from compactlib.catalog.schema.catalog import EMPTY, Catalog, DropObject, PutObject
from compactlib.catalog.schema.descriptors import Zone
from compactlib.catalog.schema.versions import CatalogVersions, RetainedVersions
from compactlib.errors import CorruptData, InvalidInput
from tests.catalog.cases import history


def at(version: int, activation: int) -> Catalog:
    return attrs.evolve(EMPTY, version=version, commit=activation, activation=activation)


def test_a_view_never_changes_while_others_are_built_on_it() -> None:
    first = RetainedVersions()
    second = first.with_catalog(at(1, 10))
    third = second.with_catalog(at(2, 20))
    other = second.with_catalog(at(3, 15))
    assert [len(view) for view in (first, second, third, other)] == [1, 2, 3, 3]
    assert (first.version_at(100), second.version_at(100), third.version_at(100), other.version_at(100)) == (0, 1, 2, 3)
    for view in (first, second, third, other):
        view.audit()


@pytest.mark.parametrize("wrong", [at(2, 10), at(2, 9), at(1, 30)])
def test_versions_and_times_ascend_strictly(wrong: Catalog) -> None:
    view = RetainedVersions([EMPTY, at(1, 10)])
    if wrong.version == 1:
        assert view.with_catalog(wrong).activation(1) == 30  # the same version again takes the place of the first
        return
    with pytest.raises(ActivationNotAscending):
        view.with_catalog(wrong)


def test_looking_around_in_a_view() -> None:
    view = history(latest=4, earliest=1)
    assert (view.earliest, view.latest, len(view)) == (1, 4, 4)
    assert (view.below(3), view.below(1), view.has(2), view.has(9)) == (2, None, True, False)
    assert [catalog.version for catalog in view.between(15, 30)] == [1, 2, 3]
    assert [catalog.version for catalog in view.between(15, 16)] == [1]
    assert [catalog.version for catalog in view.between(1000, 5)] == [4]
    with pytest.raises(TimeBeforeHistory):
        view.between(5, 30)
    with pytest.raises(CatalogVersionNotFound):
        view.from_version(7)
    assert pickle.loads(pickle.dumps(view)).activation(3) == 30
    assert repr(view) == "RetainedVersions(1 to 4)"


@pytest.mark.parametrize(("before", "expected"), [(5, 3), (15, 3), (25, 2), (35, 2), (45, 1), (55, 1), (65, 0)])
def test_a_time_span_holds_every_version_in_force_in_it(before: int, expected: int) -> None:
    """Three zones, each created in an odd version and dropped in the next: those that were there at some time since."""
    view = history({step: [PutObject(Zone(id=step, name=f"z{step}")) if step % 2 else DropObject("zone", step - 1)]
                    for step in range(1, 7)}, latest=6)
    found = {zone for catalog in view.between(before, 1000) for zone in catalog.zones}
    assert len(found) == expected


def test_a_history_begins_anew_at_a_snapshot() -> None:
    held = CatalogVersions(history(latest=5))
    kept = held.retained
    held.restart_from(kept.catalog(3))
    assert (held.retained.earliest, held.retained.latest, kept.earliest) == (3, 5, 0)
    held.restart_from(kept.catalog(2))
    assert held.retained.earliest == 3
    held.restart_from(at(9, 90))
    assert (held.retained.earliest, held.retained.latest) == (9, 9)
    held.register(at(10, 100))
    held.audit()
    assert "9 to 10" in repr(held)


def test_readers_see_whole_views_while_the_history_grows_and_is_cut() -> None:
    held = CatalogVersions()
    wrong: list[str] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            view = held.retained
            found = [catalog.version for catalog in view]
            if found != list(range(view.earliest, view.latest + 1)):
                wrong.append(str(found))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for version in range(1, 400):
        held.register(at(version, version * 10))
        if version % 50 == 0:
            held.restart_from(held.retained.catalog(version - 5))
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong


# --- topologies, assignments, bitmaps -----------------------------------------------------------------------------


def test_a_topology_has_each_name_once() -> None:
    with pytest.raises(InvalidInput, match="'A' is in the topology in two incarnations"):
        Topology(frozenset({NodeId("A", 1), NodeId("A", 2)}))
    assert Topology.of("A", "B", epoch=3).incarnations() == {"A": 1, "B": 1}
    assert str(NodeId("A", 4)) == "A#4"


def test_assignments_both_ways() -> None:
    zone = ZoneAssignments.of([["A", "B"], ["B"], None, []])
    assert (zone.partitions, dict(zone.masks), zone.assigned()) == (4, {"A": 0b01, "B": 0b11}, 0b11)
    assert zone.replicas() == [["A", "B"], ["B"], [], []]
    assert ZoneAssignments.everywhere("AB", 3).replicas() == [["A", "B"]] * 3


@given(st.dictionaries(st.integers(0, 60) | st.integers(0, (1 << 63) - 1),
                       st.frozensets(st.integers(0, 40) | st.integers(0, MAX_PARTITIONS - 1), max_size=4), max_size=20))
def test_bitmaps_come_back_from_the_wire(model: dict[int, frozenset[int]]) -> None:
    hosted = HostedPartitions.of(model)
    again = HostedPartitions.from_bytes(hosted.to_bytes())
    assert again == hosted == pickle.loads(pickle.dumps(hosted))
    assert hash(again) == hash(hosted)
    assert {table: set(partitions_of(mask)) for table, mask in again} == {
        table: set(partitions) for table, partitions in model.items() if partitions}
    for table, partitions in model.items():
        assert all(hosted.has(table, partition) for partition in partitions)
    assert not hosted.has(61, 40) or 61 in model


def test_a_thousand_tables_of_one_zone_take_a_few_bytes() -> None:
    hosted = HostedPartitions.of({table: range(25) for table in range(1000, 2000)})
    assert len(hosted.to_bytes()) < 20
    scattered = HostedPartitions.of({3 * table: [table % 25] for table in range(1000)})
    assert len(scattered.to_bytes()) < 4000
    assert (len(hosted), repr(hosted)) == (1000, "HostedPartitions(25000 partitions of 1000 tables)")


@given(st.binary(max_size=40))
def test_bytes_that_are_no_bitmaps_are_named(data: bytes) -> None:
    try:
        found = HostedPartitions.from_bytes(data, path="message 7")
    except CorruptData as error:
        assert error.path == "message 7"
    else:
        assert found.to_bytes() == data


@given(st.integers(0, 60), st.integers(1, 255))
def test_bitmaps_with_a_byte_changed_are_named_or_other_bitmaps(place: int, change: int) -> None:
    data = bytearray(HostedPartitions.of({7: range(25), 9: [1, 30], 4000: [2]}).to_bytes())
    data[place % len(data)] ^= change
    with contextlib.suppress(CorruptData):
        assert HostedPartitions.from_bytes(data).to_bytes() == bytes(data)


@pytest.mark.parametrize("wrong", [{-1: 1}, {1 << 63: 1}, {1: -1}, {1: 1 << MAX_PARTITIONS}])
def test_bitmaps_out_of_range_are_refused(wrong: dict[int, int]) -> None:
    with pytest.raises(InvalidInput):
        HostedPartitions.from_masks(wrong)


def test_partitions_out_of_range_are_refused() -> None:
    for partition in (-1, MAX_PARTITIONS):
        with pytest.raises(InvalidInput):
            mask_of([partition])
    with pytest.raises(InvalidInput, match="the limit"):
        HostedPartitions.from_masks(dict.fromkeys(range(MAX_TABLES + 1), 1))


def test_bitmaps_are_frozen() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        HostedPartitions()._tables = []  # type: ignore[assignment]  # noqa: SLF001
    assert HostedPartitions() != 7
