# SPDX-License-Identifier: Apache-2.0
"""The hard state of a Raft member: its term, and whom it has voted for in it (`docs/formats/raftlog-snapshot.md`).

It lies beside the log because Raft needs both after a crash: a member that has forgotten its vote may vote twice in one
term, and two leaders of a term lose what one of them had committed. So it is durable before it is answered, it only
moves forward, and a damaged one is refused and never taken for none.
"""

from __future__ import annotations

import os
import threading

import attrs

from compactlib.errors import Conflict, InvalidInput, Stale
from compactlib.files.disk import Files, LocalFiles, StrPath
from compactlib.files.durable_record import DurableRecord, JsonRecord
from compactlib.raftlog.model.names import HARD_STATE_NAME, TEMPORARY_SUFFIX
from compactlib.raftlog.model.values import MAX_INDEX

MAX_NAME_BYTES = 255



@attrs.frozen
class HardState:
    """What a member must not forget. `HardState()` is that of one that has seen no term yet.

    Attributes:
        term: the highest that it knows, 0 .. 2**64 - 1.
        voted_for: the name of the candidate that has its vote in that term, 1 to 255 bytes; `None` if it has not voted.

    Raises:
        InvalidInput: one of them is out of its range.
    """

    term: int = 0
    voted_for: str | None = None

    def __attrs_post_init__(self) -> None:
        term: object = self.term
        name: object = self.voted_for
        if not isinstance(term, int) or not 0 <= term <= MAX_INDEX:
            raise InvalidInput(f"the term is {term!r:.100}; it is a whole number from 0 to {MAX_INDEX}")
        try:
            fits = name is None or (isinstance(name, str) and 1 <= len(name.encode()) <= MAX_NAME_BYTES)
        except UnicodeEncodeError:
            fits = False
        if not fits:
            raise InvalidInput(f"voted for {name!r:.300}; give the candidate's name, 1 to {MAX_NAME_BYTES} bytes of "
                               f"UTF-8, or None")


_FORM: JsonRecord[HardState] = JsonRecord("hard state", b"CLRAFHST", 2, HardState)


def read_hard_state(folder: StrPath) -> HardState:
    """Return the hard state of the log in `folder`; that of a new member if none was ever recorded.

    Raises:
        CorruptData: the file is damaged.
        Unsupported: written by another release.
        StorageError: it cannot be read.
    """
    return _kept_in(LocalFiles(), folder).read() or HardState()


def _kept_in(files: Files, folder: StrPath) -> DurableRecord[HardState]:
    return DurableRecord(files, os.path.join(folder, HARD_STATE_NAME), _FORM, temporary_suffix=TEMPORARY_SUFFIX)


class KeptHardState:
    """The hard state of a log that is open. Threads may share it; it waits for no flush and no compaction.

    Args:
        files: the disk.
        folder: the log's, which nobody else writes.

    Attributes:
        lock: held while one is recorded.

    Raises:
        CorruptData, Unsupported, StorageError: as `read_hard_state`.
    """

    def __init__(self, files: Files, folder: str) -> None:
        self._kept = _kept_in(files, folder)
        self._now = self._kept.read() or HardState()
        # A compaction clears away what others have left, at any time: so this is no name that it knows.
        self._kept.clear_leftover()
        self.lock: threading.RLock = threading.RLock()

    @property
    def now(self) -> HardState:
        """What was recorded last."""
        return self._now

    def record(self, term: int, voted_for: str | None) -> HardState:
        """See `RaftLog.record_hard_state`."""
        with self.lock:
            before, wanted = self._now, HardState(term, voted_for)
            if term < before.term:
                raise Stale(f"term {term} is over: this member knows term {before.term}; answer with that")
            if term == before.term and (voted_for is None or voted_for == before.voted_for):
                return before
            if term == before.term and before.voted_for is not None:
                raise Conflict(f"this member has voted for {before.voted_for!r} in term {term}, and cannot vote for "
                               f"{voted_for!r} too; refuse the vote")
            self._kept.write(wanted)
            self._now = wanted
            return wanted
