# SPDX-License-Identifier: Apache-2.0
"""Audit: invariants between the records of a repository, checked."""

from __future__ import annotations

from collections.abc import Iterator, Set

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
    marked = _marked(context)
    for found in context.branches.list():
        record = found.record
        while True:
            if _problem(context, marked, record) is None:
                break
            # Perhaps only because it moved since the marks were read.
            marked = _marked(context)
            problem = _problem(context, marked, record)
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


def _problem(context: StagingContext, marked: Set[StagingToken], record: BranchRecord) -> str | None:
    record.audit()
    gone = [token for token in record.tokens if token in marked]
    if gone:
        return f"tokens that were dropped: {gone}"
    try:
        context.committed.ranges_of(context.commits.metarange_of(record.commit_id))
        context.committed.ranges_of(record.compacted_metarange_id)
    except (CommitNotFound, MetaRangeNotFound) as error:
        return str(error)
    return None


def _marked(context: StagingContext) -> set[StagingToken]:
    return {token for mark in context.tokens.marks() if not mark.is_prepared for token in mark.tokens}


def _present(context: StagingContext, branch: str) -> BranchRecord | None:
    try:
        return context.branches.read(branch).record
    except BranchNotFound:
        return None
