# SPDX-License-Identifier: Apache-2.0
"""What a host gives to a store of another type than it asks for is an error of the library, and changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compactlib.blobstore import BlobStore
from compactlib.kv import EXISTS, KVStore, MemoryStore, SqliteStore
from compactlib.raftlog import RaftLogStore, SegmentLog
from tests.harness.misfits import Calls, misfits
from tests.staging.world import World

ENTRIES = [(index, 1, b"payload") for index in range(1, 6)]
BLOB = b"a"

KV: Calls = {"get": (b"p", b"k"), "set": (b"p", b"k", b"v"), "set_if": (b"p", b"k", b"v", None), "delete": (b"p", b"k"),
             "delete_if": (b"p", b"k", EXISTS), "scan": (b"p",), "get_many": ([(b"p", b"k")],),
             "transact": ((), (), ())}
SEGMENTS: Calls = {"append": (6, 1, b"x"), "extend": ([(6, 1, b"x")],), "read": (3,), "read_many": ([1, 2],),
                   "plan_read": ([1, 2],), "entries": (1, 2), "scan": (1, 2), "record_snapshot": (3, [1]),
                   "compact": (), "plan": (), "view": (), "verify": (), "reclaim": (), "punch_holes": ()}
RAFT: Calls = {"append": ([(6, 1, b"x")],), "append_run": (6, 1, [b"x"]), "append_entries": (5, 1, [(6, 1, b"x")]),
               "append_sparse": ([],), "snapshot": (3, [1]), "checkpoint": (3, [1], [b"state"]), "promote": (3,),
               "entries": (1, 2), "entries_after": (1,), "read": (3,), "read_many": ([1, 2],), "term_of": (1,),
               "record_hard_state": (1, "me"), "reset": (5,), "compact": (), "plan": (), "view": (), "verify": (),
               "reclaim": (), "punch_holes": ()}
BRANCH: Calls = {"get": (b"a",), "get_many": ([b"a"],), "put": (b"b", b"x"), "put_many": ({b"b": b"x"},),
                 "put_if": (b"b", b"x", None), "update": (b"b", lambda record: b"x"), "delete": (b"a",),
                 "delete_many": ([b"a"],), "delete_if": (b"a", EXISTS), "get_uncommitted": (b"a",), "commit": ("it",),
                 "merge": ("main",), "revert": ("main",), "cherry_pick": ("main",), "hard_reset": ("main",),
                 "reset_key": (b"a",), "reset_prefix": (b"a",), "list": (), "diff": (), "entries": (),
                 "differences": ()}
REPOSITORY: Calls = {"at": ("main",), "branch": ("main",), "branches": (), "commit": ("x",), "create_branch": ("b",),
                     "delete_branch": ("b",), "compact": (), "plan": (), "view": (), "verify": (), "reclaim": (),
                     "tombstones": ()}
BLOBS: Calls = {"put": (b"b", b"x"), "get": (BLOB,), "info": (BLOB,), "delete": (BLOB,), "undelete": (BLOB,),
                "ttl_update": (BLOB,), "entries_since": (), "compact": (), "plan": (), "view": (), "verify": (),
                "reclaim": (), "resume": (), "hard_delete": ()}


def kv_state(store: KVStore) -> object:
    with store.scan(b"p") as entries:
        return list(entries)


@contextlib.contextmanager
def stores(kind: str, folder: Path) -> Iterator[tuple[Any, Calls, Callable[[Any], object]]]:
    """A store with something in it, what is called, and what it holds."""
    with contextlib.ExitStack() as stack:
        if kind in ("memory", "sqlite"):
            kv = MemoryStore() if kind == "memory" else SqliteStore(folder / "kv")
            stack.callback(kv.close)
            kv.set(b"p", b"k", b"v")
            yield kv, KV, kv_state
        elif kind == "segments":
            segments = stack.enter_context(SegmentLog(folder / "log"))
            segments.extend(ENTRIES)
            yield segments, SEGMENTS, lambda log: (log.snapshot, list(log.entries()))
        elif kind == "raftlog":
            opened = stack.enter_context(RaftLogStore(folder / "logs"))
            log = opened.log("a")
            log.append(ENTRIES)
            yield log, RAFT, lambda log: list(log.entries())
        elif kind == "blobs":
            blobs = stack.enter_context(BlobStore(folder / "blobs"))
            blobs.put(BLOB, b"content")
            yield blobs, BLOBS, lambda store: (store.info(BLOB), store.info(b"b"))
        else:
            world = World()
            main = world.branch({"a": "1"})
            if kind == "branch":
                yield main, BRANCH, lambda branch: (branch.record().commit_id, list(branch.entries()))
            else:
                yield world.repo, REPOSITORY, lambda repo: [branch.name for branch in repo.branches()]


@pytest.mark.parametrize("kind", ["memory", "sqlite", "segments", "raftlog", "branch", "repository", "blobs"])
def test_what_is_given_of_another_type_is_named_and_changes_nothing(tmp_path: Path, kind: str) -> None:
    with stores(kind, tmp_path) as (store, calls, state):
        assert list(misfits(lambda: store, calls, state)) == []
