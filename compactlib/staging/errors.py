# SPDX-License-Identifier: Apache-2.0
"""The errors of the staging area; leaves of the library's exception tree."""

from __future__ import annotations

from typing import ClassVar, dataclass_transform

import attrs

from compactlib.errors import (
    Busy,
    CompactlibError,
    Conflict,
    CorruptData,
    InvalidInput,
    NotFound,
    Stale,
    Unsupported,
)


@dataclass_transform(kw_only_default=True, eq_default=False)
class _OfFields(CompactlibError):
    """An error that is given its fields by name, and whose message is made of them; long keys are cut in it."""

    message: ClassVar[str]

    def __init_subclass__(cls) -> None:
        attrs.define(cls, slots=False, eq=False, repr=False, auto_exc=False, kw_only=True)

    def __attrs_post_init__(self) -> None:
        shown = {name: value[:100] if isinstance(value, bytes) else value for name, value in vars(self).items()}
        super().__init__(self.message.format(**shown))


# ------------------------------------------------------------------------------------------- the committed layer


class UnsortedKeys(_OfFields, InvalidInput):
    """Keys that must ascend strictly do not: `found` does not lie above `previous`. Sort them and leave out
    repetitions; nothing was published.
    """

    message = "key {found!r} comes after {previous!r}; keys must ascend strictly, each once"
    previous: bytes
    found: bytes


class NilValue(_OfFields, InvalidInput):
    """A record to be stored is no record: a range holds no tombstones, and an identity is never `None`."""

    message = "key {key!r} comes with {found} where a record with an identity was expected"
    key: bytes
    found: str


class RangeNotFound(_OfFields, NotFound):
    """A metarange names a range whose file is gone. It was collected while it was still in use, or was lost."""

    message = ("the file {path!r} of range {range_id} is missing; if the branch moved on meanwhile, read its record "
               "again, else restore the file from a copy")
    range_id: str
    path: str


class MetaRangeNotFound(_OfFields, NotFound):
    """There is no metarange of this id."""

    message = ("the file {path!r} of metarange {metarange_id} is missing: collected, if no branch has reached its "
               "commit for long; if the branch moved on meanwhile, read its record again, else restore the file from a "
               "copy")
    metarange_id: str
    path: str


class DamagedRange(CorruptData):
    """A range or metarange file does not hold what its id promises. Restore it from a copy; nothing was returned."""


class NewerFormat(_OfFields, Unsupported):
    """A range or metarange file was written by a newer release, in a `version` above the `newest` one that this release
    reads. Upgrade.
    """

    message = "{path}: file format version {version}; this release reads {newest}: upgrade"
    path: str
    version: int
    newest: int


class MergeConflict(_OfFields, Conflict):
    """Both sides of a merge changed the same keys in different ways. Choose a strategy, or change one side.

    `keys` holds the first of them, at most 100.
    """

    message = ("keys were changed differently on both sides, the first {keys[0]!r:.100}; choose a strategy, or change "
               "one side; nothing was merged")
    keys: tuple[bytes, ...]


class BeingCollected(_OfFields, Busy):
    """A range or metarange that was written, or used again, is being deleted by a garbage collection. Try again."""

    message = "{id} is being deleted by a garbage collection, or just was; try again in a moment"
    id: str


class RangesNotOwned(_OfFields, Conflict):
    """These ranges are not this repository's to collect, as far as can be known; nothing was deleted.

    If no other catalogue needs them, `Repository.adopt_ranges` makes them this repository's. `owner` says who owns them
    and where its catalogue is, `own` the same of the repository that was to collect them.
    """

    message = ("ranges are not collected: {why}; they belong to {owner}, and this is {own}; if no other catalogue "
               "needs them, call adopt_ranges()")
    why: str
    owner: str
    own: str


# ------------------------------------------------------------------------------------------- the branch protocol


class BranchNotFound(_OfFields, NotFound):
    """There is no such branch: never made, or deleted. What was written to it meanwhile is gone with it."""

    message = "there is no branch {branch!r}; list what there is with branches(), or create it"
    branch: str


class BranchExists(_OfFields, Conflict):
    """There is a branch of this name. Choose another name, or use the branch."""

    message = "there is a branch {branch!r} already; use it, or choose another name"
    branch: str


class CommitNotFound(_OfFields, NotFound):
    """There is no commit of this id in the repository."""

    message = "there is no commit {commit_id!r} in this repository; look at a branch's log()"
    commit_id: str


class RecordNotFound(_OfFields, NotFound):
    """The branch or commit `ref` has no record under this key."""

    message = "{ref!r} has no record under key {key!r}"
    ref: str
    key: bytes


class PreconditionFailed(_OfFields, Conflict):
    """The condition of a conditional write does not hold. Nothing was written by it; read again and decide anew."""

    message = "key {key!r} of branch {branch!r} is not in the expected state; nothing was written, read again"
    branch: str
    key: bytes


class DirtyBranch(_OfFields, Conflict):
    """The branch has uncommitted changes, which moving HEAD would hide or lose. Commit or reset them first."""

    message = "branch {branch!r} has uncommitted changes, the first at key {key!r}; commit or reset them first"
    branch: str
    key: bytes


class TooManyTries(_OfFields, Busy):
    """Others changed the branch again and again while this call tried. Wait and call again.

    A write may have left its value visible (G4); nothing was acknowledged.
    """

    message = ("{operation} on branch {branch!r} met other changes {tries} times in a row; wait and call again, or "
               "allow more tries")
    operation: str
    branch: str
    tries: int


class TooManySealed(_OfFields, Busy):
    """The branch has as many sealed tokens as it may have: commits have failed again and again. Compact it, then retry.
    """

    message = "the branch has {sealed} sealed tokens, and may have no more; compact it, or reset it"
    sealed: int


class TooManyKeys(_OfFields, InvalidInput):
    """More keys were given than one call takes. Split them; nothing was written."""

    message = "{count} keys were given, one call takes at most {limit}; split them"
    count: int
    limit: int


class LostRace(_OfFields, Busy):
    """Another writer changed the branch, and the compaction yielded to it. Nothing is lost; the next run starts over.

    Attributes:
        step: `"seal"` or `"swap"`, the compare-and-set that was lost.
    """

    message = "the compaction of branch {branch!r} yielded: {why}"
    branch: str
    why: str
    step: str


class OutdatedPlan(_OfFields, Stale):
    """The branch has other layers than the plan was made for; nothing was changed."""

    message = "the plan for branch {branch!r} is outdated: {detail}; make a new one with plan()"
    branch: str
    detail: str
