# SPDX-License-Identifier: Apache-2.0
"""Records that an earlier release wrote stay readable, and are still written so: `docs/formats/catalog-log.md`."""

from __future__ import annotations

import json
import re
from pathlib import Path

from compactlib.catalog import (
    CatalogService,
    CreateIndex,
    CreateSchema,
    DropTable,
    HybridClock,
    LowWatermark,
    PublishedTimes,
    StartBuildingIndex,
)
from compactlib.catalog.log import keys
from compactlib.catalog.log.records import (
    RecordType,
    decode_catalog,
    decode_update,
    encode_catalog,
    encode_update,
    seal,
    to_json,
    unseal,
)
from compactlib.catalog.schema.commands import AlterZone, ChooseDefaultZone
from compactlib.catalog.sense.pins import Pins
from compactlib.clock import ManualClock
from compactlib.kv import MemoryStore
from tests.catalog.services import cut, service_in
from tests.harness.catalog_logs import INITIAL, create_table, log_in

GOLDEN = Path(__file__).parents[2] / "promises" / "golden" / "catalog" / "catalog-log-v1.json"
PAGE = Path(__file__).parents[3] / "docs" / "formats" / "catalog-log.md"


def filled() -> MemoryStore:
    """A store with a record of every type and an update with every kind of change."""
    store = MemoryStore()
    service = CatalogService(log_in(store, chunk_bytes=1024), HybridClock(ManualClock(1000.0)))
    service.execute(INITIAL, wait=False)
    service.execute([ChooseDefaultZone("Z"), create_table(1), create_table(2), CreateSchema("Ärger")], wait=False)
    cut(service, 2, term=7)
    service.execute([CreateIndex(schema="PUBLIC", table="T1", name="I", columns=("ID",), unique=True)], wait=False)
    index = service.catalog(3).find_index("PUBLIC", "I")
    assert index is not None
    altered = AlterZone("Z", new_name="Y", storage_profiles=("ssd", "disk"), quorum=1)
    service.execute([StartBuildingIndex(index.id), DropTable(schema="PUBLIC", name="T2"), altered], delay_seconds=2,
                    wait=False)
    Pins(service.log, service.clock).pin("nightly backup", 3, service.history, ttl_seconds=60)
    LowWatermark(store, "node 1", service.clock).advance(65_536_000_000)
    times = PublishedTimes(store, "node 1")
    times.register(3, 11, incarnation=5, created_at=1)
    times.publish(3, 11, 5, 65_536_000_001)
    return store


def stored(store: MemoryStore) -> dict[str, str]:
    return {entry.key.decode(): entry.value.hex() for entry in store.scan(b"catalog")}


def rewritten(key: bytes, record: bytes, pieces: bytes) -> bytes:
    """The record as this release writes what it reads in it."""
    kind, payload = unseal(key, record, *RecordType)
    if kind is RecordType.UPDATE:
        return encode_update(key, decode_update(key, payload))
    if kind is RecordType.CHUNKED_SNAPSHOT:
        assert encode_catalog(*decode_catalog(key, pieces)) == pieces
    return seal(key, kind, payload if kind is RecordType.CHUNK else to_json(json.loads(payload)))


def test_what_was_written_would_be_written_so_again() -> None:
    golden = {key.encode(): bytes.fromhex(value) for key, value in json.loads(GOLDEN.read_text()).items()}
    pieces = b"".join(unseal(key, record, RecordType.CHUNK)[1] for key, record in golden.items()
                      if key.startswith(keys.CHUNKS))
    assert {key: rewritten(key, record, pieces) for key, record in golden.items()} == golden
    assert {key.encode() for key in stored(filled())} == set(golden)
    seen = {unseal(key, record, *RecordType)[0] for key, record in golden.items()}
    assert seen == set(RecordType) - {RecordType.SNAPSHOT}


def test_what_was_written_is_read() -> None:
    store = MemoryStore()
    for key, value in json.loads(GOLDEN.read_text()).items():
        store.set(b"catalog", key.encode(), bytes.fromhex(value))
    service = service_in(store)
    assert [(catalog.version, catalog.activation >> 16) for catalog in service.history] == [
        (2, 1_000_500), (3, 1_000_500), (4, 1_002_000)]
    for catalog in service.history:
        catalog.audit()
    assert [schema.name for schema in service.catalog(4).schemas.values()] == ["PUBLIC", "Ärger"]
    assert service.catalog(4).find_table("PUBLIC", "T2") is None
    assert [pin.owner for pin in Pins(service.log, service.clock).all()] == ["nightly backup"]
    assert LowWatermark(store, "node 1", service.clock).value.time == 65_536_000_000
    assert PublishedTimes(store, "node 1").register(3, 11, incarnation=5, created_at=1) == 65_536_000_001
    saved = service.log.save_snapshot(service.catalog(3), term=7)
    assert type(saved).__name__ == "SnapshotSaved"


def test_the_record_on_the_format_page_is_a_real_one() -> None:
    block = re.search(r"```hex\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    record = bytes.fromhex("".join(line.split("   ")[0] for line in block[1].splitlines()))
    assert unseal(keys.LATEST, record, RecordType.LATEST) == (RecordType.LATEST, b'{"version":5}')
    assert seal(keys.LATEST, RecordType.LATEST, b'{"version":5}') == record
