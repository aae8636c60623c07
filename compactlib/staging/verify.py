# SPDX-License-Identifier: Apache-2.0
"""`verify` reads a whole repository and lists damaged and missing parts; `audit` checks for contradictions only.

A branch may change during a check, and a cleanup or a collection may then remove parts that the check has yet to read.
So a finding counts only if a second check finds it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from compactlib.budget import Budget
from compactlib.errors import AuditFailed, CorruptData, Unsupported
from compactlib.kv import KVEntry
from compactlib.report import Finding, VerifyReport
from compactlib.staging.commits import Commit, walk
from compactlib.staging.context import StagingContext
from compactlib.staging.errors import CommitNotFound, MetaRangeNotFound
from compactlib.staging.names import BRANCHES, COMMITS, DROPPED, CommitId, repository_partition, token_partition
from compactlib.staging.ranges.verify import finding, verify_ranges
from compactlib.staging.reclaim import live_of
from compactlib.staging.record import BranchRecord, decode_branch_record
from compactlib.staging.tokens import MARKS, decode_staged

T = TypeVar("T")


def verify(context: StagingContext, budget: Budget) -> VerifyReport:
    """See `Repository.verify`. Memory for all branch records and commits."""
    report = _verify(context, budget)
    if report.is_sound:
        return report
    found = {(each.kind, each.place) for each in report.findings}
    again = _verify(context, budget)
    return VerifyReport(findings=tuple(each for each in again.findings if (each.kind, each.place) in found),
                        records=again.records, bytes_read=again.bytes_read)


def audit(context: StagingContext) -> None:
    """See `Repository.audit`."""
    found = set(_contradictions(context))
    for place, what in _contradictions(context) if found else ():
        if (place, what) in found:
            raise AuditFailed(f"{place}: {what}")


def _verify(context: StagingContext, budget: Budget) -> VerifyReport:
    partition, findings = repository_partition(context.repository), list[Finding]()
    records = bytes_read = 0

    def read(partition: bytes, prefix: bytes, decode: Callable[[KVEntry, str], T]) -> Iterator[tuple[bytes, T]]:
        """Yield the decoded entries, without the prefix in their keys; an unreadable one is a finding."""
        nonlocal records, bytes_read
        with context.store.scan(partition, prefix=prefix) as entries:
            for entry in entries:
                budget.check()
                records, bytes_read = records + 1, bytes_read + len(entry.value)
                place = f"key {entry.key[:100]!r} of partition {partition!r}"
                try:
                    decoded = decode(entry, place)
                except (CorruptData, Unsupported) as error:
                    findings.append(finding(place, error))
                else:
                    yield entry.key[len(prefix):], decoded

    def commit(entry: KVEntry, _: str) -> Commit:
        return context.commits.checked(_commit_id(entry.key[len(COMMITS):]), entry.value, entry.key)

    def present(commit_id: CommitId) -> Commit | None:
        if commit_id not in commits:
            findings.append(Finding("missing", f"commit {commit_id}", "a branch or a commit names it"))
        return commits.get(commit_id)

    branches = [record for _, record in read(
        partition, BRANCHES, lambda entry, place: decode_branch_record(entry.value, place))]
    commits = {_commit_id(name): found for name, found in read(partition, COMMITS, commit)}
    for _ in read(partition, DROPPED, lambda entry, place: MARKS.decode(entry.value, place)):
        pass
    for token in (token for record in branches for token in record.tokens):
        for _ in read(token_partition(token), b"", lambda entry, place: decode_staged(entry.value, place)):
            pass
    ranges = verify_ranges(context.committed, live_of(branches, lambda heads: walk(heads, present)), budget)
    if not findings and ranges.is_sound:
        findings += [Finding("contradiction", place, what) for place, what in _contradictions(context)]
    return VerifyReport(findings=(*findings, *ranges.findings), records=records + ranges.records,
                        bytes_read=bytes_read + ranges.bytes_read)


def _commit_id(name: bytes) -> CommitId:
    return CommitId(name.decode("ascii", "replace"))


def _contradictions(context: StagingContext) -> Iterator[tuple[str, str]]:
    """Yield the place and the description of each contradiction.

    A branch names a missing commit or metarange, a dropped token, or a token of another branch; or a commit's
    generation is not 1 + the highest of its parents.
    """
    owners: dict[str, str] = {}
    marked = {token for _, mark in context.tokens.marks() for token in mark.tokens}
    for branch, record in context.branches.list():
        yield from ((f"branch {branch!r}", what) for what in _unreadable(context, record))
        for token in record.tokens:
            if token in marked:
                yield f"branch {branch!r}", f"names the dropped token {token}"
            if token in owners:
                yield f"token {token}", f"named by {owners[token]!r} and by {branch!r}"
            owners[token] = branch
    for commit_id, commit in context.commits.list():
        try:
            highest = max((context.commits.get(parent).generation for parent in commit.parents), default=0)
        except CommitNotFound as error:
            yield f"commit {commit_id}", f"a parent does not exist: {error}"
            continue
        if commit.generation != highest + 1:
            yield f"commit {commit_id}", f"generation {commit.generation}, its highest parent {highest}"


def _unreadable(context: StagingContext, record: BranchRecord) -> Iterator[str]:
    try:
        context.committed.ranges_of(context.commits.metarange_of(record.commit_id))
        context.committed.ranges_of(record.compacted_metarange_id)
    except (CommitNotFound, MetaRangeNotFound) as error:
        yield str(error)
