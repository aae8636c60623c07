# SPDX-License-Identifier: Apache-2.0
"""A value in its own file: whole after any crash, and not older than the last acknowledged write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.errors import CorruptData, StorageError, Unsupported
from compactlib.files import Files, LocalFiles
from compactlib.files.disk import sync_names
from compactlib.files.durable_record import DurableRecord, JsonRecord
from compactlib.testing import RecordingFiles, explore_crashes, explore_kills, record
from tests.harness.failing_files import FailingFiles


@attrs.frozen
class Vote:
    """A value of several sizes."""

    term: int
    name: str = ""


FORM: JsonRecord[Vote] = JsonRecord("vote", b"CLTESTVT", 1, Vote)


def kept_in(folder: Path, files: Files | None = None) -> DurableRecord[Vote]:
    return DurableRecord(LocalFiles() if files is None else files, folder / "VOTE", FORM)


def vote(term: int) -> Vote:
    return Vote(term, "x" * (term % 5) * 1000)


def writes(folder: Path, files: RecordingFiles) -> None:
    kept = kept_in(folder, files)
    for term in (1, 2, 3):
        kept.write(vote(term))
        files.acknowledge(term)


def is_no_older(folder: Path, acknowledged: Sequence[Any]) -> None:
    found = kept_in(folder).read()
    newest = max(acknowledged, default=0)
    assert (found is None and not newest) or (found == vote(found.term) and found.term >= newest), found  # type: ignore[union-attr]


def test_value_survives_a_crash_at_any_point(tmp_path: Path) -> None:
    assert explore_crashes(record(tmp_path, writes), is_no_older) > 10


def test_value_that_a_successor_found_survives_a_power_failure() -> None:
    """A successor syncs the folder when it opens, and then acknowledges the value that it found."""
    def succeeds(folder: Path, files: RecordingFiles) -> None:
        sync_names(files, folder)
        found = kept_in(folder, files).read()
        if found is not None:
            files.acknowledge(found.term)

    explore_kills(writes, succeeds, is_no_older)


def test_removed_value_stays_removed(tmp_path: Path) -> None:
    def removes(folder: Path, files: RecordingFiles) -> None:
        kept = kept_in(folder, files)
        kept.write(vote(1))
        kept.remove()
        files.acknowledge("removed")
        kept.remove()

    def check(folder: Path, acknowledged: Sequence[Any]) -> None:
        found = kept_in(folder).read()
        assert found is None or (found == vote(1) and not acknowledged)

    explore_crashes(record(tmp_path, removes), check)


def test_disk_that_refuses_leaves_the_old_value_or_the_new_one(tmp_path: Path) -> None:
    kept_in(tmp_path).write(vote(1))
    counting = FailingFiles()
    kept_in(tmp_path, counting).write(vote(1))
    for number in range(1, counting.count + 1):
        with pytest.raises(StorageError):
            kept_in(tmp_path, FailingFiles(fail_at=number)).write(vote(2))
        assert kept_in(tmp_path).read() in (vote(1), vote(2))
        kept_in(tmp_path).write(vote(1))


def test_leftover_of_a_killed_writer_is_cleared(tmp_path: Path) -> None:
    (tmp_path / "VOTE.tmp").write_bytes(b"half")
    kept = kept_in(tmp_path)
    assert kept.read() is None
    kept.clear_leftover()
    kept.clear_leftover()
    assert list(tmp_path.iterdir()) == []


def test_damage_is_found_and_another_version_is_named(tmp_path: Path) -> None:
    kept = kept_in(tmp_path)
    kept.write(vote(7))
    sound = (tmp_path / "VOTE").read_bytes()
    for place in range(0, len(sound), 7):
        (tmp_path / "VOTE").write_bytes(sound[:place] + bytes([sound[place] ^ 4]) + sound[place + 1:])
        with pytest.raises(CorruptData):
            kept.read()
    for size in (0, 5, len(sound) - 1):
        (tmp_path / "VOTE").write_bytes(sound[:size])
        with pytest.raises(CorruptData):
            kept.read()
    newer: JsonRecord[Vote] = JsonRecord("vote", b"CLTESTVT", 2, Vote)
    (tmp_path / "VOTE").write_bytes(newer.encode(vote(7)))
    with pytest.raises(Unsupported, match="version 2"):
        kept.read()
