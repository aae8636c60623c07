# SPDX-License-Identifier: Apache-2.0
"""Until when each record of a blob has to be kept: the compaction's rules with the times left open.

From these, the statistics of any time are sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.validity import BlobEnd, PurgeRules, kept_until
from compactlib.blobstore.values import IndexEntry


class Lifetime(NamedTuple):
    """Until when a record is kept by a compaction of its segment, if nothing more is written about its blob.

    Attributes:
        segment: where the record lies.
        size: its bytes.
        reference_until: the last reference time at which it is kept, milliseconds.
        now_until: the last time at which it is kept, milliseconds.
        offset: where the record begins.
    """

    segment: SegmentName
    size: int
    reference_until: int
    now_until: int
    offset: int = 0

    def is_kept(self, reference_ms: int, now_ms: int) -> bool:
        """Whether a compaction at these times keeps it."""
        return reference_ms <= self.reference_until and now_ms <= self.now_until


def lifetimes(history: Sequence[IndexEntry], rules: PurgeRules) -> Iterator[Lifetime]:
    """Yield the lifetimes of all records of one blob; a record that is not kept at any time is left out.

    Args:
        history: every record of the blob in the store, ascending by sequence.
        rules: what else may go.
    """
    blob = BlobEnd.of(history)
    for entry in history:
        reference_ms, now_ms, _ = kept_until(entry, blob, history, rules, (entry.segment,))
        if now_ms >= 0:
            yield Lifetime(entry.segment, entry.size, reference_ms, now_ms, entry.offset)
