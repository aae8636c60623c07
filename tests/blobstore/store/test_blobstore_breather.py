# SPDX-License-Identifier: Apache-2.0
"""Computing in Python leaves the interpreter to others now and then, and does nothing else by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactlib.blobstore.model.breather import NAP_SECONDS, WORK_SECONDS, Breather
from compactlib.blobstore.store.store import BlobStore
from compactlib.clock import ManualClock
from tests.blobstore.compaction_stores import compact_all, config, garbage_store


class BusyClock(ManualClock):
    """Each look at it takes a piece of work's time; it counts the naps."""

    def __init__(self, now: float, step: float) -> None:
        super().__init__(now)
        self.step = step
        self.naps = 0

    def monotonic(self) -> float:
        self.advance(self.step)
        return super().monotonic()

    def sleep(self, seconds: float) -> None:
        self.naps += seconds == NAP_SECONDS
        super().sleep(seconds)


def test_a_nap_comes_after_each_stretch_of_work() -> None:
    clock = BusyClock(0.0, WORK_SECONDS * 0.3)
    breather = Breather(clock)
    for _ in range(40):
        breather.breathe()
    assert clock.naps == 10


def test_a_clock_that_is_moved_by_hand_sees_no_naps() -> None:
    clock = ManualClock(5.0)
    breather = Breather(clock)
    for _ in range(1000):
        breather.breathe()
    assert clock.now() == 5.0


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
