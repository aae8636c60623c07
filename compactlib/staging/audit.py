"""What the records of a repository promise each other."""

from __future__ import annotations

from compactlib.errors import AuditFailed
from compactlib.staging.context import StagingContext
from compactlib.staging.errors import BranchNotFound, CommitNotFound, MetaRangeNotFound
from compactlib.staging.names import StagingToken
from compactlib.staging.record import BranchRecord


def audit(context: StagingContext) -> None:
    """Check every branch record and commit; see `StagingArea.audit`. Branches that move meanwhile are looked at again.

    Raises:
        AuditFailed: a branch names a commit, metarange or token that is not there, a token that was dropped or that
            another branch names; or a commit's generation is not one more than its parents'.
    """
    owners: dict[StagingToken, str] = {}
    for found in context.branches.list():
        record = found.record
        while True:
            problem = _problem(context, found.branch, record)
            if problem is None:
                break
            now = _present(context, found.branch)
            if now == record:
                raise AuditFailed(f"branch {found.branch!r}: {problem}")
            if now is None:
                break
            record = now
        for token in record.tokens:
            if token in owners:
                raise AuditFailed(f"token {token} is named by {owners[token]!r} and by {found.branch!r}")
            owners[token] = found.branch
    for commit_id, commit in context.commits.list():
        try:
            highest = max((context.commits.get(parent).generation for parent in commit.parents), default=0)
        except CommitNotFound as error:
            raise AuditFailed(f"commit {commit_id} has a parent that does not exist: {error}") from error
        if commit.generation != highest + 1:
            raise AuditFailed(f"commit {commit_id} has generation {commit.generation}, its highest parent {highest}")


def _problem(context: StagingContext, branch: str, record: BranchRecord) -> str | None:
    record.audit()
    registered = {mark.token for mark in context.tokens.registered() if mark.branch == branch}
    dropped = {mark.token for mark in context.tokens.dropped() if mark.branch == branch}
    unknown = [token for token in record.tokens if token not in registered]
    if unknown:
        return f"tokens that are not in the register: {unknown}"
    gone = [token for token in record.tokens if token in dropped]
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
