# SPDX-License-Identifier: Apache-2.0
"""References: a branch's name stands for its HEAD, a commit id for itself."""

from __future__ import annotations

from compactlib.staging.commits import Commit
from compactlib.staging.context import StagingContext
from compactlib.staging.errors import CommitNotFound
from compactlib.staging.names import CommitId, is_commit_id


def resolve(context: StagingContext, ref: str) -> CommitId | None:
    """The commit that a reference stands for now; `None` for a branch that has none yet.

    Raises:
        CommitNotFound: there is no such commit.
        BranchNotFound: there is no such branch.
        InvalidInput: it is neither a commit id nor a name of a branch.
    """
    if is_commit_id(ref):
        commit_id = CommitId(ref)
        context.commits.get(commit_id)
        return commit_id
    return context.branches.read(ref).record.commit_id


def resolve_present(context: StagingContext, ref: str) -> CommitId | None:
    """As `resolve`, for a branch that is to begin at that commit: its records are there, and are kept until it does.

    A commit that no branch reaches is garbage after a while: its ranges are collected, and the commit itself stays.
    A branch's HEAD may be one a moment later, so it is claimed too.

    Raises:
        MetaRangeNotFound: the records of the commit were collected.
        BeingCollected: they are being collected at this moment.
    """
    commit_id = resolve(context, ref)
    metarange_id = context.commits.metarange_of(commit_id)
    if metarange_id is not None:
        context.committed.claim(metarange_id)
    return commit_id


def commit_of(context: StagingContext, ref: str) -> Commit:
    """The commit that a reference stands for.

    Raises:
        CommitNotFound: there is none, or the branch has no commit yet.
    """
    commit_id = resolve(context, ref)
    if commit_id is None:
        raise CommitNotFound(commit_id=ref)
    return context.commits.get(commit_id)
