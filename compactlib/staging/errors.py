# SPDX-License-Identifier: Apache-2.0
"""The errors of the staging area; leaves of the library's exception tree."""

from __future__ import annotations

from compactlib.errors import Busy, Conflict, CorruptData, InvalidInput, NotFound, Stale, Unsupported
from compactlib.files.record_frame import other_version

# ------------------------------------------------------------------------------------------- the committed layer


class UnsortedKeys(InvalidInput):
    """Keys that must ascend strictly do not. Sort them and leave out repetitions; nothing was published.

    Attributes:
        previous: the key before.
        found: the key that does not lie above it.
    """

    def __init__(self, *, previous: bytes, found: bytes) -> None:
        super().__init__(f"key {found[:100]!r} comes after {previous[:100]!r}; keys must ascend strictly, each once")
        self.previous = previous
        self.found = found


class NilValue(InvalidInput):
    """A record to be stored is no record: a range holds no tombstones, and an identity is never `None`.

    Attributes:
        key: whose.
    """

    def __init__(self, *, key: bytes, found: str) -> None:
        super().__init__(f"key {key[:100]!r} comes with {found} where a record with an identity was expected")
        self.key = key
        self.found = found


class RangeNotFound(NotFound):
    """A metarange names a range whose file is gone. It was collected while it was still in use, or was lost.

    Attributes:
        range_id: which range.
        path: where its file should be.
    """

    def __init__(self, *, range_id: str, path: str) -> None:
        super().__init__(f"the file {path!r} of range {range_id} is missing; if the branch moved on meanwhile, read "
                         f"its record again, else restore the file from a copy")
        self.range_id = range_id
        self.path = path


class MetaRangeNotFound(NotFound):
    """There is no metarange of this id.

    Attributes:
        metarange_id: which metarange.
        path: where its file should be.
    """

    def __init__(self, *, metarange_id: str, path: str) -> None:
        super().__init__(f"the file {path!r} of metarange {metarange_id} is missing: collected, if no branch has "
                         f"reached its commit for long; if the branch moved on meanwhile, read its record again, else "
                         f"restore the file from a copy")
        self.metarange_id = metarange_id
        self.path = path


class DamagedRange(CorruptData):
    """A range or metarange file does not hold what its id promises. Restore it from a copy; nothing was returned."""


class NewerFormat(Unsupported):
    """A range or metarange file was written by a newer release. Upgrade.

    Attributes:
        path: the file.
        version: its version.
        newest: the newest version that this release reads.
    """

    def __init__(self, *, path: str, version: int, newest: int) -> None:
        super().__init__(other_version(path, "file format", version, newest))
        self.path = path
        self.version = version
        self.newest = newest


class MergeConflict(Conflict):
    """Both sides of a merge changed the same keys, each in its own way. Choose a strategy, or mend one side.

    Attributes:
        keys: the first of them, at most 100.
    """

    def __init__(self, message: str, *, keys: tuple[bytes, ...]) -> None:
        super().__init__(message)
        self.keys = keys


class BeingCollected(Busy):
    """A file that was written, or used again, is being deleted by a garbage collection at this moment. Try again.

    Attributes:
        id: of the range or metarange.
    """

    def __init__(self, *, id: str) -> None:  # noqa: A002 - the field's name everywhere
        super().__init__(f"{id} is being deleted by a garbage collection, or just was; try again in a moment")
        self.id = id


class RangesNotOwned(Conflict):
    """These ranges are not this repository's to collect, as far as can be known; nothing was deleted.

    If no other catalogue needs them, `Repository.adopt_ranges` makes them this repository's.

    Attributes:
        owner: who owns them, and where its catalogue is; empty if nobody is known to.
        own: the repository that was to collect them, and where its catalogue is.
    """

    def __init__(self, why: str, *, owner: str, own: str) -> None:
        super().__init__(f"ranges are not collected: {why}; they belong to {owner or 'nobody who is known'}, and this "
                         f"is {own}; if no other catalogue needs them, call adopt_ranges()")
        self.owner = owner
        self.own = own


# ------------------------------------------------------------------------------------------- the branch protocol


