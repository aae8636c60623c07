# SPDX-License-Identifier: Apache-2.0
"""Until when each record of a blob has to be kept: the compaction's rules with the times left open.

From these, the statistics of any time are sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.model.values import IndexEntry
from compactlib.blobstore.validity.verdicts import BlobEnd, PurgeRules, kept_until


class Lifetime(NamedTuple):
    """Until when a record is kept by a compaction of its segment, if nothing more is written about its blob.

    Attributes:
        segment: where the record lies.
        size: its bytes.
        reference_until: the last reference time at which it is kept, milliseconds.
        now_until: the last time at which it is kept, milliseconds.
        id_bytes: length of its id.
        tied: whether it may be kept only because of a record in another segment, and may go if both are compacted.
        offset: where the record begins.
    """

    segment: SegmentName
    size: int
    reference_until: int
    now_until: int
    id_bytes: int = 0
    tied: bool = False
    offset: int = 0

    def is_kept(self, reference_ms: int, now_ms: int) -> bool:
        """Whether a compaction at these times keeps it."""
        return reference_ms <= self.reference_until and now_ms <= self.now_until


def lifetimes(history: Sequence[IndexEntry], rules: PurgeRules) -> Iterator[Lifetime]:
    """The lifetimes of all records of one blob; a record that is not kept at any time is left out.

    Args:
        history: every record of the blob in the store, ascending by sequence; of copies of one record, as there are
            between two cycles of a compaction, that of the first segment first.
        rules: what else may go.
    """
    blob = BlobEnd.of(history)
    before = -1
    for entry in history:
        if entry.sequence == before:
            continue
        before = entry.sequence
        reference_ms, now_ms, tied, _ = kept_until(entry, blob, history, rules, {entry.segment: 0})
        if now_ms >= 0:
            yield Lifetime(entry.segment, entry.size, reference_ms, now_ms, len(entry.id), tied, entry.offset)
