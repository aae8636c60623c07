# SPDX-License-Identifier: Apache-2.0
"""Audit: invariants between the records of a repository, checked."""

from __future__ import annotations

from collections.abc import Iterator

from compactlib.errors import AuditFailed
from compactlib.staging.context import StagingContext
from compactlib.staging.errors import BranchNotFound, CommitNotFound, MetaRangeNotFound
from compactlib.staging.names import StagingToken
from compactlib.staging.record import BranchRecord


def audit(context: StagingContext) -> None:
    """Check every branch record and commit; see `Repository.audit`.

    Raises:
        AuditFailed: the first of the `contradictions`.
    """
    for place, what in contradictions(context):
        raise AuditFailed(f"{place}: {what}")


def contradictions(context: StagingContext) -> Iterator[tuple[str, str]]:
    """Where a record says what is not so, and what. Branches that move meanwhile are looked at again.

    A branch names a commit, metarange or token that is not there, a token that was dropped or that another branch
    names; or a commit's generation is not one more than its parents'.
    """
    owners: dict[StagingToken, str] = {}
    marks = _Marks(context)
    for found in context.branches.list():
        record = found.record
        while True:
            if _problem(context, marks, found.branch, record) is None:
                break
            # Perhaps only because it moved since the marks were read.
            marks = _Marks(context)
            problem = _problem(context, marks, found.branch, record)
            if problem is None:
                break
            now = _present(context, found.branch)
            if now == record:
                yield f"branch {found.branch!r}", problem
                break
            if now is None:
                break
            record = now
        for token in record.tokens:
            if token in owners:
                yield f"token {token}", f"named by {owners[token]!r} and by {found.branch!r}"
            owners[token] = found.branch
    for commit_id, commit in context.commits.list():
        try:
            highest = max((context.commits.get(parent).generation for parent in commit.parents), default=0)
        except CommitNotFound as error:
            yield f"commit {commit_id}", f"a parent does not exist: {error}"
            continue
        if commit.generation != highest + 1:
            yield f"commit {commit_id}", f"generation {commit.generation}, its highest parent {highest}"


class _Marks:
    """The tokens of the register, and those that were dropped, each with its branch, as they are now."""

    def __init__(self, context: StagingContext) -> None:
        self.registered = {(mark.branch, mark.token) for mark in context.tokens.registered()}
        self.dropped = {(mark.branch, mark.token) for mark in context.tokens.dropped()}


def _problem(context: StagingContext, marks: _Marks, branch: str, record: BranchRecord) -> str | None:
    record.audit()
    unknown = [token for token in record.tokens if (branch, token) not in marks.registered]
    if unknown and context.branches.creates_in_one_step:
        return f"tokens that are not in the register: {unknown}"
    gone = [token for token in record.tokens if (branch, token) in marks.dropped]
    if gone:
        return f"tokens that were dropped: {gone}"
    try:
        context.committed.ranges_of(context.commits.metarange_of(record.commit_id))
        context.committed.ranges_of(record.compacted_metarange_id)
    except (CommitNotFound, MetaRangeNotFound) as error:
        return str(error)
    return None


def _present(context: StagingContext, branch: str) -> BranchRecord | None:
    try:
        return context.branches.read(branch).record
    except BranchNotFound:
        return None
