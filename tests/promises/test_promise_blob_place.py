# SPDX-License-Identifier: Apache-2.0
"""Survivors of one class share segments, and each is copied as it is, from wherever it lay."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactlib.blobstore import Blob, BlobStore
from compactlib.blobstore.policy import Place, Survivor
from compactlib.clock import ManualClock
from compactlib.errors import InvalidInput
from tests.harness.blob_stores import RETENTION, START, config, plan_of


def by_parity(record: Survivor) -> int:
    """Blobs of odd numbers have odd lengths."""
    return record.size % 2


def newest_first(record: Survivor) -> int:
    """Records of one segment are copied in the opposite order."""
    return -record.written_ms


def content_of(store: BlobStore, name: str) -> object:
    """Return the answer of a get, without its details."""
    answer = store.get(name)
    return answer.content if isinstance(answer, Blob) else answer


@pytest.mark.parametrize("place", [by_parity, newest_first])
def test_records_of_many_classes_in_one_source_are_copied_whole(tmp_path: Path, place: Place) -> None:
    clock = ManualClock(START)
    with BlobStore(tmp_path / "store", config(), clock=clock, place=place) as store:
        blobs = {f"b{number:02}": bytes([number]) * (100 + number % 2) for number in range(60)}
        for name, content in blobs.items():
            store.put(name, content)
            clock.advance(0.01)
        for number in range(0, 60, 5):
            store.delete(f"b{number:02}")
            del blobs[f"b{number:02}"]
        clock.advance(RETENTION + 1)
        for _ in range(2):
            report = store.compact(plan_of(store))
            assert (report.damage, report.left_out) == ((), ())
            assert len(report.targets) > 2
            assert [content_of(store, name) for name in blobs] == [*blobs.values()]
        assert store.verify().is_sound


def test_a_class_that_is_no_number_is_refused(tmp_path: Path) -> None:
    clock = ManualClock(START)
    with BlobStore(tmp_path / "store", config(), clock=clock, place=lambda record: "odd") as store:  # type: ignore[arg-type,return-value]
        for number in range(30):
            store.put(f"b{number:02}", bytes(100))
        with pytest.raises(InvalidInput, match="'odd'"):
            store.compact(plan_of(store))
