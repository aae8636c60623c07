# SPDX-License-Identifier: Apache-2.0
"""Views of stores for the tests of policies: from lists of valid bytes, in two geometries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compactlib.blobstore import BlobPlan, BlobPolicy, BlobView
from compactlib.blobstore.compaction.plan.last_plans import LastPlans
from compactlib.blobstore.compaction.plan.plan import plan_for
from compactlib.blobstore.compaction.plan.policy import SegmentView
from compactlib.blobstore.model.names import SegmentName

DAY = 86_400.0
NOW = 1_000 * DAY
SEGMENT = 1_048_576
FILL = 734_004
"""What is left of a small segment, whose header takes a fifth of it."""
SHARES_A = (.9, .8, .5, .3, .2, .1, .1, .2, .4, .7)
SHARES_B = (.9, .8, .5, .4, .6, .6, .3, .5, .7, .8)
SHARES_C = (.9, .8, .5, .4, .6, .6, .4, .5, .7, .8)
SHARES_D = (.9, .8, .05, .01, .01, .05, .1, .2, .4, .7)


def a_view(valid: Sequence[int], *, used: Sequence[int] | None = None, last_modified: Sequence[float] | None = None,
           eligible: Sequence[bool] | None = None, active: bool = True, dying: Sequence[Any] | None = None,
           **changed: Any) -> BlobView:
    """A store whose sealed segments hold so many valid bytes, and an active one; small segments."""
    fields: dict[str, Any] = {
        "store": "disk1/7", "capacity_bytes": 10 * SEGMENT, "segment_bytes": SEGMENT, "header_bytes": 209_715,
        "max_blob_bytes": 104_857, "used_bytes": 6 * SEGMENT, "reference_time": NOW - 7 * DAY,
        "retention_seconds": 7 * DAY, "history": LastPlans(since=NOW - 1.0), **changed}
    segments = [
        SegmentView(name=SegmentName(place, 0), valid_bytes=each,
                    used_bytes=max(each, fields["segment_bytes"]) if used is None else used[place],
                    last_modified=0.0 if last_modified is None else last_modified[place],
                    eligible=True if eligible is None else eligible[place],
                    dying=() if dying is None else tuple(dying[place]))
        for place, each in enumerate(valid)
    ]
    if active:
        segments.append(SegmentView(name=SegmentName(len(valid), 0), valid_bytes=0, used_bytes=0, eligible=False))
    return BlobView(**{**fields, "segments": tuple(segments)})


def shares(parts: Sequence[float], **changed: Any) -> BlobView:
    """The notes' 3.1: each segment holds this part of its capacity in valid bytes."""
    return a_view([int(SEGMENT * part) for part in parts], **changed)


def toy(valid: Sequence[int], **changed: Any) -> BlobView:
    """The notes' 3.2: segments of 1000 bytes, of which an output takes 900."""
    return a_view(valid, **{"segment_bytes": 1000, "header_bytes": 20, "max_blob_bytes": 80, "capacity_bytes": 10_000,
                            "used_bytes": 6_000, **changed})


def places(plan: BlobPlan) -> list[int] | None:
    """Which positions a plan takes; `None` for none."""
    return [name.position for name in plan.names] or None


def planned(policy: BlobPolicy, view: BlobView, now: float = NOW) -> BlobPlan:
    """What a policy makes of a view in which it finds something."""
    plan = plan_for(view, policy, now)
    assert not plan.is_empty
    return plan
