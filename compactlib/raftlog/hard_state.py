# SPDX-License-Identifier: Apache-2.0
"""The hard state of a Raft member: its term and its vote in that term (`docs/formats/raftlog-snapshot.md`).

A member that forgets its vote may vote twice in a term, and two leaders of a term lose committed entries. So a hard
state is durable before the member answers, its term never decreases, and a damaged file is an error.
"""

from __future__ import annotations

import os

import attrs

from compactlib._arguments import is_whole
from compactlib.errors import InvalidInput
from compactlib.files.disk import Files, LocalFiles, StrPath
from compactlib.files.durable_record import DurableRecord, JsonRecord
from compactlib.raftlog.names import HARD_STATE_NAME, TEMPORARY_SUFFIX
from compactlib.raftlog.values import MAX_INDEX

MAX_NAME_BYTES = 255


@attrs.frozen
class HardState:
    """Term and vote of a member. `HardState()` is that of a new member.

    Attributes:
        term: the highest term that the member knows, 0 .. 2**64 - 1.
        voted_for: the name of the candidate that has its vote in that term, 1 to 255 bytes; `None` for no vote.

    Raises:
        InvalidInput: a value is out of its range.
    """

    term: int = attrs.field(default=0, validator=is_whole(0, MAX_INDEX))
    voted_for: str | None = None

    def __attrs_post_init__(self) -> None:
        name: object = self.voted_for
        try:
            fits = name is None or (isinstance(name, str) and 1 <= len(name.encode()) <= MAX_NAME_BYTES)
        except UnicodeEncodeError:
            fits = False
        if not fits:
            raise InvalidInput(f"voted for {name!r:.300}; give the candidate's name, 1 to {MAX_NAME_BYTES} bytes of "
                               f"UTF-8, or None")


_FORM: JsonRecord[HardState] = JsonRecord("hard state", b"CLRAFHST", 1, HardState)


def read_hard_state(folder: StrPath) -> HardState:
    """The hard state of the log in `folder`; `HardState()` if nothing was recorded. Raises as `DurableRecord.read`."""
    return hard_state_in(LocalFiles(), folder).read() or HardState()


def hard_state_in(files: Files, folder: StrPath) -> DurableRecord[HardState]:
    """The file of the hard state of the log in `folder`."""
    return DurableRecord(files, os.path.join(folder, HARD_STATE_NAME), _FORM, temporary_suffix=TEMPORARY_SUFFIX)
