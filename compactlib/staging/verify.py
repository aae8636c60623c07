# SPDX-License-Identifier: Apache-2.0
"""`verify` reads a whole repository and lists damaged and missing parts; `audit` checks for contradictions only.

A branch may change during a check, and a cleanup or a collection may then remove parts that the check has yet to read.
So a finding counts only if a second check finds it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from compactlib.budget import Budget
from compactlib.errors import AuditFailed, CompactlibError, CorruptData, NotFound, Unsupported
from compactlib.kv import KVEntry
from compactlib.kv.batches import sound_entries
from compactlib.report import Finding, VerifyReport
from compactlib.staging.branches import MARKS
from compactlib.staging.commits import Commit, walk
from compactlib.staging.context import StagingContext
from compactlib.staging.errors import CommitNotFound, MetaRangeNotFound, RangeNotFound
from compactlib.staging.ranges.files import RangeFiles
from compactlib.staging.reclaim import live_of
from compactlib.staging.record import BranchRecord, decode_branch_record
from compactlib.staging.tokens import decode_staged
from compactlib.staging.values import (
    BRANCHES,
    COMMITS,
    DROPPED,
    CommitId,
    LiveMetaRanges,
    RangeId,
    commit_id_in,
    token_partition,
)

T = TypeVar("T")


def verify(context: StagingContext, budget: Budget) -> VerifyReport:
    """See `Repository.verify`. Memory for all branch records and commits."""
    return _confirmed(lambda: _verify(context, budget))


def audit(context: StagingContext) -> None:
    """See `Repository.audit`."""
    for found in _confirmed(lambda: VerifyReport(tuple(_contradictions(context)), 0, 0)).findings:
        raise AuditFailed(f"{found.place}: {found.what}")


def _confirmed(check: Callable[[], VerifyReport]) -> VerifyReport:
    first = check()
    if not first.findings:
        return first
    found, again = {(each.kind, each.place) for each in first.findings}, check()
    return VerifyReport(findings=tuple(each for each in again.findings if (each.kind, each.place) in found),
                        records=again.records, bytes_read=again.bytes_read)


def _verify(context: StagingContext, budget: Budget) -> VerifyReport:
    partition, findings = context.cells.partition, list[Finding]()
    records = bytes_read = 0

    def read(partition: bytes, prefix: bytes, decode: Callable[[KVEntry, str], T]) -> Iterator[tuple[bytes, T]]:
        """Yield the keys with a prefix and the decoded entries; an unreadable one is a finding."""
        nonlocal records, bytes_read
        damage: dict[bytes, CompactlibError] = {}
        for entry in sound_entries(context.store, partition, damage, prefix=prefix):
            budget.check()
            records, bytes_read = records + 1, bytes_read + len(entry.value)
            try:
                decoded = decode(entry, f"key {entry.key[:100]!r} of partition {partition!r}")
            except (CorruptData, Unsupported) as error:
                damage[entry.key] = error
            else:
                yield entry.key, decoded
        findings.extend(_finding(f"key {key[:100]!r} of partition {partition!r}", error)
                        for key, error in damage.items())

    def present(commit_id: CommitId) -> Commit | None:
        if commit_id not in commits:
            findings.append(Finding("missing", f"commit {commit_id}", "a branch or a commit names it"))
        return commits.get(commit_id)

    branches = [record for _, record in read(
        partition, BRANCHES, lambda entry, place: decode_branch_record(entry.value, place))]
    commits = {commit_id_in(key): commit for key, commit in read(
        partition, COMMITS, lambda entry, _: context.commits.checked(commit_id_in(entry.key), entry.value))}
    list(read(partition, DROPPED, lambda entry, place: MARKS.decode(entry.value, place)))
    for token in (token for record in branches for token in record.tokens):
        for _ in read(token_partition(token), b"", lambda entry, place: decode_staged(entry.value, place)):
            pass
    ranges = verify_ranges(context.committed, live_of(branches, lambda heads: walk(heads, present)), budget)
    if not findings and ranges.is_sound:
        findings += _contradictions(context)
    return VerifyReport(findings=(*findings, *ranges.findings), records=records + ranges.records,
                        bytes_read=bytes_read + ranges.bytes_read)


def _contradictions(context: StagingContext) -> Iterator[Finding]:
    """Yield each missing commit or metarange of a branch, and each token of two owners."""
    def found(place: str, what: str) -> Finding:
        return Finding("contradiction", place, what)

    owners: dict[str, str] = {}
    marked = {token for _, mark in context.branches.marks() for token in mark.tokens}
    for branch, record in context.branches.list():
        missing = _missing(context, record)
        if missing is not None:
            yield found(f"branch {branch!r}", str(missing))
        for token in record.tokens:
            if token in marked:
                yield found(f"branch {branch!r}", f"names the dropped token {token}")
            if token in owners:
                yield found(f"token {token}", f"named by {owners[token]!r} and by {branch!r}")
            owners[token] = branch


def _missing(context: StagingContext, record: BranchRecord) -> NotFound | None:
    try:
        for metarange_id in context.commits.metarange_of(record.commit_id), record.compacted_metarange_id:
            context.committed.ranges_of(metarange_id)
    except (CommitNotFound, MetaRangeNotFound) as error:
        return error
    return None


# ------------------------------------------------------------------------------------------------------------ ranges


def verify_ranges(files: RangeFiles, live: LiveMetaRanges, budget: Budget) -> VerifyReport:
    """Read metaranges and their ranges past the caches, each range once. O(records of all ranges).

    A missing metarange of the history is an `orphan`: it was collected while its commit was unreachable.
    """
    findings: list[Finding] = []
    seen: set[RangeId] = set()
    records = bytes_read = 0
    for metarange_id in (*sorted(live.needed), *sorted(live.history)):
        budget.check()
        path = files.path_of_metarange(metarange_id)
        files.forget(metarange_id)
        try:
            entries = files.read_metarange(metarange_id).entries
        except (CorruptData, Unsupported, MetaRangeNotFound) as error:
            is_orphan = isinstance(error, MetaRangeNotFound) and metarange_id not in live.needed
            findings.append(Finding("orphan", path, "collected while its commit was unreachable, or lost", error)
                            if is_orphan else _finding(path, error))
            continue
        for entry in entries:
            if entry.range_id in seen:
                continue
            budget.check()
            seen.add(entry.range_id)
            try:
                files.reread(entry)
            except (CorruptData, Unsupported, RangeNotFound) as error:
                findings.append(_finding(files.path_of_range(entry.range_id), error))
            else:
                records, bytes_read = records + entry.count, bytes_read + entry.size_bytes
    return VerifyReport(findings=tuple(findings), records=records, bytes_read=bytes_read)


def _finding(path: str, error: CompactlibError) -> Finding:
    kind = "version" if isinstance(error, Unsupported) else "missing" if isinstance(error, NotFound) else "damage"
    return Finding(kind, path, str(error), error)
