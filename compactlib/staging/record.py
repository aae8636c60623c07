# SPDX-License-Identifier: Apache-2.0
"""`BranchRecord`: the one stored value that says what a branch is made of; changed by compare-and-set only.

The layers of a branch, newest first: the staging token, the sealed tokens, and the base: the compacted metarange if
there is one, else that of the HEAD commit. The stored form is described in docs/formats/staging-records.md.
"""

from __future__ import annotations

from typing import Final

import attrs

from compactlib.staging.errors import TooManySealed
from compactlib.staging.names import CommitId, StagingToken, is_commit_id, is_staging_token
from compactlib.staging.stored import StoredForm, damaged
from compactlib.staging.values import MetaRangeId

MAX_SEALED_TOKENS: Final = 1000
"""The most sealed tokens of one branch: the record stays below every store's limit, and reads end some time."""


def _to_milliseconds(seconds: float | None) -> float | None:
    """What the stored form keeps of a time, so that a record read back equals the one written."""
    return None if seconds is None else round(seconds * 1000) / 1000


@attrs.frozen(kw_only=True)
class BranchRecord:
    """What a branch is made of.

    Attributes:
        version: 1 for a new branch, one more with every write of the record. Equal versions of one branch mean equal
            records, so that a store that compares values has no ABA.
        commit_id: HEAD; `None` if nothing was ever committed.
        staging_token: where writes go.
        sealed_tokens: tokens that take no more writes, newest first.
        compacted_metarange_id: what a compaction made of the base and the sealed tokens of its time; `None` if the
            branch was not compacted since HEAD last moved. An empty metarange is not `None`.
        compaction_started_at: when the last compaction started, in seconds since the epoch (kept to the millisecond).
    """

    version: int = 1
    commit_id: CommitId | None = None
    staging_token: StagingToken
    sealed_tokens: tuple[StagingToken, ...] = ()
    compacted_metarange_id: MetaRangeId | None = None
    compaction_started_at: float | None = attrs.field(default=None, converter=_to_milliseconds)

    @property
    def tokens(self) -> tuple[StagingToken, ...]:
        """Every token that a read looks into, newest first."""
        return (self.staging_token, *self.sealed_tokens)

    @property
    def is_bare(self) -> bool:
        """Whether nothing lies between HEAD and the staging token."""
        return not self.sealed_tokens and self.compacted_metarange_id is None

    def base(self, head: MetaRangeId | None) -> MetaRangeId | None:
        """The metarange under the tokens: the compacted one if there is one, else that of HEAD."""
        return head if self.compacted_metarange_id is None else self.compacted_metarange_id

    def sealed_with(self, token: StagingToken) -> BranchRecord:
        """The record after a seal: `token` takes the writes, the old staging token is the newest sealed one. Raises
        `TooManySealed` if there are `MAX_SEALED_TOKENS` already.
        """
        if len(self.sealed_tokens) >= MAX_SEALED_TOKENS:
            raise TooManySealed(sealed=len(self.sealed_tokens))
        return attrs.evolve(self, staging_token=token, sealed_tokens=self.tokens)

    def emptied(self, token: StagingToken, commit_id: CommitId | None) -> BranchRecord:
        """The record of HEAD at `commit_id` with nothing uncommitted: `token` takes the writes, nothing is sealed."""
        return attrs.evolve(self, commit_id=commit_id, staging_token=token, sealed_tokens=(),
                            compacted_metarange_id=None)

    def changed_layers(self, other: BranchRecord) -> list[str]:
        """Name what is not as in another record; nothing where the two differ in their versions alone."""
        return [name for name in ("commit_id", "compacted_metarange_id", "compaction_started_at", "tokens")
                if getattr(self, name) != getattr(other, name)]

    def is_outdated_by(self, newest: BranchRecord) -> bool:
        """Whether it is an earlier state than the newest one that was seen, as a slow reader has.

        A lower version alone does not say so: the branch may have been deleted, and made anew with other tokens.
        """
        return self.version < newest.version and not set(self.tokens).isdisjoint(newest.tokens)

    def extends(self, older: BranchRecord) -> bool:
        """Whether everything that `older` pointed to is still pointed to: only seals happened since, or nothing.

        Then what was read through `older` was no worse than a read at that time: no layer of it was replaced, and so
        none can have been cleaned up.
        """
        kept = older.tokens
        return (self.commit_id == older.commit_id and self.compacted_metarange_id == older.compacted_metarange_id
                and self.tokens[-len(kept):] == kept)

    def seals_since(self, older: BranchRecord) -> int | None:
        """How many tokens were sealed since `older`, if nothing else happened to what was built from it: its HEAD, its
        compacted metarange and its sealed tokens, which must still be the oldest ones here. `None` if they are not.
        """
        newer = len(self.sealed_tokens) - len(older.sealed_tokens)
        if (self.commit_id != older.commit_id or self.compacted_metarange_id != older.compacted_metarange_id
                or newer < 0 or self.sealed_tokens[newer:] != older.sealed_tokens):
            return None
        return newer


@attrs.frozen(kw_only=True)
class _Stored:
    version: int
    commit_id: CommitId | None
    staging_token: StagingToken
    sealed_tokens: tuple[StagingToken, ...]
    compacted_metarange_id: MetaRangeId | None
    compaction_started_at_ms: int | None


_FORM: Final = StoredForm(b"CLBRANCH", _Stored)


def encode_branch_record(record: BranchRecord) -> bytes:
    """The stored form of a branch record."""
    fields = attrs.asdict(record, recurse=False)
    started = fields.pop("compaction_started_at")
    return _FORM.encode(_Stored(**fields, compaction_started_at_ms=None if started is None else round(started * 1000)))


def decode_branch_record(data: bytes, place: str) -> BranchRecord:
    """The record of a stored form; `CorruptData` also if it contradicts itself."""
    fields = attrs.asdict(_FORM.decode(data, place), recurse=False)
    started = fields.pop("compaction_started_at_ms")
    record = BranchRecord(**fields, compaction_started_at=None if started is None else started / 1000)
    tokens, head = record.tokens, record.commit_id
    if record.version < 1 or len(set(tokens)) != len(tokens) or not all(map(is_staging_token, tokens)) or (
            head is not None and not is_commit_id(head)):
        raise damaged(place, "a version of at least 1, a commit, and tokens that are each named once", record)
    return record
