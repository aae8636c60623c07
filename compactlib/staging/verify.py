# SPDX-License-Identifier: Apache-2.0
"""`verify` reads all of a repository and lists what is damaged or missing; `audit` checks for contradictions alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from typing import TypeVar

from compactlib.budget import Budget
from compactlib.errors import AuditFailed, CompactlibError, CorruptData, Unsupported
from compactlib.kv.store import KVEntry
from compactlib.report import Finding, VerifyReport
from compactlib.staging.commits import Commit
from compactlib.staging.context import StagingContext
from compactlib.staging.errors import BranchNotFound, CommitNotFound, MetaRangeNotFound
from compactlib.staging.names import (
    BRANCHES,
    COMMITS,
    CommitId,
    StagingToken,
    repository_partition,
    token_partition,
)
from compactlib.staging.record import BranchRecord, decode_branch_record
from compactlib.staging.tokens import decode_staged
from compactlib.staging.values import LiveMetaRanges, MetaRangeId

T = TypeVar("T")

_LOOKS = 3
"""How often what was not found is looked for again, because a branch moved on meanwhile."""


def verify(context: StagingContext, budget: Budget) -> VerifyReport:
    """See `Repository.verify`. Memory for all branch records and commits."""
    reader = _Records(context, budget)
    branches, commits = reader.branches(), reader.commits()
    for record in branches.values():
        for token in record.tokens:
            reader.staged(token)
    findings = reader.findings
    met: CompactlibError | None = None
    if not findings:
        try:
            findings += [Finding("contradiction", place, what) for place, what in _contradictions(context)]
        except (CorruptData, Unsupported) as error:
            met = error
    live = _live(branches, commits, findings)
    ranges = context.committed.verify(live, budget=budget)
    for _ in range(_LOOKS):
        if ranges.is_sound:
            break
        # Collected, because a branch names it no longer since it was read?
        again = _Records(context, budget)
        before, live = live, _live(again.branches(), again.commits(), [])
        if live == before:
            break
        ranges = context.committed.verify(live, budget=budget)
    if met is not None and not any(str(each.error) == str(met) for each in ranges.findings):
        # Not that of a metarange which is among the ranges' own.
        reader.note("a branch, or what it names", met)
    return VerifyReport(findings=(*findings, *ranges.findings), records=reader.records + ranges.records,
                        bytes_read=reader.bytes_read + ranges.bytes_read)


def audit(context: StagingContext) -> None:
    """See `Repository.audit`."""
    for place, what in _contradictions(context):
        raise AuditFailed(f"{place}: {what}")


class _Records:
    """What the key-value store holds of a repository, read entry by entry; what cannot be read is a finding."""

    def __init__(self, context: StagingContext, budget: Budget) -> None:
        self.findings: list[Finding] = []
        self.records = 0
        self.bytes_read = 0
        self._context = context
        self._budget = budget
        self._partition = repository_partition(context.repository)

    def branches(self) -> dict[str, BranchRecord]:
        return {entry.key[len(BRANCHES):].decode("utf-8", "replace"): record for entry, record in self._read(
            self._partition, BRANCHES, lambda entry, place: decode_branch_record(entry.value, place))}

    def commits(self) -> dict[CommitId, Commit]:
        def decode(entry: KVEntry, place: str) -> Commit:
            return self._context.commits.checked(name(entry), entry.value, entry.key)

        def name(entry: KVEntry) -> CommitId:
            return CommitId(entry.key[len(COMMITS):].decode("ascii", "replace"))

        return {name(entry): commit for entry, commit in self._read(self._partition, COMMITS, decode)}

    def staged(self, token: StagingToken) -> None:
        for _ in self._read(token_partition(token), b"", lambda entry, place: decode_staged(entry.value, place)):
            pass

    def _read(self, partition: bytes, prefix: bytes, decode: Callable[[KVEntry, str], T],
              ) -> Iterator[tuple[KVEntry, T]]:
        with self._context.store.scan(partition, prefix=prefix) as entries:
            for entry in entries:
                self._budget.check()
                self.records += 1
                self.bytes_read += len(entry.value)
                place = f"key {entry.key[:100]!r} of partition {partition!r}"
                try:
                    decoded = decode(entry, place)
                except (CorruptData, Unsupported) as error:
                    self.note(place, error)
                else:
                    yield entry, decoded

    def note(self, place: str, error: CompactlibError) -> None:
        kind = "version" if isinstance(error, Unsupported) else "damage"
        self.findings.append(Finding(kind, place, str(error), error))


def _live(branches: dict[str, BranchRecord], commits: dict[CommitId, Commit], findings: list[Finding],
          ) -> LiveMetaRanges:
    """What the branches need, and their history; a commit that is not there is a finding."""
    needed: set[MetaRangeId] = set()
    history: set[MetaRangeId] = set()
    waiting: list[CommitId] = []
    for record in branches.values():
        if record.compacted_metarange_id is not None:
            needed.add(record.compacted_metarange_id)
        if record.commit_id is not None:
            waiting.append(record.commit_id)
            if record.commit_id in commits:
                needed.add(commits[record.commit_id].metarange_id)
    seen: set[CommitId] = set()
    while waiting:
        commit_id = waiting.pop()
        if commit_id in seen:
            continue
        seen.add(commit_id)
        commit = commits.get(commit_id)
        if commit is None:
            findings.append(Finding("missing", f"commit {commit_id}", "a branch or a commit names it"))
            continue
        history.add(commit.metarange_id)
        waiting.extend(commit.parents)
    return LiveMetaRanges(needed=frozenset(needed), history=frozenset(history - needed))


def _contradictions(context: StagingContext) -> Iterator[tuple[str, str]]:
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
