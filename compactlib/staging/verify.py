# SPDX-License-Identifier: Apache-2.0
"""`verify` reads a whole repository and lists damaged and missing parts; `audit` checks for contradictions only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Set
from typing import Final, TypeVar

from compactlib.budget import Budget
from compactlib.errors import AuditFailed, CorruptData, Unsupported
from compactlib.kv import KVEntry
from compactlib.report import Finding, VerifyReport
from compactlib.staging.commits import Commit, walk
from compactlib.staging.context import StagingContext
from compactlib.staging.errors import BranchNotFound, CommitNotFound, MetaRangeNotFound
from compactlib.staging.names import (
    BRANCHES,
    COMMITS,
    DROPPED,
    CommitId,
    StagingToken,
    repository_partition,
    token_partition,
)
from compactlib.staging.ranges.verify import finding
from compactlib.staging.reclaim import live_of
from compactlib.staging.record import BranchRecord, decode_branch_record
from compactlib.staging.tokens import MARKS, decode_staged
from compactlib.staging.values import LiveMetaRanges

T = TypeVar("T")

_RETRIES: Final = 3
"""Retries after a missing file, as a branch may have changed during the check."""


def verify(context: StagingContext, budget: Budget) -> VerifyReport:
    """See `Repository.verify`. Memory for all branch records and commits."""
    records = _Records(context, budget)
    branches, commits = records.branches(), records.commits()
    records.check(repository_partition(context.repository), DROPPED, MARKS.decode)
    for record in branches.values():
        for token in record.tokens:
            records.check(token_partition(token), b"", decode_staged)
    findings = records.findings
    if not findings:
        # The check of the ranges finds unreadable metaranges.
        with contextlib.suppress(CorruptData, Unsupported):
            findings += [Finding("contradiction", place, what) for place, what in _contradictions(context)]
    live = _live(branches, commits, findings)
    ranges = context.committed.verify(live, budget=budget)
    for _ in range(_RETRIES):
        if ranges.is_sound:
            break
        # A collection may have deleted it, if a branch no longer names it.
        again = _Records(context, budget)
        before, live = live, _live(again.branches(), again.commits(), [])
        if live == before:
            break
        ranges = context.committed.verify(live, budget=budget)
    return VerifyReport(findings=(*findings, *ranges.findings), records=records.count + ranges.records,
                        bytes_read=records.bytes_read + ranges.bytes_read)


def audit(context: StagingContext) -> None:
    """See `Repository.audit`."""
    for place, what in _contradictions(context):
        raise AuditFailed(f"{place}: {what}")


class _Records:
    """Reads a repository's entries in the key-value store; an unreadable entry is a finding."""

    def __init__(self, context: StagingContext, budget: Budget) -> None:
        self.findings: list[Finding] = []
        self.count = 0
        self.bytes_read = 0
        self._context = context
        self._budget = budget
        self._partition = repository_partition(context.repository)

    def branches(self) -> dict[str, BranchRecord]:
        return {entry.key[len(BRANCHES):].decode("utf-8", "replace"): record for entry, record in self._read(
            self._partition, BRANCHES, lambda entry, place: decode_branch_record(entry.value, place))}

    def commits(self) -> dict[CommitId, Commit]:
        def name(entry: KVEntry) -> CommitId:
            return CommitId(entry.key[len(COMMITS):].decode("ascii", "replace"))

        return {name(entry): commit for entry, commit in self._read(
            self._partition, COMMITS, lambda entry, _: self._context.commits.checked(
                name(entry), entry.value, entry.key))}

    def check(self, partition: bytes, prefix: bytes, decode: Callable[[bytes, str], object]) -> None:
        for _ in self._read(partition, prefix, lambda entry, place: decode(entry.value, place)):
            pass

    def _read(self, partition: bytes, prefix: bytes, decode: Callable[[KVEntry, str], T],
              ) -> Iterator[tuple[KVEntry, T]]:
        with self._context.store.scan(partition, prefix=prefix) as entries:
            for entry in entries:
                self._budget.check()
                self.count += 1
                self.bytes_read += len(entry.value)
                place = f"key {entry.key[:100]!r} of partition {partition!r}"
                try:
                    decoded = decode(entry, place)
                except (CorruptData, Unsupported) as error:
                    self.findings.append(finding(place, error))
                else:
                    yield entry, decoded


def _live(branches: dict[str, BranchRecord], commits: dict[CommitId, Commit], findings: list[Finding],
          ) -> LiveMetaRanges:
    """Return the metaranges of the branches and of their history; a missing commit is a finding."""
    def get(commit_id: CommitId) -> Commit | None:
        if commit_id not in commits:
            findings.append(Finding("missing", f"commit {commit_id}", "a branch or a commit names it"))
        return commits.get(commit_id)

    return live_of(branches.values(), lambda heads: walk(heads, get))


def _contradictions(context: StagingContext) -> Iterator[tuple[str, str]]:
    """Yield the place and the description of each contradiction. Re-reads a branch that changes during the check.

    A branch names a missing commit or metarange, a dropped token, or a token of another branch; or a commit's
    generation is not 1 + the highest of its parents.
    """
    owners: dict[StagingToken, str] = {}
    marked = _marked(context)
    for branch, found in context.branches.list():
        record: BranchRecord | None = found
        while record is not None and _problem(context, marked, record) is not None:
            marked = _marked(context)  # the branch may have changed after the first read
            problem = _problem(context, marked, record)
            if problem is None:
                break
            before, record = record, _present(context, branch)
            if before == record:
                yield f"branch {branch!r}", problem
                break
        for token in () if record is None else record.tokens:
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


def _problem(context: StagingContext, marked: Set[StagingToken], record: BranchRecord) -> str | None:
    gone = [token for token in record.tokens if token in marked]
    if gone:
        return f"tokens that were dropped: {gone}"
    try:
        context.committed.ranges_of(context.commits.metarange_of(record.commit_id))
        context.committed.ranges_of(record.compacted_metarange_id)
    except (CommitNotFound, MetaRangeNotFound) as error:
        return str(error)
    return None


def _marked(context: StagingContext) -> Set[StagingToken]:
    return {token for mark in context.tokens.marks() for token in mark.tokens}


def _present(context: StagingContext, branch: str) -> BranchRecord | None:
    try:
        return context.branches.read(branch)
    except BranchNotFound:
        return None
