# SPDX-License-Identifier: Apache-2.0
"""Which records are kept, judged all at once: the same as one by one, also for copies and for ids of one hash."""

from __future__ import annotations

import random

import pytest

from compactlib.blobstore import RecordKind
from compactlib.blobstore.index import index_segment
from compactlib.blobstore.index.entry_columns import hash_id
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.model.values import NO_EXPIRY, IndexEntry, RecordFlag
from tests.blobstore.blob_logs import LogOf, kept_offsets

kept_records = pytest.importorskip("compactlib.blobstore.compaction.sense.kept_records").kept_records

LATEST_MS = 6


def drawn(rng: random.Random) -> list[list[IndexEntry]]:
    """Records of few blobs, most of them of one or two records, in segments; some are in a second segment as well."""
    kinds = [RecordKind.PUT] * 3 + [RecordKind.DELETE] * 3 + [RecordKind.TTL_UPDATE, RecordKind.UNDELETE]
    segments: list[list[IndexEntry]] = [[] for _ in range(3)]
    for sequence in range(rng.randrange(16)):
        name = rng.randrange(3)
        entry = IndexEntry(b"b%d" % rng.randrange(8), rng.choice(kinds), rng.choice([0, 0, RecordFlag.TTL_UPDATED]), 0,
                           sequence, rng.randrange(LATEST_MS), rng.choice([NO_EXPIRY, *range(LATEST_MS)]), 0, 0,
                           SegmentName(name, 0), 80 + 100 * sequence, 70)
        segments[name].append(entry)
        if rng.random() < 0.1:
            segments[name - 1].append(entry._replace(segment=SegmentName((name - 1) % 3, 0)))
    return segments


@pytest.mark.parametrize("hashes", [1, 5, 1 << 64])
def test_they_are_those_of_the_lifetimes(monkeypatch: pytest.MonkeyPatch, hashes: int) -> None:
    monkeypatch.setattr(index_segment, "hash_id", lambda blob_id, key: hash_id(blob_id, key) % hashes)
    rng = random.Random(hashes)
    for _ in range(500):
        log = LogOf(drawn(rng))
        reference, now = rng.randrange(LATEST_MS + 1) / 1000, rng.randrange(LATEST_MS + 1) / 1000
        wanted = kept_offsets(log, reference, now)
        assert {name: list(values) for name, values in kept_records(log, reference, now).items()} == {
            info.name: [entry.offset in wanted[info.name] for entry in log.entries_of(info.name)]
            for info in log.segments if info.records}


def test_an_empty_log_has_none() -> None:
    assert kept_records(LogOf([[]]), 0.0, 0.0) == {}
