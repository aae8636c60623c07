# SPDX-License-Identifier: Apache-2.0
"""A history of a blob store calls nothing a loss that ended while a compaction ran, and everything else that is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compactlib.testing.histories.blob_histories import (
    BlobHistory,
    BlobStep,
    CompactBlobs,
    Delete,
    KeepForever,
    Put,
    Undelete,
    Wait,
)


def test_what_ends_while_a_compaction_runs_is_no_loss(tmp_path: Path) -> None:
    history = BlobHistory(tmp_path / "store")
    store: Any = history._store  # noqa: SLF001
    compact = store.compact

    def taking_long(*given: Any, **named: Any) -> Any:
        history.clock.advance(60.0)
        return compact(*given, **named)

    store.compact = taking_long
    # Some can be read, and the deletion of one could be taken back, until they expire meanwhile.
    for step in (Put(0, 200, count=6), Put(10, 200, life_seconds=30.0, count=6), Delete(0, 2), Wait(20.0), Delete(10)):
        history.step(step)
    assert sorted(history.live) == [2, 3, 4, 5, *range(11, 16)]
    history.step(CompactBlobs())
    assert history.clock.now() == 1080.0, "it has compacted"
    assert sorted(history.live) == [2, 3, 4, 5]


def _does_nothing(*given: Any, **named: Any) -> None:
    pass


@pytest.mark.parametrize(("method", "steps", "told"), [
    ("put", (Put(0, 200, count=2),), r"blobs \[0, 1\] are gone"),
    ("delete", (Put(0, 200, count=2), Delete(1)), "blob 1 can be read"),
    ("undelete", (Put(0, 200), Delete(0), Undelete(0)), r"blobs \[0\] are gone"),
    ("ttl_update", (Put(0, 200, life_seconds=172_800.0), KeepForever(0), Wait(200_000.0)), r"blobs \[0\] are gone")])
def test_a_step_that_the_store_acknowledges_and_does_not_do_is_found(
        tmp_path: Path, method: str, steps: tuple[BlobStep, ...], told: str) -> None:
    with BlobHistory(tmp_path / "sound") as history:
        for step in steps:
            history.step(step)
    with BlobHistory(tmp_path / "store") as history:
        setattr(history._store, method, _does_nothing)  # noqa: SLF001
        for step in steps[:-1]:
            history.step(step)
        with pytest.raises(AssertionError, match=told):
            history.step(steps[-1])
