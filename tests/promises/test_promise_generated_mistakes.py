# SPDX-License-Identifier: Apache-2.0
"""Each place that syncs, renames or removes is left out, and is one step late: a hazard fails, or `SUPERFLUOUS` says
why it need not.
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
EVERY_DAY = ("file_fence", "local_objects")
BOTH = ("left out", "one step later")
LATER = ("one step later",)


@attrs.frozen
class Superfluous:
    """Places that may make a mistake.

    Attributes:
        places: how they begin.
        variants: which mistakes.
        why: nothing is lost.
    """

    places: str
    variants: Sequence[str]
    why: str


SUPERFLUOUS: Sequence[Superfluous] = (
)


def _superfluous(place: Place, variant: str) -> list[Superfluous]:
    return [each for each in SUPERFLUOUS if str(place).startswith(each.places) and variant in each.variants]


@cache
def _places(store: str) -> Mapping[Place, Sequence[int]]:
    with TemporaryDirectory() as folder:
        return places_of(DRIVERS[store], Path(folder), lives=4 if store in EVERY_DAY else 10)


def _first_places(store: str) -> Mapping[Place, Sequence[int]]:
    """Those to which no store before this one comes."""
    before = [_places(name) for name in list(DRIVERS)[:list(DRIVERS).index(store)]]
    return {place: seeds for place, seeds in _places(store).items() if not any(place in each for each in before)}
