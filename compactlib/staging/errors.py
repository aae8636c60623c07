# SPDX-License-Identifier: Apache-2.0
"""The errors of the staging area; leaves of the library's exception tree."""

from __future__ import annotations

from typing import ClassVar, dataclass_transform

import attrs

from compactlib.errors import Busy, CompactlibError, Conflict, NotFound


@dataclass_transform(kw_only_default=True, eq_default=False)
class _OfFields(CompactlibError):
    """An error with named fields, which format its `message`; long keys are cut."""

    message: ClassVar[str]

    def __init_subclass__(cls) -> None:
        attrs.define(cls, slots=False, eq=False, repr=False, auto_exc=False, kw_only=True)

    def __attrs_post_init__(self) -> None:
        shown = {name: value[:100] if isinstance(value, bytes) else value for name, value in vars(self).items()}
        super().__init__(self.message.format(**shown))


# ------------------------------------------------------------------------------------------- the committed layer


class RangeNotFound(_OfFields, NotFound):
    """The file of a range is missing. It was collected while in use, or was lost."""

    message = ("the file {path!r} of range {range_id} is missing; if the branch has changed, re-read its record, else "
               "restore the file from a copy")
    range_id: str
    path: str


class MetaRangeNotFound(_OfFields, NotFound):
    """There is no metarange of this id."""

    message = ("the file {path!r} of metarange {metarange_id} is missing: collected, if its commit was unreachable; if "
               "the branch has changed, re-read its record, else restore the file from a copy")
    metarange_id: str
    path: str


class MergeConflict(_OfFields, Conflict):
    """Both sides of a merge changed the same keys in different ways. Choose a strategy, or change one side.

    `keys` holds the first of them, at most 100.
    """

    message = ("keys were changed differently on both sides, the first {keys[0]!r:.100}; choose a strategy, or change "
               "one side; nothing was merged")
    keys: tuple[bytes, ...]


class BeingCollected(_OfFields, Busy):
    """A garbage collection deletes a range or metarange that was just written or reused. Retry."""

    message = "a garbage collection deletes {id}, or has just deleted it; retry in a moment"
    id: str


class RangesNotOwned(_OfFields, Conflict):
    """This repository does not own the ranges to collect; nothing was deleted. See `Repository.adopt_ranges`."""

    message = ("ranges are not collected: {why}; they belong to {owner}, and this is {own}; if no other catalogue "
               "needs them, call adopt_ranges()")
    why: str
    owner: str
    own: str


# ------------------------------------------------------------------------------------------- the branch protocol


class BranchNotFound(_OfFields, NotFound):
    """There is no such branch: it was not created, or was deleted with its uncommitted changes."""

    message = "there is no branch {branch!r}; list the branches with branches(), or create it"
    branch: str


class CommitNotFound(_OfFields, NotFound):
    """There is no commit of this id in the repository."""

    message = "there is no commit {commit_id!r} in this repository; list commits with a branch's log()"
    commit_id: str


class RecordNotFound(_OfFields, NotFound):
    """The branch or commit `ref` has no record under this key."""

    message = "{ref!r} has no record under key {key!r}"
    ref: str
    key: bytes


class PreconditionFailed(_OfFields, Conflict):
    """The condition of a conditional write does not hold; nothing was written. Re-read the key and decide again."""

    message = "key {key!r} of branch {branch!r} is not in the expected state; nothing was written; re-read it"
    branch: str
    key: bytes


class DirtyBranch(_OfFields, Conflict):
    """The branch has uncommitted changes, which a move of HEAD would hide or lose. Commit or reset them first."""

    message = "branch {branch!r} has uncommitted changes, the first at key {key!r}; commit or reset them first"
    branch: str
    key: bytes


class LostRace(_OfFields, Busy):
    """Another writer changed the branch, and the compaction yielded. Nothing is lost; the next one starts over."""

    message = "the compaction of branch {branch!r} yielded: {why}"
    branch: str
    why: str
