# SPDX-License-Identifier: Apache-2.0
"""Values of the library that hosts make by hand: what is given to them of another type is `InvalidInput` at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from compactlib.blobstore.compaction.plan.policy import SegmentView
from compactlib.blobstore.model.names import SegmentName
from compactlib.errors import InvalidInput
from compactlib.hosting.raftlog_execute import TheseSegments
from compactlib.kv.store import KVLimits
from compactlib.raftlog.compaction.plan.view import LogView
from compactlib.raftlog.model.values import SegmentLimits
from compactlib.raftlog.snapshots.model import SnapshotManifest
from tests.core.misfits import STRANGE

LIMITS = dict.fromkeys(("max_partition_bytes", "max_key_bytes", "max_value_bytes", "max_transact"), 1)
MANIFEST = {**dict.fromkeys(("index", "term", "machine_version", "live_count", "live_bytes", "live_crc", "state_bytes",
                             "state_crc"), 1), "cluster": b""}
VIEW = {"segments": (), "snapshot_index": 5, "limits": SegmentLimits(), "folder": "", "damaged": ()}
SEGMENT = {"name": SegmentName(1, 0), "used_bytes": 9, "valid_bytes": 5, "last_modified": 1.0, "disk_bytes": 9}
NEEDED = {"name", "used_bytes", "valid_bytes"}
"""Fields without which there is no value, and which are not tried."""

FINE: dict[tuple[str, str], tuple[Any, ...]] = {
    ("SnapshotManifest", "cluster"): (b"bytes",), ("LogView", "folder"): ("text",),
    ("LogView", "snapshot_index"): (None, -7), ("SegmentView", "disk_bytes"): (None,),
    ("SegmentView", "last_modified"): (3.5, -7)}
"""What of the strange things is none there."""


@pytest.mark.parametrize(("make", "given"), [
    (KVLimits, LIMITS), (TheseSegments, {"numbers": (1, 2)}), (SnapshotManifest, MANIFEST), (LogView, VIEW),
    (SegmentView, SEGMENT)], ids=lambda each: getattr(each, "__name__", ""))
def test_a_field_of_another_type_is_refused(make: Callable[..., Any], given: dict[str, Any]) -> None:
    make(**given)
    for name in given.keys() - NEEDED:
        for strange in (*STRANGE, float("nan")):
            if strange in FINE.get((make.__name__, name), ()):
                make(**{**given, name: strange})
                continue
            with pytest.raises(InvalidInput):
                make(**{**given, name: strange})
