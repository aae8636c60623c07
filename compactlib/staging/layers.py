# SPDX-License-Identifier: Apache-2.0
"""The staged entries of several tokens as one sorted stream: the newest entry of each key, tombstones included."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from compactlib.staging.names import StagingToken
from compactlib.staging.staged import Staged
from compactlib.staging.tokens import StagedScan, StagingTokens
from compactlib.staging.values import Change


def changes_of(tokens: StagingTokens, newest_first: Sequence[StagingToken]) -> Iterator[tuple[bytes, Change]]:
    """What some tokens together change, as `CommittedRanges.apply` takes it: one change per key, in order."""
    for key, staged in MergedTokens(tokens, newest_first):
        yield key, staged.record


class MergedTokens:
    """The newest entry of every key of some tokens, in order of the keys; can seek. For one thread.

    O(log tokens) for an entry. What a store raises goes through, and never ends the stream early: the next call goes on
    with the same entry.

    Args:
        tokens: where the entries are.
        newest_first: which tokens.
        start: begin at the first key >= `start`.
        prefix: only keys that begin so.
        page_size: how many entries to ask each token for at first.

    Attributes:
        scanned: how many entries were read so far, those that a newer one hides included.
        layer: which of the tokens the last entry is from; 0 is the newest.
    """

    def __init__(self, tokens: StagingTokens, newest_first: Sequence[StagingToken], start: bytes = b"", *,
                 prefix: bytes = b"", page_size: int | None = None) -> None:
        self.scanned: int = 0
        self.layer: int = 0
        self._scans: list[StagedScan] = [tokens.scan(token, start, prefix=prefix, page_size=page_size)
                                         for token in newest_first]
        self._heap: list[tuple[bytes, int, Staged]] = []
        self._filled = 0  # how many layers are in the heap, if they hold anything more
        self._given: bytes | None = None  # the key that was given last: its entries are passed over first

    def __iter__(self) -> Iterator[tuple[bytes, Staged]]:
        return self

    def __next__(self) -> tuple[bytes, Staged]:
        if self._filled < len(self._scans):
            self._fill()
        while self._heap and self._heap[0][0] == self._given:
            self._advance(self._heap[0][1])
        if not self._heap:
            raise StopIteration
        self._given, self.layer, staged = self._heap[0]
        return self._given, staged

    def seek(self, key: bytes) -> None:
        """Go on with the first key >= `key`."""
        for scan in self._scans:
            scan.seek(key)
        self._heap, self._filled, self._given = [], 0, None

    def _fill(self) -> None:
        while self._filled < len(self._scans):
            entry = next(self._scans[self._filled], None)
            if entry is not None:
                heapq.heappush(self._heap, (entry[0], self._filled, entry[1]))
                self.scanned += 1
            self._filled += 1

    def _advance(self, layer: int) -> None:
        """Replace the head of the heap, which is of this layer, by the layer's next entry."""
        entry = next(self._scans[layer], None)
        if entry is None:
            heapq.heappop(self._heap)
        else:
            self.scanned += 1
            heapq.heapreplace(self._heap, (entry[0], layer, entry[1]))
