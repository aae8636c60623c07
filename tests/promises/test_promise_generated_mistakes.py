# SPDX-License-Identifier: Apache-2.0
"""Each place that syncs, renames or removes is left out, and is one step late: then a hazard fails.

`SUPERFLUOUS` says where nothing is lost, and `UNSEEN` where the hazards are too weak.
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
"""A place is tried in the first store that comes to it. Scheduler hosts and repositories come to no others."""
LIBRARY = Path(compactlib.__file__).parent
EVERY_DAY = ("file_fence", "local_objects")
ACTS = {"file_fence": 6, "local_objects": 4}
"""How long a life is; 8 elsewhere, so that most compact something."""
BOTH = ("left out", "one step later")
LATER = ("one step later",)
LEFT_OUT = ("left out",)


@attrs.frozen
class Row:
    """Places that may make a mistake without a hazard that fails.

    Attributes:
        places: how they begin.
        variants: which mistakes.
        why: nothing is lost; or what would be, and why no hazard comes to it.
    """

    places: str
    variants: Sequence[str]
    why: str


SUPERFLUOUS: Sequence[Row] = (
    Row("unlink in files.disk._removed_on_failure", BOTH,
        "a leftover: the next write of that name, or the next opening, removes it"),
    Row("sync folder in files.disk.sync_names", LATER,
        "whatever rests on what was found takes another request before it is acknowledged"),
    Row("sync folder in objects.local._make_store", LATER,
        "still before the first object is in place"),
    Row("sync folder in objects.local._make_lasting", LATER,
        "still before the folder that the object lies in is synced"),
    Row("unlink in objects.local.create", BOTH,
        "a private file, which a sweep removes"),
    Row("sync folder in files.disk.write_durably < raftlog.segment.writer.create", LATER,
        "still before an entry in it is synced"),
    Row("sync folder in raftlog.compaction.commit.place_leader", LATER,
        "still before the first member becomes a link"),
)
"""Nothing is lost."""

UNSEEN: Sequence[Row] = (
    Row("sync folder in scheduler.fences.fence_file._make_durable", BOTH,
        "a record of a process that was killed while this one had the fence open; no hazard has two at once"),
)
"""Something would be lost, and no hazard comes to it yet."""


@cache
def _places(store: str) -> Mapping[Place, Sequence[int]]:
    with TemporaryDirectory() as folder:
        return places_of(DRIVERS[store], Path(folder), lives=4 if store in EVERY_DAY else 10, acts=ACTS.get(store, 8))


def _first_places(store: str) -> Mapping[Place, Sequence[int]]:
    """Those to which no store before this one comes."""
    before = [_places(name) for name in list(DRIVERS)[:list(DRIVERS).index(store)]]
    return {place: seeds for place, seeds in _places(store).items() if not any(place in each for each in before)}


def _rows_of(place: Place, variant: str) -> Sequence[Row]:
    return [row for row in (*SUPERFLUOUS, *UNSEEN) if str(place).startswith(row.places) and variant in row.variants]


@pytest.mark.parametrize("store", EVERY_DAY)
def test_mistake_makes_a_hazard_fail(store: str, tmp_path: Path) -> None:
    unseen = [f"{place}, {variant}" for place, seeds in _first_places(store).items() for variant in VARIANTS
              if not _rows_of(place, variant)
              and not hazard_that_finds(variant, place, DRIVERS[store], tmp_path, seeds=seeds[:3],
                                        acts=ACTS.get(store, 8))]
    assert not unseen, f"a mistake that no hazard finds; sharpen the driver, or say why nothing is lost: {unseen}"


@pytest.mark.soak
@pytest.mark.parametrize("store", DRIVERS)
def test_mistake_makes_a_hazard_fail_or_has_a_row(store: str, tmp_path: Path) -> None:
    wrong = []
    for place, seeds in _first_places(store).items():
        for variant in VARIANTS:
            found = hazard_that_finds(variant, place, DRIVERS[store], tmp_path, seeds=seeds[:3],
                                        acts=ACTS.get(store, 8))
            rows = _rows_of(place, variant)
            if bool(found) == bool(rows):
                wrong.append(f"{place}, {variant}: {f'{found} finds it, and it has a row' if found else 'unseen'}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.soak
def test_row_names_a_place_that_is_reached() -> None:
    reached = [str(place) for store in DRIVERS for place in _places(store)]
    stale = [row.places for row in (*SUPERFLUOUS, *UNSEEN) if not any(each.startswith(row.places) for each in reached)]
    assert not stale, f"no store comes to these places: {stale}"


@pytest.mark.parametrize("row", [*SUPERFLUOUS, *UNSEEN], ids=lambda row: row.places)
def test_row_names_functions_of_the_library(row: Row) -> None:
    _, _, functions = row.places.partition(" in ")
    for name in functions.split(" < "):
        module, _, function = name.rpartition(".")
        tree = ast.parse((LIBRARY / f"{module.replace('.', '/')}.py").read_text("utf-8"))
        assert any(isinstance(node, ast.FunctionDef) and node.name == function for node in ast.walk(tree)), name
