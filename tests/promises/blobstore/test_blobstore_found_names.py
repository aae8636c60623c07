# SPDX-License-Identifier: Apache-2.0
"""A process is killed before it has synced a name; its successor relies on the name, and the power fails."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from compactlib.blobstore import Blob, BlobStore, BlobStoreConfig
from compactlib.clock import ManualClock
from compactlib.testing import FilesInFront, RecordingFiles, Request, explore_kills

CONFIG = BlobStoreConfig(capacity_bytes=1 << 16, segment_bytes=1 << 12, durability="each", journal_max_entries=0,
                         deleted_retention_seconds=0.0, hard_delete=True, hard_delete_bytes_per_second=None)


def test_blob_in_a_folder_whose_name_a_killed_process_left_is_kept() -> None:
    def life(folder: Path, files: RecordingFiles) -> None:
        with BlobStore(folder / "store", CONFIG, files=files, new_incarnation=lambda: b"the incarnation.") as store:
            store.put(b"key", b"content", replace=True)
            files.acknowledge("put")

    def check(folder: Path, acknowledged: Sequence[Any]) -> None:
        if acknowledged:
            with BlobStore(folder / "store", CONFIG, create=False) as store:
                assert isinstance(store.get(b"key"), Blob)

    assert explore_kills(life, life, check, limit_per_point=4) > 30


def test_record_that_a_found_note_erases_is_no_damage(tmp_path: Path) -> None:
    """The successor begins to overwrite the record; without the note, the half-written record would be damage."""
    prepared, clock = tmp_path / "prepared", ManualClock(1_000_000.0)
    with BlobStore(prepared, CONFIG, clock=clock) as store:
        store.put(b"key", b"content" * 300)
        store.delete(b"key")
        store.close_active_segment()
    clock.advance(1.0)

    def erase(folder: Path, files: Any) -> None:
        with BlobStore(folder, CONFIG, files=files, clock=clock) as store:
            store.reclaim()

    def successor(folder: Path, files: RecordingFiles) -> None:
        BlobStore(folder, CONFIG, files=files, clock=clock).close()

    def check(folder: Path, acknowledged: Sequence[Any]) -> None:
        with BlobStore(folder, CONFIG, clock=clock) as store:
            assert not store.recovery.damage
            assert store.verify().is_sound

    changes = list[tuple[str, str]]()

    def note(request: Request, act: Callable[[], Any]) -> Any:
        if request.changes:
            changes.append((request.kind, request.path))
        return act()

    erase(shutil.copytree(prepared, tmp_path / "whole"), FilesInFront(note))
    named = next(number for number, (kind, path) in enumerate(changes, 1)
                 if kind == "rename" and "HARD_DELETE" in path)
    states = explore_kills(erase, successor, check, points=[named + 1], prepare=lambda folder: shutil.copytree(
        prepared, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("LOCK")))
    assert states > 3
