# SPDX-License-Identifier: Apache-2.0
"""`BranchRecord`: the one stored value that says what a branch is made of; changed by compare-and-set only.

The layers of a branch, newest first: the staging token, the sealed tokens, and the base: the compacted metarange if
there is one, else that of the HEAD commit. The stored form is described in docs/formats/staging-records.md.
"""

from __future__ import annotations

from typing import Final

import attrs

from compactlib.errors import AuditFailed
from compactlib.staging.errors import TooManySealed
from compactlib.staging.names import CommitId, StagingToken, is_commit_id, is_staging_token
from compactlib.staging.stored import Fields, frame_of, pack, unpack
from compactlib.staging.values import MetaRangeId

_FRAME: Final = frame_of(b"CLBRANCH")

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
        """The record after a seal: `token` takes the writes, the old staging token is the newest sealed one.

        Raises:
            TooManySealed: there are `MAX_SEALED_TOKENS` already.
        """
        if len(self.sealed_tokens) >= MAX_SEALED_TOKENS:
            raise TooManySealed(sealed=len(self.sealed_tokens))
        return attrs.evolve(self, staging_token=token, sealed_tokens=self.tokens)

    def emptied(self, token: StagingToken, commit_id: CommitId | None) -> BranchRecord:
        """The record of HEAD at `commit_id` with nothing uncommitted: `token` takes the writes, nothing is sealed."""
        return attrs.evolve(self, commit_id=commit_id, staging_token=token, sealed_tokens=(),
                            compacted_metarange_id=None)

    def without_sealed(self, count: int) -> BranchRecord:
        """The record without its `count` oldest sealed tokens."""
        return attrs.evolve(self, sealed_tokens=self.sealed_tokens[:len(self.sealed_tokens) - count])

    def has_layers_of(self, other: BranchRecord) -> bool:
        """Whether it says the same, but for how often it was written."""
        return attrs.evolve(self, version=other.version) == other

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

    def seals_since(self, older: BranchRecord, applied: int) -> int | None:
        """How many tokens were sealed since `older`, if nothing else happened to what was built from it.

        What was built from `older` used its HEAD, its compacted metarange and its `applied` oldest sealed tokens; those
        must still be the oldest ones here. `None` if they are not.
        """
        used = older.sealed_tokens[len(older.sealed_tokens) - applied:]
        newer = len(self.sealed_tokens) - applied
        if (self.commit_id != older.commit_id or self.compacted_metarange_id != older.compacted_metarange_id
                or newer < 0 or self.sealed_tokens[newer:] != used):
            return None
        return newer

    def audit(self) -> None:
        """Check the record's own invariants.

        Raises:
            AuditFailed: the record contradicts itself.
        """
        if self.version < 1:
            raise AuditFailed(f"version {self.version}")
        if len(set(self.tokens)) != len(self.tokens):
            raise AuditFailed(f"a token is named twice: {self.tokens}")
        if not all(map(is_staging_token, self.tokens)):
            raise AuditFailed(f"not tokens: {self.tokens}")
        if self.commit_id is not None and not is_commit_id(self.commit_id):
            raise AuditFailed(f"not a commit: {self.commit_id}")


def encode_branch_record(record: BranchRecord) -> bytes:
    """The stored form of a branch record. O(sealed tokens)."""
    started = record.compaction_started_at
    return pack(_FRAME, {
        "version": record.version,
        "commit_id": record.commit_id,
        "staging_token": record.staging_token,
        "sealed_tokens": list(record.sealed_tokens),
        "compacted_metarange_id": record.compacted_metarange_id,
        "compaction_started_at_ms": None if started is None else round(started * 1000),
    })


def decode_branch_record(data: bytes, place: str) -> BranchRecord:
    """The record of a stored form.

    Raises:
        CorruptData: the bytes are not those of a branch record.
        Unsupported: they were written by another release.
    """
    fields = Fields(unpack(_FRAME, data, place), place)
    started = fields.take("compaction_started_at_ms", int, type(None))
    record = BranchRecord(
        version=fields.take("version", int),
        commit_id=fields.take("commit_id", str, type(None)),
        staging_token=fields.take("staging_token", str),
        sealed_tokens=tuple(map(StagingToken, fields.take_texts("sealed_tokens"))),
        compacted_metarange_id=fields.take("compacted_metarange_id", str, type(None)),
        compaction_started_at=None if started is None else started / 1000,
    )
    fields.end()
    try:
        record.audit()
    except AuditFailed as error:
        fields.require(False, f"a record that does not contradict itself ({error})")
    return record
