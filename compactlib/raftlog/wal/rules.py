# SPDX-License-Identifier: Apache-2.0
"""Which writes the WAL takes: accept, drop, or ask for what is missing. Pure.

Every write says which index it follows. With `smallest` and `snapshot` of the log's row and `last`, the last index
written for the log:

* all of it lies below `smallest`: dropped, it is dead; the log goes on from there;
* the log is not known or empty, the write says nothing, follows an index <= `last` or <= `snapshot`, or begins at
  `smallest`: accepted, from `smallest` on; what lay above the index that it follows is taken back;
* else something is missing: the first time `Resend` names the index to send from, and everything is dropped until a
  write fits.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs

from compactlib.raftlog.model.snapshot_meta import SnapshotMeta


@attrs.frozen
class WriterState:
    """What the WAL knows of a log.

    Attributes:
        last: the last index written, -1 if none.
        in_sequence: `False` from a `Resend` until a write fits.
    """

    last: int = -1
    in_sequence: bool = True


@attrs.frozen
class Write:
    """The write is taken.

    Attributes:
        state: of the log from now on.
        first: from which index on it is written; entries below are dead.
        cut_after: everything above this index is taken back first; `None` if there is nothing.
    """

    state: WriterState
    first: int
    cut_after: int | None = None


@attrs.frozen
class Dropped:
    """Nothing is written: it is dead, or it waits for what was asked for.

    Attributes:
        state: of the log from now on.
        reason: `"dead"` or `"out of sequence"`.
    """

    state: WriterState
    reason: str


@attrs.frozen
class Resend:
    """Nothing is written: entries before it are missing.

    Attributes:
        state: of the log from now on.
        index: send again from here on.
    """

    state: WriterState
    index: int


Verdict: TypeAlias = Write | Dropped | Resend
"""The verdict on a write."""


def judge(known: WriterState | None, row: SnapshotMeta, previous: int | None, first: int, last: int) -> Verdict:
    """The verdict on a write of indexes `first` to `last` that follows `previous`.

    Args:
        known: of the log; `None` if it never wrote.
        row: the log's row, read once.
        previous: the index that the first entry follows; `None` if the writer does not say, and means it to follow
            whatever there is.
        first: the first index, above `previous`.
        last: the last index.
    """
    smallest = row.smallest_live_index
    if last < smallest:
        return Dropped(WriterState(smallest - 1), "dead")
    state = WriterState(last)
    written = -1 if known is None else known.last
    if first < smallest:
        return Write(state, smallest, smallest - 1 if smallest <= written else None)
    # An empty log begins at any index, whether it was known before or not.
    end = max(written, row.index)
    fits = known is None or end < 0 or previous is None or previous <= end or first == smallest
    if not fits:
        assert known is not None, "an unknown log fits"
        if known.in_sequence:
            return Resend(attrs.evolve(known, in_sequence=False), end + 1)
        return Dropped(known, "out of sequence")
    follows = first - 1 if previous is None or first == smallest else previous
    return Write(state, first, follows if follows < written else None)
