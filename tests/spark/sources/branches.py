# SPDX-License-Identifier: Apache-2.0
"""Branches for the Spark tests, and what their rows have to be, told key by key by the repository's own reads."""

from __future__ import annotations

from typing import Any

from compactlib.staging import Record, Repository
from compactlib.staging.operations.branch_view import BranchView


def seal(repo: Repository, branch: str) -> None:
    """Leave the staging token to the sealed ones, as a commit or a compaction that died has done."""
    token = repo.context.tokens.issue(branch)
    repo.context.branches.update(branch, lambda record: record.sealed_with(token))


def row_of(key: bytes, record: Record | None, state: str) -> dict[str, Any]:
    """A row with all columns; of a tombstone if there is no record."""
    return {"key": key, "identity": None if record is None else record.identity,
            "length": None if record is None else len(record.data), "state": state, "deleted": record is None,
            "value": None if record is None else record.data}


def expected_rows(repo: Repository, branch: str) -> list[dict[str, Any]]:
    """Every row, tombstones included: the branch's own listing and one look at each key; states from one read each."""
    context = repo.context
    view = BranchView.of(context, branch, context.branches.read(branch).record)
    keys = {entry.key for entry in repo.branch(branch).entries()} | {key for key, _ in view.staged()}
    rows = []
    for key in sorted(keys):
        found = view.find(key)
        assert found.layer is not None
        if found.staged is None:
            head = context.committed.get(view.head, key)
            assert found.record is not None
            state = "committed" if head is not None and head.identity == found.record.identity else "compacted"
        else:
            state = "staged" if found.layer == 0 else "sealed"
        rows.append(row_of(key, found.record, state))
    return rows
