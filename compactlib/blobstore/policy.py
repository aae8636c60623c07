# SPDX-License-Identifier: Apache-2.0
"""What a policy of a blob store sees and answers, and what helps to write one.

A policy is a frozen class with a `name` and a pure `choose(view, now)`: see `BlobPolicy`. `plan_for` and `forecast` try
it on a view without a store; `Packing` packs records as a compaction does; a `SurvivorPlacement` says which of the
records that outlive a compaction share a segment.
"""

from __future__ import annotations

from compactlib.blobstore.compaction.plan.last_plans import LastPlans
from compactlib.blobstore.compaction.plan.plan import BlobPlan, forecast, plan_for, plan_for_choice
from compactlib.blobstore.compaction.plan.policy import (
    BlobChoice,
    BlobPolicy,
    BlobView,
    CopyOrder,
    Dying,
    SegmentView,
    ValidRecords,
    emptiest_first,
    fewest_that_free,
    flag,
    fraction,
    fullest_that_free,
    in_copy_order,
    is_copy_order,
    seconds,
    shut_gate,
    too_little,
    whole,
)
from compactlib.blobstore.compaction.rewrite.packing import Packing
from compactlib.blobstore.model.names import FIRST_SEGMENT, SegmentName
from compactlib.blobstore.model.placement import ByAge, ByEnd, Survivor, SurvivorPlacement, class_of, needs_history
from compactlib.blobstore.segment.reader import SEGMENT_HEADER_BYTES
from compactlib.blobstore.segment.records import record_size

__all__ = [
    "BlobChoice", "BlobPlan", "BlobPolicy", "BlobView", "ByAge", "ByEnd", "CopyOrder", "Dying", "FIRST_SEGMENT",
    "LastPlans", "Packing", "SEGMENT_HEADER_BYTES", "SegmentName", "SegmentView", "Survivor", "SurvivorPlacement",
    "ValidRecords", "class_of", "emptiest_first", "fewest_that_free", "flag", "forecast", "fraction",
    "fullest_that_free", "in_copy_order", "is_copy_order", "needs_history", "plan_for", "plan_for_choice",
    "record_size", "seconds", "shut_gate", "too_little", "whole",
]
