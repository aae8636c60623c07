# SPDX-License-Identifier: Apache-2.0
"""What is given to the scheduler's face of another type than it asks for is `InvalidInput`, never a bare error."""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import pytest

from compactlib.errors import InvalidInput
from compactlib.kv import MemoryStore
from compactlib.scheduler import (
    BlockMeta,
    ByPriority,
    Command,
    FairTenants,
    FileFence,
    JobPlan,
    KVFence,
    MemoryFence,
    PollRequest,
    SchedulerService,
    SealedPolls,
    SmallestFirst,
    StoredScheduler,
    Tick,
    TokenFence,
    Worker,
    WorkerOptions,
)
from compactlib.scheduler.fences.token import TokenSealer
from compactlib.scheduler.model.values import BlockTombstones, ShardTombstone
from compactlib.scheduler.persistence.codec import decode_command, decode_message, encode_command, encode_message
from compactlib.scheduler.queue.metadata_index import MetadataIndex
from compactlib.scheduler.queue.tombstones import Tombstones
from compactlib.scheduler.workers.running_job import output_block_id
from tests.harness.misfits import Calls, misfits, public_calls
from tests.scheduler.workers.test_scheduler_worker import Desk, nothing

BLOCK = BlockMeta(id="a", tenant="A", shard=1, level=0)
COMMAND = Command(1, 1, 0.0)
PLAN = JobPlan(name="j", tenant="A", shard=1, compaction_level=0, source_blocks=("a",))
DEAD = BlockTombstones(name="t", tenant="A", shard=1, level=0, blocks=("x",))
SPAN = ShardTombstone(name="s", tenant="A", shard=1, timestamp=0.0, duration=5.0)
KEYS = {"a": b"sixteen bytes or more"}
GUARDED: Calls = {"admit": ("r", 1), "commit": ("r", 1, b"v"), "committed": ("r",), "raise_floor": (1,),
                  "guard": ("r", 1)}


def stored() -> StoredScheduler:
    return StoredScheduler(MemoryStore())


def folder() -> str:
    path = tempfile.mkdtemp(prefix="compactlib-misfits-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


FACE: list[tuple[Callable[[], Any], Calls]] = [
    (SchedulerService, {"prepare": (COMMAND, PollRequest()), "apply": (COMMAND, Tick()),
                        "poll": (COMMAND, PollRequest()), "jobs": (0.0,), "table": (0.0,), "job": ("n",),
                        "stats": (0.0,)}),
    (stored, {"poll": (PollRequest(),), "apply": (Tick(),), "add_blocks": ((BLOCK,),), "look": (lambda service: 1,)}),
    (lambda: TokenSealer(KEYS), {"seal": ("j", 1), "is_genuine": ("j", 1, "a.b")}),
    (lambda: SealedPolls(stored(), TokenSealer(KEYS)), {"poll": (PollRequest(),)}),
    (MemoryFence, GUARDED),
    (lambda: FileFence(folder()), GUARDED),
    (lambda: KVFence(MemoryStore()), {name: fine for name, fine in GUARDED.items() if name != "guard"}),
    (MetadataIndex, {"get": ("A", 1, "a"), "find": ("A", 1, ("a",)), "missing": ("A", 1, ("a",)),
                     "add": (BLOCK, None), "drop": (SPAN,),
                     "remove": ("A", 1, ("a",)), "replace": ("A", 1, ("a",), (BLOCK,)), "blocks": (),
                     "expired": (1.0,), "restore_dropped_until": ({},)}),
    (Tombstones, {"add": (COMMAND, DEAD), "covers": (BLOCK,), "exists": ("A", 1, "a"), "due": (0.0, 1),
                  "lease": ("t", 1.0), "confirm": ("t",), "restore": ((),), "cut": (0.0, 1.0)}),
    (lambda: Worker(Desk(), nothing), {"stop": ()}),
]
FUNCTIONS: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (decode_command, (b"x",)), (decode_message, (b"x",)), (encode_command, (COMMAND, Tick())),
    (encode_message, (Tick(),)), (output_block_id, (PLAN, 1)), (SchedulerService, (None,)),
    (StoredScheduler, (MemoryStore(),)), (Worker, (Desk(), nothing)), (WorkerOptions, ()), (TokenSealer, (KEYS,)),
    (SealedPolls, (Desk(), TokenSealer(KEYS))), (MemoryFence, ()), (FileFence, (folder(),)),
    (KVFence, (MemoryStore(),)), (TokenFence, (MemoryFence(), "r", 1)), (MetadataIndex, ()), (Tombstones, ()),
    (FairTenants, ()), (ByPriority, ()), (SmallestFirst, ())]


@pytest.mark.parametrize(("make", "calls"), FACE, ids=lambda value: getattr(value, "__name__", None))
def test_a_method_that_is_given_something_else_says_so(make: Callable[[], Any], calls: Calls) -> None:
    assert list(misfits(make, calls)) == []
    assert set(public_calls(type(make()))) <= set(calls), "a public method that is not walked"


@pytest.mark.parametrize(("call", "fine"), FUNCTIONS, ids=lambda value: getattr(value, "__name__", None))
def test_a_function_that_is_given_something_else_says_so(call: Callable[..., Any], fine: tuple[Any, ...]) -> None:
    module = sys.modules[call.__module__]
    assert list(misfits(lambda: module, {call.__name__: fine})) == []


def test_the_message_names_the_argument_what_was_given_and_what_is_wanted() -> None:
    strange: Any = 7
    with pytest.raises(InvalidInput, match=r"new_blocks is \[7\]; give Iterable\[BlockMeta\]"):
        MetadataIndex().replace("A", 1, (), [strange])
    with pytest.raises(InvalidInput, match=r"kv is 7; give KVStore"):
        StoredScheduler(strange)
