# SPDX-License-Identifier: Apache-2.0
"""The contract of a policy of the blob store, and helpers to write one.

A policy is a frozen class with a `name` and a pure `choose(view, now)`: see `BlobPolicy`. `plan_for` and `forecast` run
it on a view without a store.
"""

from __future__ import annotations

from compactlib.blobstore.names import FIRST_SEGMENT, SegmentName
from compactlib.blobstore.plan import BlobPlan, forecast, plan_for, plan_for_choice
from compactlib.blobstore.records import record_size
from compactlib.blobstore.segment import SEGMENT_HEADER_BYTES
from compactlib.blobstore.survivors import Place, Survivor
from compactlib.blobstore.view import (
    BlobChoice,
    BlobPolicy,
    BlobView,
    Dying,
    SegmentView,
    emptiest_first,
    fewest_that_free,
    fraction,
    seconds,
    shut_gate,
    too_little,
    whole,
)

__all__ = [
    "BlobChoice", "BlobPlan", "BlobPolicy", "BlobView", "Dying", "FIRST_SEGMENT", "Place",
    "SEGMENT_HEADER_BYTES", "SegmentName", "SegmentView", "Survivor", "emptiest_first", "fewest_that_free",
    "forecast", "fraction", "plan_for", "plan_for_choice",
    "record_size", "seconds", "shut_gate", "too_little", "whole",
]
