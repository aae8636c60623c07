# SPDX-License-Identifier: Apache-2.0
"""Names and values: addresses in the key-value store, records, changes, ranges, differences, and counts of an apply.

A repository has a partition for its identity, branches, commits, and drop marks. The staged entries of a token are a
partition, so that writers of different branches share none. docs/formats/staging-records.md has the allowed names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal, NewType, TypeAlias

import attrs

from compactlib.errors import InvalidInput
from compactlib.objects import Digest
from compactlib.report import Printed

CommitId = NewType("CommitId", str)
"""64 lower-case hexadecimal digits: the SHA-256 of the commit's stored form."""

StagingToken = NewType("StagingToken", str)
"""`stg-` and 32 hexadecimal digits, drawn at random, never reused. Names a partition of staged entries."""

MAX_REPOSITORY_CHARS = 100
MAX_BRANCH_BYTES = 255

BRANCHES = b"branches/"
COMMITS = b"commits/"
DROPPED = b"dropped/"
IDENTITY = b"identity"

_OF_REPOSITORIES = b"staging/"
_REPOSITORY = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_REPOSITORY_CHARS - 1}}}")
_COMMIT_ID = re.compile(r"[0-9a-f]{64}")
_TOKEN = re.compile(r"stg-[0-9a-f]{32}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def repository_partition(repository: str) -> bytes:
    """Return the partition of a repository's branches, commits and drop marks. Checks the name."""
    if not _REPOSITORY.fullmatch(repository):
        raise InvalidInput(f"the repository name {repository!r} is not 1 to {MAX_REPOSITORY_CHARS} letters, digits, "
                           f"'.', '_' and '-', the first a letter or digit; choose another")
    return _OF_REPOSITORIES + repository.encode("ascii")


def repository_in(partition: bytes) -> str | None:
    """Return the name of the repository of a partition; `None` for another partition."""
    name = partition.removeprefix(_OF_REPOSITORIES).decode("ascii", "replace")
    is_one = partition.startswith(_OF_REPOSITORIES) and _REPOSITORY.fullmatch(name)
    return name if is_one else None


def branch_key(branch: str) -> bytes:
    """Return the key of a branch's record. Checks the name."""
    try:
        encoded = branch.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidInput(f"the branch name {branch!r} is not valid Unicode; choose another") from None
    if not 0 < len(encoded) <= MAX_BRANCH_BYTES or _CONTROL.search(branch):
        raise InvalidInput(f"the branch name {branch!r} is not 1 to {MAX_BRANCH_BYTES} bytes of UTF-8 without control "
                           f"characters; choose another")
    if is_commit_id(branch):
        raise InvalidInput(f"the branch name {branch!r} has the form of a commit id; choose another")
    return BRANCHES + encoded


def commit_key(commit_id: CommitId) -> bytes:
    """Return the key of a commit."""
    return COMMITS + commit_id.encode("ascii", "replace")


def commit_id_in(key: bytes) -> CommitId:
    """Return the id of a commit's key, which other writers may have made."""
    return CommitId(key[len(COMMITS):].decode("ascii", "replace"))


def token_partition(token: StagingToken) -> bytes:
    """Return the partition of a token's staged entries."""
    return token.encode("ascii")


def is_commit_id(text: str) -> bool:
    """Return whether a text has the form of a commit id."""
    return _COMMIT_ID.fullmatch(text) is not None


def is_staging_token(text: str) -> bool:
    """Return whether a text has the form of a staging token."""
    return _TOKEN.fullmatch(text) is not None


MetaRangeId = NewType("MetaRangeId", str)
"""Names one sorted, immutable set of records by its content: 40 hexadecimal digits. The empty set has one too."""

RangeId = NewType("RangeId", str)
"""Names one range, a run of neighbouring records, by its content: 40 hexadecimal digits."""

MAX_KEY_BYTES: Final = 1 << 16
"""The longest key of a record."""
MAX_BATCH_KEYS: Final = 1000
"""The most keys of a `delete_many`, `put_many` or `get_many`."""
MAX_PART_BYTES: Final = 40 << 20
"""The longest identity, and the longest data, of one record."""


@attrs.frozen
class Record:
    """The value of a key.

    Attributes:
        identity: identifies the value: a write with an equal identity changes nothing, even with other data. May be
            empty.
        data: the value itself; may be empty.
    """

    identity: bytes
    data: bytes

    @classmethod
    def of(cls, data: bytes) -> Record:
        """Return a record whose identity is the digest of its data, so that every change of data counts."""
        return cls(Digest.of(data).value, data)


Change: TypeAlias = Record | None
"""A change of one key: put this record, or remove the key (`None`)."""

Changes: TypeAlias = Iterable[tuple[bytes, Change]]
"""Changes in strictly ascending order of their keys."""

MergeStrategy: TypeAlias = Literal["fail", "source_wins", "destination_wins"]
"""How a merge resolves a key that both sides changed in different ways."""

Kind: TypeAlias = Literal["added", "changed", "removed"]
"""The kind of a difference from the left to the right side."""


def are_same(one: Record | None, other: Record | None) -> bool:
    """Return whether two states of a key are equal: both absent, or of the same identity."""
    if one is None or other is None:
        return one is other
    return one.identity == other.identity


@attrs.frozen
class Difference:
    """A key whose states differ on the two sides; the left one is `None` when added, the right one when removed."""

    key: bytes
    left: Record | None
    right: Record | None

    @property
    def kind(self) -> Kind:
        """What happened to the key from the left to the right side."""
        return "added" if self.left is None else "removed" if self.right is None else "changed"

    @classmethod
    def between(cls, key: bytes, left: Record | None, right: Record | None) -> Difference | None:
        """Return the difference between two states of a key; `None` if they are equal (`are_same`)."""
        return None if are_same(left, right) else cls(key, left, right)


@attrs.frozen
class RangeEntry:
    """The entry of a range in its metarange: id, first and last key, number and logical bytes of records."""

    range_id: RangeId
    min_key: bytes
    max_key: bytes
    count: int
    size_bytes: int


@attrs.frozen
class RangeFile:
    """The file of one committed range, for readers of its format. See `CommittedView.files`.

    Attributes:
        path: its key in the object store: the path below the folder of `LocalObjects` or `s3://bucket/`.
        rows: number of records.
        size_bytes: the logical size of its records: keys, identities and data before compression.
        first_key: its first key.
        last_key: its last key.
    """

    path: str
    rows: int
    size_bytes: int
    first_key: bytes
    last_key: bytes


@attrs.frozen(kw_only=True)
class Applied(Printed):
    """The result and the counts of an apply or a merge, against its base.

    Attributes:
        metarange_id: the result; the base's id without changes.
        added: keys that the base does not have.
        changed: keys whose identity changed.
        removed: keys that only the base has.
        ranges_reused: ranges of the base taken over unread.
        ranges_read: ranges of the base that were opened.
        ranges_written: ranges of the result that the base did not have.
        bytes_read: logical bytes of the ranges opened.
        bytes_written: logical bytes of the ranges written.
    """

    metarange_id: MetaRangeId
    added: int = 0
    changed: int = 0
    removed: int = 0
    ranges_reused: int = 0
    ranges_read: int = 0
    ranges_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    @property
    def changes(self) -> int:
        """Number of changed keys; 0: the result has the content of the base."""
        return self.added + self.changed + self.removed


@attrs.frozen(kw_only=True)
class LiveMetaRanges:
    """The metaranges that a garbage collection keeps: those of HEADs and compactions, and of earlier commits.

    If a needed one cannot be read, nothing is deleted. One of the history may be missing: an earlier collection may
    have deleted some of the ancestors of a commit that became reachable again.
    """

    needed: frozenset[MetaRangeId] = frozenset()
    history: frozenset[MetaRangeId] = frozenset()


@attrs.frozen(kw_only=True)
class Collected(Printed):
    """The counts of a garbage collection of ranges and metaranges.

    Attributes:
        metaranges_deleted: metarange files deleted.
        ranges_deleted: range files deleted.
        bytes_freed: the lengths of those files.
        live: files that a live metarange needs.
        live_bytes: the lengths of those files.
        young: unreachable files that are younger than the grace period, reused within it, or another collection's.
        young_bytes: the lengths of those files.
    """

    metaranges_deleted: int = 0
    ranges_deleted: int = 0
    bytes_freed: int = 0
    live: int = 0
    live_bytes: int = 0
    young: int = 0
    young_bytes: int = 0


def check_key(key: bytes) -> None:
    """Validate the key of a record: 1 to `MAX_KEY_BYTES` bytes, any bytes."""
    if not isinstance(key, bytes):
        raise InvalidInput(f"a key is bytes, found {type(key).__name__}")
    if not 1 <= len(key) <= MAX_KEY_BYTES:
        raise InvalidInput(f"a key has 1 to {MAX_KEY_BYTES:,} bytes, found {len(key):,}")


def checked_keys(keys: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return the distinct keys of one call. Checks each, and their number."""
    given = tuple(keys)
    if len(given) > MAX_BATCH_KEYS:
        raise InvalidInput(f"{len(given)} keys were given; the limit of a call is {MAX_BATCH_KEYS}; split them")
    for key in given:
        check_key(key)
    return tuple(dict.fromkeys(given))
