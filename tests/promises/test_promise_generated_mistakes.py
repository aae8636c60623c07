# SPDX-License-Identifier: Apache-2.0
"""Each place that syncs, renames or removes is left out, and is one step late: then a hazard fails.

`SUPERFLUOUS` says where nothing is lost, and `SELDOM` where the hazards are too weak.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import pytest

import compactlib
from compactlib.testing import Driver
from tests.promises.drivers.blob_store import BlobStoreDriver
from tests.promises.drivers.file_fence import FileFenceDriver
from tests.promises.drivers.local_log import LocalLogDriver
from tests.promises.drivers.local_objects import LocalObjectsDriver
from tests.promises.drivers.raft_log_store import RaftLogStoreDriver
from tests.promises.drivers.segment_log import SegmentLogDriver
from tests.promises.mistakes import VARIANTS, Place, hazard_that_finds, places_of

DRIVERS: Mapping[str, Driver[Any]] = {
    "file_fence": FileFenceDriver(),
    "local_objects": LocalObjectsDriver(),
    "segment_log": SegmentLogDriver(),
    "local_log": LocalLogDriver(),
    "raft_log_store": RaftLogStoreDriver(),
    "blob_store": BlobStoreDriver(),
}
"""A place is tried in the first store that reaches it. Scheduler hosts and repositories reach no others."""
LIBRARY = Path(compactlib.__file__).parent
EVERY_DAY = ("file_fence",)
ACTS = {"file_fence": 6, "local_objects": 4}
"""How long a life is; 8 elsewhere, so that most compact something."""
BOTH = ("left out", "one step later")
LATER = ("one step later",)
LEFT_OUT = ("left out",)
PARTS = 8
"""The rows of a store are tried in so many tests, so that each takes minutes."""


@attrs.frozen
class Row:
    """Places that may make a mistake without a hazard that fails.

    Attributes:
        places: their name, or that of a helper with whichever callers.
        variants: which mistakes.
        why: the reason why nothing is lost; or the loss, and why no hazard reaches it.
    """

    places: str
    variants: Sequence[str]
    why: str


SUPERFLUOUS: Sequence[Row] = (
    Row("unlink in files.disk.removed_on_failure", BOTH,
        "a leftover: the next write of that name, the next compaction or the next opening removes it"),
    Row("sync folder in files.disk.sync_names", LATER,
        "whatever rests on what was found takes another request before it is acknowledged"),
    Row("unlink in objects.local._create", BOTH,
        "a private file, which a sweep removes"),
    Row("sync folder in files.disk.write_durably < raftlog.segment.writer.create", LATER,
        "still before an entry in it is synced"),
    Row("sync folder in raftlog.compaction.commit.place_leader", LATER,
        "still before the first member becomes a link"),
    Row("rename in files.disk.replace_with_symlink < raftlog.compaction.commit.link_members", BOTH,
        "a member's own file counts for nothing where the leader holds all of it that is alive"),
    Row("unlink in raftlog.compaction.commit.place_leader", BOTH,
        "a leftover, which the next opening removes"),
    Row("unlink in raftlog.compaction.commit.finish_groups", BOTH,
        "a second name of the leader, which the next opening removes"),
    Row("sync folder in raftlog.compaction.commit.recover_folder", BOTH,
        "what a crash brings back, the next opening recovers again"),
    Row("unlink in raftlog.compaction.commit.remove_private", BOTH,
        "a leftover: the next compaction or the next opening removes it"),
    Row("unlink in raftlog.compaction.commit.recover_folder", LATER,
        "a leftover, which the next opening removes"),
    Row("sync folder in raftlog.snapshots.make_folder", LATER,
        "still before the row or the checkpoint that names a state in it"),
    Row("sync folder in raftlog.snapshots.write", LATER,
        "still before the row or the checkpoint that names the state"),
    Row("unlink in raftlog.snapshots.write_checkpoint", BOTH,
        "a leftover, which the next opening removes"),
    Row("unlink in raftlog.snapshots.tidy", LATER,
        "a leftover, which the next opening removes"),
    Row("unlink in files.durable_record.clear_leftover < raftlog.raft_log._opened", LATER,
        "a leftover, which the next opening removes"),
    Row("unlink in raftlog.segment.segments.remove_dropped", LATER,
        "still reclaimed"),
    Row("sync folder in raftlog.store._make_folders", BOTH,
        "the same folders are synced once more before the store is open"),
    Row("remove folder in raftlog.store._remove_folder", LATER,
        "a leftover, which the next opening removes"),
    Row("sync folder in files.disk.write_durably < raftlog.wal.wal._begin_file", LATER,
        "still before an entry in it is synced"),
    Row("sync folder in files.disk.write_durably < blobstore.segment_list.make_ready", LATER,
        "the first segment's sync of the same folder comes after it"),
    Row("sync folder in files.disk.write_durably < blobstore.index.replace_parts", BOTH,
        "an index that is not there is made anew from its segment"),
    Row("sync in blobstore.segment.begin_segment", LATER,
        "still before a record in it is synced"),
    Row("sync folder in blobstore.opening.open_log", BOTH,
        "what a crash brings back, the next opening removes again"),
    Row("unlink in blobstore.log.remove_names", LATER,
        "a leftover, which the next opening removes"),
)
"""Nothing is lost."""

SELDOM: Sequence[Row] = (
    Row("sync folder in fences.file_fence._write", BOTH,
        "only a peer that is killed beside a live process shows it: test_promise_fence_killed"),
    Row("sync folder in files.disk.sync_names < objects.local.__init__", LEFT_OUT,
        "only a kill between a name and its sync shows it"),
    Row("sync folder in objects.local._settle", BOTH,
        "only a kill between a name and its sync shows it"),
    Row("sync folder in raftlog.snapshots.recover", BOTH,
        "only a kill between a name and its sync shows it"),
    Row("sync folder in files.disk.sync_names < raftlog.store._open", LEFT_OUT,
        "only a kill between a name and its sync shows it"),
    Row("sync folder in raftlog.store._open", BOTH,
        "only a kill between a name and its sync shows it"),
    Row("sync folder in files.disk.sync_names < raftlog.log.owned_log._opened", LEFT_OUT,
        "only a kill between a name and its sync shows it"),
    Row("sync folder in raftlog.log.owned_log._opened", BOTH,
        "only a kill behind the first step of a cut, and a power failure later, show it: test_raftlog_truncation"),
    Row("sync in raftlog.segment.writer._write_again", BOTH,
        "only a power failure right after an opening that found a torn tail shows it"),
    Row("sync folder in raftlog.segment.segments._truncate", LATER,
        "only a power failure right after the next request shows it"),
    Row("sync in raftlog.segment.writer.cut_segment", LATER,
        "only a power failure right after the next request shows it"),
    Row("rename in files.disk.write_durably < raftlog.segment.writer.empty_segment", LATER,
        "few lives truncate everything: test_raftlog_truncation"),
    Row("sync folder in files.disk.write_durably < raftlog.segment.writer.empty_segment", BOTH,
        "few lives truncate everything: test_raftlog_truncation"),
    Row("sync folder in raftlog.segment.segments._empty_first", BOTH,
        "only a disk that was full at the folder's first sync, and a power failure later, show it"),
    Row("sync in raftlog.segment.writer.take_back", BOTH,
        "only a power failure after a sync that was refused shows it"),
    Row("sync folder in raftlog.compaction.commit.finish_groups", BOTH,
        "only two power failures, the second one in the recovery, show it"),
    Row("sync folder in raftlog.wal.wal.remove_through", LATER,
        "only a power failure right after the next request shows it"),
    Row("sync folder in raftlog.snapshots.tidy", BOTH,
        "a removal comes undone, and a later one does not"),
    Row("sync folder in files.disk.sync_names < blobstore.opening.open_log", LEFT_OUT,
        "only a kill between a name and its sync shows it"),
    Row("sync folder in files.disk.write_durably < files.durable_record.write < blobstore.hard_delete._erase", BOTH,
        "few lives erase anything"),
    Row("sync folder in files.disk.write_durably < files.durable_record.write < blobstore.hard_delete._overwrite", BOTH,
        "few lives erase anything"),
    Row("sync in blobstore.opening.open_log", BOTH,
        "only a kill between a name and its sync shows it"),
    Row("sync in files.disk.write_durably < blobstore.index.replace_parts", BOTH,
        "an index that is not its segment's is made anew"),
    Row("sync in files.disk.write_durably < files.durable_record.write < blobstore.hard_delete._erase", BOTH,
        "few lives erase anything"),
    Row("sync in files.disk.write_durably < files.durable_record.write < blobstore.hard_delete._overwrite", BOTH,
        "few lives erase anything"),
    Row("rename in files.disk.write_durably < files.durable_record.write < blobstore.hard_delete._erase", BOTH,
        "few lives erase anything"),
    Row("rename in files.disk.write_durably < files.durable_record.write < blobstore.hard_delete._overwrite", BOTH,
        "few lives erase anything"),
    Row("rename in files.disk.write_durably < files.durable_record.write < blobstore.hard_delete.reclaim", BOTH,
        "few lives erase anything"),
    Row("sync folder in files.disk.write_durably < files.durable_record.write < blobstore.hard_delete.reclaim", BOTH,
        "few lives erase anything"),
    Row("sync in files.disk.write_durably < files.durable_record.write < blobstore.hard_delete.reclaim", BOTH,
        "few lives erase anything"),
)
"""Something is lost, and the hazards reach it seldom or never: a driver to sharpen."""


@cache
def _places(store: str) -> Mapping[Place, Sequence[int]]:
    with TemporaryDirectory() as folder:
        return places_of(DRIVERS[store], Path(folder), lives=4 if store in ACTS else 10, acts=ACTS.get(store, 8))


def _first_places(store: str) -> Mapping[Place, Sequence[int]]:
    """Those to which no store before this one comes."""
    before = [_places(name) for name in list(DRIVERS)[:list(DRIVERS).index(store)]]
    return {place: seeds for place, seeds in _places(store).items() if not any(place in each for each in before)}


def _is_at(row: Row, place: Place) -> bool:
    return f"{place} ".startswith(f"{row.places} ")


def _is_in(rows: Sequence[Row], place: Place, variant: str) -> bool:
    return any(_is_at(row, place) and variant in row.variants for row in rows)


def _find(store: str, place: Place, variant: str, folder: Path) -> str:
    """Try three lives; a third of the histories of one where nothing is lost, so that no hazard ends early."""
    seeds, divisor = _places(store)[place][:3], 1
    if _is_in(SUPERFLUOUS, place, variant):
        seeds, divisor = seeds[:1], 3
    return hazard_that_finds(variant, place, DRIVERS[store], folder, seeds=seeds, acts=ACTS.get(store, 8),
                             divisor=divisor)


@pytest.mark.parametrize("store", EVERY_DAY)
def test_mistake_makes_a_hazard_fail(store: str, tmp_path: Path) -> None:
    unseen = [f"{place}, {variant}" for place in _first_places(store) for variant in VARIANTS
              if not _is_in((*SUPERFLUOUS, *SELDOM), place, variant) and not _find(store, place, variant, tmp_path)]
    assert not unseen, f"no hazard fails; sharpen the driver, or say why nothing is lost: {unseen}"


@pytest.mark.soak
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("store", DRIVERS)
def test_mistake_makes_a_hazard_fail_or_has_a_row(store: str, part: int, tmp_path: Path) -> None:
    """A row of `SELDOM` may fail or not, and is not tried."""
    rows = [(place, variant) for place in _first_places(store) for variant in VARIANTS
            if not _is_in(SELDOM, place, variant)]
    wrong = []
    for place, variant in rows[part::PARTS]:
        found = _find(store, place, variant, tmp_path)
        if bool(found) is _is_in(SUPERFLUOUS, place, variant):
            wrong.append(f"{place}, {variant}: {found or 'no hazard'} fails")
    assert not wrong, f"a row of SUPERFLUOUS where one fails, none where none does: {wrong}"


@pytest.mark.soak
def test_row_names_a_place_that_is_reached() -> None:
    reached = [place for store in DRIVERS for place in _places(store)]
    stale = [row.places for row in (*SUPERFLUOUS, *SELDOM) if not any(_is_at(row, place) for place in reached)]
    assert not stale, f"no store reaches these places: {stale}"


def test_row_names_functions_of_the_library() -> None:
    for row in (*SUPERFLUOUS, *SELDOM):
        _, _, functions = row.places.partition(" in ")
        for name in functions.split(" < "):
            module, _, function = name.rpartition(".")
            tree = ast.parse((LIBRARY / f"{module.replace('.', '/')}.py").read_text("utf-8"))
            assert any(isinstance(node, ast.FunctionDef) and node.name == function for node in ast.walk(tree)), row
