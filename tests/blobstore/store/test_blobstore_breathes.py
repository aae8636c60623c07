# SPDX-License-Identifier: Apache-2.0
"""A store's computing in Python leaves the interpreter to others now and then, and does nothing else by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactlib.blobstore import BlobStore
from compactlib.clock import ManualClock
from compactlib.runtime.breather import WORK_SECONDS
from tests.blobstore.compaction_stores import compact_all, config, garbage_store
from tests.runtime.busy_clock import BusyClock


@pytest.mark.parametrize("step", [0.0, WORK_SECONDS])
def test_deciding_copying_and_counting_breathe_and_end_the_same(step: float, tmp_path: Path) -> None:
    garbage_store(tmp_path / "store", ManualClock(1_000_000.0)).close()
    clock = BusyClock(1_000_100.0, step)
    with BlobStore(tmp_path / "store", config(), clock=clock, name="store") as store:
        store.accept_clock()
        view = store.view()
        counted = clock.naps
        report = compact_all(store)
        assert sum(segment.valid_bytes for segment in view.segments) > 0
        assert report.freed_segments == 4
    if step:
        assert counted >= 20
        assert clock.naps - counted >= 2 * report.copied_records
    else:
        assert clock.naps == 0
