# SPDX-License-Identifier: Apache-2.0
"""A log that was written once opens for ever, and the same calls write the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from compactlib.catalog import (
    CatalogService,
    CatalogTable,
    DropObject,
    HybridClock,
    Index,
    IndexStatus,
    LowWatermark,
    Members,
    NodeId,
    NodeReport,
    PublishedTimes,
    PutObject,
    RenameObject,
    Schema,
    SetIndexStatus,
    Topology,
    UpdateLog,
    Zone,
    ZoneAssignments,
)
from compactlib.catalog.errors import CatalogVersionNotFound, RecordMissing
from compactlib.clock import ManualClock
from compactlib.errors import CorruptData, Unsupported
from compactlib.kv import MemoryStore

GOLDEN = Path(__file__).parents[1] / "golden" / "catalog" / "catalog-log.json"
PARTITION = b"catalog"
DRAWN = ("format", "members", "pins", "low_watermark")
"""Cells whose ids of writes are drawn by the system; the log's own are drawn by a seed here."""


def written() -> dict[str, bytes]:
    """What some calls of every kind leave in a store."""
    store, clock = MemoryStore(), ManualClock(1000.0)
    service = CatalogService(UpdateLog(store, chunk_bytes=1024, rng=Random(1), clock=clock), HybridClock(clock))
    service.execute([PutObject(Schema("S")), PutObject(Zone("Z", 4, {"replicas": 3})),
                     PutObject(CatalogTable("T", {"columns": "a INT, b TEXT"}), schema="S", zone="Z")], wait=False)
    clock.advance(1.0)
    service.execute([PutObject(Schema(f"S{number} {'x' * 40}")) for number in range(10)], wait=False)
    clock.advance(1.0)
    index = Index("I", properties={"unique": True, "fill": 0.5, "of": None})
    service.execute([PutObject(index, schema="S", table="T")], wait=False)
    service.execute([SetIndexStatus("I", IndexStatus.AVAILABLE, schema="S"), DropObject("schema", f"S0 {'x' * 40}"),
                     RenameObject("table", "T", "U", schema="S")], wait=False)
    clock.advance(10.0)
    time = service.history.activation(2)
    table = service.catalog(1).find("table", "T", "S")
    assert table is not None
    report = NodeReport(node=NodeId("node 1"), transactions_from=time, hosted={table.id: 0b1111})
    hosts = {table.zone_id: ZoneAssignments.everywhere(["node 1"], 4)}
    view = service.view(reports=[report], low_watermark=time, topology=Topology.of("node 1"), term=7, assignments=hosts)
    assert service.compact(service.plan(view=view)).earliest == 2
    Members(store).join("node 1")
    service.pins.pin("nightly backup", 3, service.history, ttl_seconds=60)
    LowWatermark(service, "node 1", data_availability_seconds=5.0).advance()
    times = PublishedTimes(service, "node 1")
    times.register(3, 11, incarnation=5, created_at=time)
    times.publish(3, 11, 5, time + 5)
    return {entry.key.decode(): bytes(entry.value) for entry in store.scan(PARTITION)}


def kept() -> dict[str, bytes]:
    return {key: bytes.fromhex(value) for key, value in json.loads(GOLDEN.read_text()).items()}


def opened(records: dict[str, bytes]) -> CatalogService:
    store = MemoryStore()
    for key, record in records.items():
        store.set(PARTITION, key.encode(), record)
    return CatalogService(UpdateLog(store), HybridClock(ManualClock(2000.0)))


def test_same_calls_write_the_same_records() -> None:
    found, expected = written(), kept()
    assert found.keys() == expected.keys()
    for key, record in found.items():
        if not key.startswith(DRAWN):
            assert record == expected[key], key


def test_golden_log_opens() -> None:
    service = opened(kept())
    assert (service.history.earliest, service.history.latest) == (2, 4)
    latest = service.catalog(4)
    table, index = latest.find("table", "U", "S"), latest.find("index", "I", "S")
    assert table is not None
    assert table.properties == {"columns": "a INT, b TEXT"}
    assert index is not None
    assert index.status is IndexStatus.AVAILABLE
    assert index.properties == {"unique": True, "fill": 0.5, "of": None}
    assert service.catalog(3).building == {index.id: table.id}
    assert len(latest.schemas) == 10
    with pytest.raises(CatalogVersionNotFound):
        service.catalog(1)
    assert [(pin.owner, pin.version) for pin in (service.pins.state().value or {}).values()] == [("nightly backup", 3)]
    assert service.verify().is_sound
    service.audit()


@pytest.mark.parametrize("key", sorted(kept()))
def test_damage_in_any_record_is_found(key: str) -> None:
    """By opening, where a version depends on it, and always by `verify`."""
    for at in (0, 5, -1):
        records = kept()
        record = bytearray(records[key])
        record[at] ^= 1
        records[key] = bytes(record)
        try:
            service = opened(records)
        except (CorruptData, Unsupported):
            continue
        assert not service.verify().is_sound, f"byte {at} of {key}"


@pytest.mark.parametrize("version", [2, 3, 4])
def test_hole_in_the_log_is_named(version: int) -> None:
    records = kept()
    del records[f"update/{version:019d}"]
    with pytest.raises(RecordMissing) as missing:
        opened(records)
    assert missing.value.version == version


def records_of_another_catalog() -> dict[str, bytes]:
    """The records of five versions, of which the first three were cut to a snapshot."""
    store, clock = MemoryStore(), ManualClock(3000.0)
    service = CatalogService(UpdateLog(store), HybridClock(clock))
    for name in "ABCDE":
        service.execute([PutObject(Schema(name))])
    time = service.history.activation(3)
    service.compact(service.plan(view=service.view(
        reports=[NodeReport(node=NodeId("A"), transactions_from=time)], topology=Topology.of("A"), low_watermark=time)))
    assert service.history.earliest == 3
    return {entry.key.decode(): entry.value for entry in store.scan(PARTITION)}


@pytest.mark.parametrize(("version", "kind"), [(3, "damage"), (4, "order"), (5, "damage")])
def test_record_of_another_catalog_is_found(version: int, kind: str) -> None:
    """A snapshot that is not the earliest record, another version 4, and a version that the log does not have."""
    service, key = opened(kept()), f"update/{version:019d}"
    for name, record in records_of_another_catalog().items():
        if name == key or name.startswith("piece"):
            service.log.store.set(PARTITION, name.encode(), record)
    found = [finding for finding in service.verify().findings if finding.kind != "leftover"]
    assert kind in {finding.kind for finding in found if key in finding.what + finding.place}, found
    if kind == "damage":
        with pytest.raises(CorruptData):
            CatalogService(service.log, HybridClock(ManualClock(2000.0)))


@pytest.mark.parametrize("version", [2, 3, 4])
def test_record_that_is_lost_later_is_found(version: int) -> None:
    service = opened(kept())
    service.log.store.delete(PARTITION, b"update/%019d" % version)
    assert "missing" in {finding.kind for finding in service.verify().findings}
