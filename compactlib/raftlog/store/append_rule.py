# SPDX-License-Identifier: Apache-2.0
"""Raft's rule for what a leader sends (section 5.3 of the paper, https://raft.github.io/raft.pdf), as a pure function.

An entry conflicts with one of the same index only if their terms differ: then it and all behind it are taken back. What
is held already, because a message came twice or late, stays as it is, and so does all behind it. What a snapshot covers
is committed, and any leader has it: it is taken as matching.

A refusal says where the leader should go on, as section 5.3 of the paper describes: at the first index of the term
that the log has in the place of the entry before, or behind the log's end, so that each term costs one message.
"""

from __future__ import annotations

from bisect import bisect_left

from compactlib.errors import InvalidInput
from compactlib.raftlog.model.values import AppendAnswer
from compactlib.raftlog.store.raft_reading import RaftReading


def judge(log: RaftReading, through: int, prev_index: int, prev_term: int, term: int, count: int
          ) -> AppendAnswer | int:
    """How many of a leader's entries are held already, the first ones, or why all are refused.

    O(log entries) looks at terms, and one for each entry that came before.

    Args:
        log: the follower's.
        through: up to where it holds everything.
        prev_index: the index before the first entry.
        prev_term: its term as the leader knows it, 0 if its log begins behind it.
        term: of the entries, the same for all.
        count: how many they are.

    Raises:
        InvalidInput: the log begins later, and has no snapshot of what lies before.
    """
    row, last = log.state, prev_index + count
    begins = log.first_index if row.index < 0 else None
    if prev_index <= row.index <= last and row.term not in (0, prev_term if prev_index == row.index else term):
        # Of a leader that was deposed, or of another group: a leader has what is committed.
        return AppendAnswer(False, -1, row.index, row.term)
    if row.index < 0 and begins is None:
        if prev_index > 0 or prev_term:
            return AppendAnswer(False, -1, 0)
    elif begins is not None and prev_index < begins:
        if prev_term or prev_index + 1 != begins or begins > 1:
            raise InvalidInput(f"the log begins at {begins}, and no snapshot says what lies before, so what follows "
                               f"{prev_index} in term {prev_term} cannot be judged; say what the machine has applied "
                               f"with attach(applied=...), or put the snapshot that the log follows in force with "
                               f"install()")
    elif prev_index > through:
        return AppendAnswer(False, -1, through + 1)
    elif prev_index > row.index and (found := log.term_of(prev_index)) not in (None, prev_term):
        lowest = max(row.index + 1, begins or 0)
        place = bisect_left(range(lowest, prev_index), found or 0, key=lambda index: log.term_of(index) or 0)
        return AppendAnswer(False, -1, lowest + place, found)
    index = max(prev_index, row.index) + 1
    stop = min(last, through)
    # One without a term is dead already by a snapshot that the log's row names in a moment.
    while index <= stop and log.term_of(index) in (None, term):
        index += 1
    return min(index - prev_index - 1, count)
