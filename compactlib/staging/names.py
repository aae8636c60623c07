# SPDX-License-Identifier: Apache-2.0
"""Addresses in the key-value store, and allowed names (docs/formats/staging-records.md).

A repository has a partition for its identity, branches, commits, and drop marks. The staged entries of a token are a
partition, so that writers of different branches share none.
"""

from __future__ import annotations

import re
from typing import NewType

from compactlib.errors import InvalidInput

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