class BranchNotFound(NotFound):
    """There is no such branch: never made, or deleted. What was written to it meanwhile is gone with it.

    Attributes:
        branch: its name.
    """

    def __init__(self, *, branch: str) -> None:
        super().__init__(f"there is no branch {branch!r}; list what there is with branches(), or create it")
        self.branch = branch


class BranchExists(Conflict):
    """There is a branch of this name. Choose another name, or use the branch.

    Attributes:
        branch: its name.
    """

    def __init__(self, *, branch: str) -> None:
        super().__init__(f"there is a branch {branch!r} already; use it, or choose another name")
        self.branch = branch


class CommitNotFound(NotFound):
    """There is no commit of this id in the repository.

    Attributes:
        commit_id: what was looked for.
    """

    def __init__(self, *, commit_id: str) -> None:
        super().__init__(f"there is no commit {commit_id!r} in this repository; look at a branch's log()")
        self.commit_id = commit_id


class RecordNotFound(NotFound):
    """The branch or commit has no record under this key.

    Attributes:
        ref: the branch or commit that was read.
        key: what was looked for.
    """

    def __init__(self, *, ref: str, key: bytes) -> None:
        super().__init__(f"{ref!r} has no record under key {key[:100]!r}")
        self.ref = ref
        self.key = key


class PreconditionFailed(Conflict):
    """The condition of a conditional write does not hold. Nothing was written by it; read again and decide anew.

    Attributes:
        branch: where.
        key: whose state is not the expected one.
    """

    def __init__(self, *, branch: str, key: bytes) -> None:
        super().__init__(f"key {key[:100]!r} of branch {branch!r} is not in the expected state; nothing was written, "
                         f"read again")
        self.branch = branch
        self.key = key


class DirtyBranch(Conflict):
    """The branch has uncommitted changes, which moving HEAD would hide or lose. Commit or reset them first.

    Attributes:
        branch: which branch.
        key: the first uncommitted key.
    """

    def __init__(self, *, branch: str, key: bytes) -> None:
        super().__init__(f"branch {branch!r} has uncommitted changes, the first at key {key[:100]!r}; commit or reset "
                         f"them first")
        self.branch = branch
        self.key = key


class TooManyTries(Busy):
    """Others changed the branch again and again while this call tried. Wait and call again.

    A write may have left its value visible (G4); nothing was acknowledged.

    Attributes:
        operation: what was tried.
        branch: on which branch.
        tries: how often.
    """

    def __init__(self, *, operation: str, branch: str, tries: int) -> None:
        super().__init__(f"{operation} on branch {branch!r} met other changes {tries} times in a row; wait and call "
                         f"again, or allow more tries")
        self.operation = operation
        self.branch = branch
        self.tries = tries


class TooManySealed(Busy):
    """The branch has as many sealed tokens as it may have: commits have failed again and again. Compact it, then retry.

    Attributes:
        sealed: how many it has.
    """

    def __init__(self, *, sealed: int) -> None:
        super().__init__(f"the branch has {sealed} sealed tokens, and may have no more; compact it, or reset it")
        self.sealed = sealed


class TooManyKeys(InvalidInput):
    """More keys were given than one call takes. Split them; nothing was written.

    Attributes:
        count: how many were given.
        limit: how many there may be.
    """

    def __init__(self, *, count: int, limit: int) -> None:
        super().__init__(f"{count} keys were given, one call takes at most {limit}; split them")
        self.count = count
        self.limit = limit


class LostRace(Busy):
    """Another writer changed the branch, and the compaction yielded to it. Nothing is lost; the next run starts over.

    Attributes:
        branch: which branch.
        step: `"seal"` or `"swap"`, the compare-and-set that was lost.
    """

    def __init__(self, why: str, *, branch: str, step: str) -> None:
        super().__init__(f"the compaction of branch {branch!r} yielded: {why}")
        self.branch = branch
        self.step = step


class OutdatedPlan(Stale):
    """The branch has other layers than the plan was made for; nothing was changed.

    Attributes:
        branch: which branch.
        detail: what is not as it was.
    """

    def __init__(self, *, branch: str, detail: str) -> None:
        super().__init__(f"the plan for branch {branch!r} is outdated: {detail}; make a new one with plan()")
        self.branch = branch
        self.detail = detail
