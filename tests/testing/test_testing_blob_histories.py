# SPDX-License-Identifier: Apache-2.0
"""A history of a blob store calls nothing a loss that ended while a compaction ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compactlib.testing.histories.blob_histories import BlobHistory, CompactBlobs, Delete, Put, Wait


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
