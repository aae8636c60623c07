# SPDX-License-Identifier: Apache-2.0
"""A compaction of a blob store removes its sources only when what takes their place has been read and checked."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from pathlib import Path

import pytest

from compactlib.blobstore import Blob, BlobStore, BlobStoreConfig, CompactAll, compact_many
from compactlib.blobstore.policy import BlobChoice, BlobView
from compactlib.errors import CompactionFailed, CorruptData
from tests.harness.failing_files import FailingFiles
from tests.promises.damage import (
    Damage,
    DamagingExecutor,
    cut_the_tail,
    damage_file,
    every_damage,
    flip_a_bit,
    zero_the_head,
)

CONFIG = BlobStoreConfig(
    capacity_bytes=1 << 19, segment_bytes=1 << 13, deleted_retention_seconds=0.0, journal_max_entries=0,
    max_blob_bytes=0, compaction_bytes_per_second=None)
ALL = CompactAll(min_used_fraction=0.0, skip_valid=True)


def half_dead(folder: Path, count: int = 80) -> tuple[BlobStore, dict[str, bytes]]:
    """Return a store of many segments with half of its blobs deleted; and the live ones."""
    store = BlobStore(folder, CONFIG, policy=ALL)
    live: dict[str, bytes] = {}
    for number in range(count):
        content = bytes([number]) * 700
        store.put(f"b{number}", content)
        if number % 2:
            store.delete(f"b{number}")
        else:
            live[f"b{number}"] = content
    return store, live


def assert_all_live(store: BlobStore, live: dict[str, bytes]) -> None:
    for name, content in live.items():
        found = store.get(name)
        assert isinstance(found, Blob)
        assert found.content == content


@every_damage
def test_blob_compaction_fails_by_name_when_outputs_are_damaged(tmp_path: Path, damage: Damage) -> None:
    store, live = half_dead(tmp_path / "store")
    with store:
        with pytest.raises(CorruptData) as failed:
            store.compact(executor=DamagingExecutor(damage))
        assert ".log" in failed.value.path
        assert_all_live(store, live)
        assert store.compact().freed_segments > 0
        assert_all_live(store, live)
        assert store.verify().is_sound
    with BlobStore(tmp_path / "store", CONFIG) as store:
        assert_all_live(store, live)
        assert store.verify().is_sound


@every_damage
def test_blobs_stay_when_the_store_is_closed_after_a_damaged_output(tmp_path: Path, damage: Damage) -> None:
    store, live = half_dead(tmp_path / "store")
    with store, pytest.raises(CorruptData):
        store.compact(executor=DamagingExecutor(damage))
    with BlobStore(tmp_path / "store", CONFIG, policy=ALL) as store:
        assert not store.recovery.damage
        assert_all_live(store, live)
        assert store.compact().freed_segments > 0
        assert_all_live(store, live)
        assert store.verify().is_sound


def test_blob_compaction_keeps_earlier_steps_before_a_damaged_output(tmp_path: Path) -> None:
    """A step has eight outputs at most; the damaged file is one of the second step."""
    store, live = half_dead(tmp_path / "store", 250)
    with store:
        with pytest.raises(CompactionFailed) as failed:
            store.compact(executor=DamagingExecutor(flip_a_bit, frozenset({10})))
        assert failed.value.report.freed_segments > 0
        assert all(isinstance(error, CorruptData) for error in failed.value.failures.values())
        assert_all_live(store, live)
        assert store.compact().freed_segments > 0
        assert_all_live(store, live)
        assert store.verify().is_sound


def test_other_blob_stores_are_compacted_after_a_damaged_output(tmp_path: Path) -> None:
    stores = [half_dead(tmp_path / name) for name in ("one", "two", "three")]
    executor = DamagingExecutor(flip_a_bit, frozenset({1}))
    outcomes = compact_many([(store, None) for store, _ in stores], executor=executor)
    assert sorted(type(each).__name__ for each in outcomes.values()) == [
        "BlobCompactionReport", "BlobCompactionReport", "CorruptData"]
    for store, live in stores:
        assert_all_live(store, live)
        store.close()


def test_other_blob_stores_are_compacted_after_an_error_of_the_host(tmp_path: Path) -> None:
    class Mistaken:
        name = "mistaken"

        def choose(self, view: BlobView, now: float) -> BlobChoice:
            raise ZeroDivisionError("the host's mistake")

    stores = [half_dead(tmp_path / name)[0] for name in ("one", "two", "three")]
    stores[1].policy = Mistaken()
    outcomes = compact_many([(store, None) for store in stores])
    assert [type(outcomes[store.folder]).__name__ for store in stores] == [
        "BlobCompactionReport", "ZeroDivisionError", "BlobCompactionReport"]
    for store in stores:
        store.close()


@pytest.mark.parametrize("damage", [flip_a_bit, cut_the_tail, zero_the_head, None])
def test_blobs_stay_when_outputs_are_damaged_in_a_crash(tmp_path: Path, damage: Damage | None) -> None:
    """The system loses bytes of the new segments, at any step before the removal of the first source."""
    begun, live = half_dead(tmp_path / "begun", 25)
    begun.close()
    before = set(os.listdir(tmp_path / "begun"))
    sources = {name for name in before if name.endswith(".log")}
    crashes = damaged = 0
    for step in itertools.count(1):
        folder = tmp_path / f"crash-{step}"
        shutil.copytree(tmp_path / "begun", folder)
        is_over = compact_until_a_crash(folder, step)
        if is_over:
            break
        crashes += 1
        # The store of the process that died holds its own folder.
        folder = Path(shutil.move(folder, tmp_path / f"found-{step}"))
        names = set(os.listdir(folder))
        outputs = [name for name in names - before if ".log" in name and (folder / name).stat().st_size > 100]
        if sources <= names:
            for name in outputs:
                damaged += 1
                if damage is None:
                    (folder / name).unlink()
                else:
                    damage_file(folder / name, damage)
        with BlobStore(folder, CONFIG, policy=ALL) as store:
            assert_all_live(store, live)
            store.compact()
            assert_all_live(store, live)
            assert store.verify().is_sound
        shutil.rmtree(folder)
    assert crashes > 20
    assert damaged > 5


def compact_until_a_crash(folder: Path, step: int) -> bool:
    """Compact a store whose process dies before a change of the disk; whether it came to its end before that."""
    files = FailingFiles(killed_at=step)
    store = None
    try:
        store = BlobStore(folder, CONFIG, policy=ALL, files=files)
        store.compact()
        return files.count < step
    except BaseException as crash:
        assert type(crash).__name__ == "Killed"
        return False
    finally:
        if store is not None:
            with contextlib.suppress(BaseException):
                store.close()


def test_sources_that_are_left_beside_a_damaged_output_stay(tmp_path: Path) -> None:
    """The crash comes in the middle of the removal of the sources: what is left of them may be the only whole copy."""
    begun, _ = half_dead(tmp_path / "begun", 25)
    begun.close()
    before = set(os.listdir(tmp_path / "begun"))
    sources = {name for name in before if name.endswith(".log")}
    found = 0
    for step in itertools.count(1):
        folder = tmp_path / f"crash-{step}"
        shutil.copytree(tmp_path / "begun", folder)
        if compact_until_a_crash(folder, step):
            break
        folder = Path(shutil.move(folder, tmp_path / f"found-{step}"))
        names = set(os.listdir(folder))
        outputs = [name for name in names - before if name.endswith(".log")]
        if not sources <= names and outputs:
            damage_file(folder / min(outputs), flip_a_bit)
            with BlobStore(folder, CONFIG, policy=ALL) as store:
                left = sources & set(os.listdir(folder))
                # Once all sources are gone, opening does not read the outputs again.
                is_found = bool(store.recovery.damage)
                assert is_found or len(left) == 1
                with contextlib.suppress(CorruptData, CompactionFailed):
                    store.compact()
                store.reclaim()
            if is_found:
                found += 1
                with BlobStore(folder, CONFIG, policy=ALL) as store:
                    assert store.recovery.damage
                assert left <= set(os.listdir(folder))
        shutil.rmtree(folder)
    assert found
