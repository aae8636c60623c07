# SPDX-License-Identifier: Apache-2.0
"""The commands that look at a blob store: `inspect`, `plan`, `why`, `verify`. They take no lock and change nothing.

A store is compacted by its owner, who alone knows how long deletes are kept: that is not written in the store.
"""

from __future__ import annotations

from typing import Any

from compactlib.app.terminal import print_json, show_left, show_table, show_verified, waiting
from compactlib.blobstore import (
    BlobPlan,
    BlobPolicy,
    BlobReader,
    BlobStoreConfig,
    CompactAll,
    CostBenefit,
    Greedy,
    StatsBased,
)

POLICIES: tuple[BlobPolicy, ...] = (StatsBased(), Greedy(), CostBenefit(), CompactAll())
"""The policies that a command line can name, with their default settings; the first is the default."""


def inspect(folder: str, *, as_json: bool) -> int:
    """Print what lies in a store; returns the exit code."""
    with BlobReader(folder) as reader:
        status, view, damage = reader.status(), reader.view(), [str(each) for each in reader.damage]
    if as_json:
        print_json({"folder": folder, "store": status.to_dicts()[0], "segments": view.to_dicts(), "damage": damage})
        return 0
    print(repr(status).strip("<>").removeprefix("ReaderStatus: "))
    show_table(view.table())
    for each in damage:
        print(f"damaged: {each}")
    return 0


def plan(folder: str, *, policy: str | None, retention_seconds: float | None, as_json: bool) -> int:
    """Print what a compaction would do now; returns the exit code."""
    made = _planned(folder, policy, retention_seconds)
    if as_json:
        print_json(made.to_dicts())
    else:
        show_table(made.table())
    return 0


def why(folder: str, *, policy: str | None, retention_seconds: float | None, as_json: bool) -> int:
    """Print why a compaction would do what it would do now, or nothing; returns the exit code."""
    made = _planned(folder, policy, retention_seconds)
    left: dict[str, list[str]] = {}
    for each in made.left:
        left.setdefault(each.why, []).append(str(each.name))
    if as_json:
        print_json({"folder": folder, "is_empty": made.is_empty, "policy": made.policy.name, "why": made.why,
                    "taken": [str(name) for name in made.names], "left": left})
        return 0
    print(repr(made).strip("<>").removeprefix("BlobPlan: "))
    show_left(left)
    return 0


def _planned(folder: str, policy: str | None, retention_seconds: float | None) -> BlobPlan:
    chosen = POLICIES[0] if policy is None else {each.name: each for each in POLICIES}[policy]
    settings: dict[str, Any] = {} if retention_seconds is None else {"deleted_retention_seconds": retention_seconds}
    with BlobReader(folder, BlobStoreConfig(**settings), policy=chosen) as reader:
        return reader.plan()


def verify(folder: str, *, as_json: bool) -> int:
    """Read everything in a store, and print what is damaged; returns the exit code: 1 if anything is."""
    with BlobReader(folder) as reader, waiting("verifying"):
        report = reader.verify()
    return show_verified(folder, report, "records", as_json=as_json)
