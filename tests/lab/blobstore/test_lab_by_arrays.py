# SPDX-License-Identifier: Apache-2.0
"""Steps by NumPy and by plain loops are the same steps: the same log after each piece, the same report."""

from __future__ import annotations

import sys
from array import array
from random import Random
from typing import Any

import pytest

from compactlib.blobstore import CostBenefit
from compactlib.lab import BlobSettings, Operations
from compactlib.lab.blobstore.placement.sfs import SFS
from compactlib.lab.blobstore.replay import BlobReplay
from compactlib.lab.traces.operations import DELETE

pytest.importorskip("numpy")


def pieces(seed: int, sizes: tuple[int, ...]) -> list[Operations]:
    """Many keys are put twice in a piece, several operations share a time, some pieces delete."""
    random, now, made = Random(seed), 0, []
    for number in range(30):
        count = random.choice([1, 40, 700, 2_000])
        times = array("q")
        for _ in range(count):
            now += random.choice([0, 0, 1, 3_600_000])
            times.append(now)
        deletes = number % 7 == 5
        made.append(Operations(
            kinds=bytes(random.choice([DELETE, 0]) for _ in range(count)) if deletes else bytes(count),
            keys=array("i", [min(int(random.paretovariate(0.3)), 900) for _ in range(count)]),
            sizes=random.choice(sizes), times_ms=times))
    return made


@pytest.mark.parametrize("changed", [{}, {"swap_segments": 3}, {"check_every_operations": 77}, {"min_free_segments": 9},
                                     {"copies_renew": True}, {"placement": SFS()},
                                     {"placement": SFS(classes=3), "check_every_operations": 77}], ids=str)
@pytest.mark.parametrize("sizes", [(3,), (3, 7)], ids=str)
def test_steps_by_arrays_are_the_loops_steps(monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any],
                                             sizes: tuple[int, ...]) -> None:
    settings = BlobSettings.of_slots(80, 200, **changed)
    policy = CostBenefit(min_used_fraction=0, min_reclaimed_segments=2)
    by_arrays = BlobReplay(policy, settings)
    monkeypatch.delattr("compactlib.lab.blobstore.by_arrays")
    monkeypatch.setitem(sys.modules, "compactlib.lab.blobstore.by_arrays", None)
    by_loops = BlobReplay(policy, settings)
    for each in pieces(1, sizes):
        by_arrays.feed(each)
        by_loops.feed(each)
        by_arrays.log.audit()
        assert by_arrays.log.view(each.times_ms[-1] + 1) == by_loops.log.view(each.times_ms[-1] + 1)
    report = by_arrays.report("")
    assert report == by_loops.report("")
    assert report.total.compactions > 10
    assert report.total.copied_bytes > 0
