# SPDX-License-Identifier: Apache-2.0
"""What is given to the hosts' face of another type than it asks for is `InvalidInput`; calls from within are `Busy`."""

from __future__ import annotations

import asyncio
import atexit
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compactlib.errors import Busy, InvalidInput, NotFound
from compactlib.hosting import (
    LocalLog,
    RaftlogExecute,
    SchedulerHost,
    SchedulerMachine,
    SnapshotClient,
    SnapshotServer,
    SnapshotStore,
    segment_block_id,
)
from compactlib.hosting.http.application import SchedulerApplication
from compactlib.hosting.http.client import SchedulerClient
from compactlib.hosting.http.server import HttpServer
from compactlib.hosting.raftlog_execute import TheseSegments, segment_of_block
from compactlib.kv import MemoryStore
from compactlib.raftlog import SnapshotFolder
from compactlib.scheduler import BlockMeta, Command, MemoryFence, PollRequest, SchedulerConfig, SchedulerService, Tick
from compactlib.scheduler.persistence.codec import encode_message
from tests.harness.misfits import Calls, misfits, public_calls

BLOCK = BlockMeta(id="a", tenant="A", shard=1, level=0)


def folder() -> str:
    path = tempfile.mkdtemp(prefix="compactlib-hosting-misfits-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def machine() -> SchedulerMachine:
    return SchedulerMachine(SchedulerConfig())


def log() -> LocalLog:
    return LocalLog(folder())


def started() -> LocalLog:
    opened = log()
    opened.start(machine())
    return opened


FACE: list[tuple[Callable[[], Any], Calls]] = [
    (log, {"start": (machine(),)}),
    (started, {"propose": (encode_message(Tick()),), "decide": (lambda command: None,), "compact": (0,),
               "start": (machine(),)}),
    (lambda: SchedulerHost(log(), MemoryStore()), {
        "poll": (PollRequest(),), "add_blocks": ((BLOCK,),), "retain": (0.0,), "requeue": (("a",),),
        "configure": (SchedulerConfig(),),
        "look": (lambda service: 1,)}),
    (machine, {"encode": (Tick(),), "apply": (Command(1, 1, 0.0), encode_message(Tick())), "load": (b"x",),
               "prepare": (Command(1, 1, 0.0), PollRequest()), "carry_out": (Command(1, 1, 0.0), Tick()),
               "restore": (SnapshotStore(MemoryStore(), b"p"),)}),
    (lambda: SnapshotStore(MemoryStore(), b"p"), {"save": (1, b"x"), "is_due": (1, 1)}),
]
FUNCTIONS: dict[Callable[..., Any], Callable[[], tuple[Any, ...]]] = {
    LocalLog: lambda: (folder(),), SchedulerHost: lambda: (log(), MemoryStore()),
    SchedulerMachine: lambda: (SchedulerConfig(),), SnapshotStore: lambda: (MemoryStore(), b"p"),
    RaftlogExecute: lambda: ({}, MemoryFence()), segment_block_id: lambda: (1,),
    segment_of_block: lambda: ("0000000000000007",), TheseSegments: lambda: ((1,),),
    SchedulerApplication: lambda: (SchedulerHost(log()),), SchedulerClient: lambda: (["http://127.0.0.1:1"],)}


@pytest.mark.parametrize(("make", "calls"), FACE, ids=lambda value: getattr(value, "__name__", None))
def test_a_method_that_is_given_something_else_says_so(make: Callable[[], Any], calls: Calls) -> None:
    assert list(misfits(make, calls)) == []
    if make is not log:
        assert set(public_calls(type(make()))) <= set(calls), "a public method that is not walked"


@pytest.mark.parametrize("call", FUNCTIONS, ids=lambda value: value.__name__)
def test_a_function_that_is_given_something_else_says_so(call: Callable[..., Any]) -> None:
    module = sys.modules[call.__module__]
    assert list(misfits(lambda: module, {call.__name__: FUNCTIONS[call]()})) == []


def test_a_client_is_given_messages() -> None:
    with SchedulerClient(["http://127.0.0.1:1"]) as client:
        for request in (None, 5, "text", BLOCK):
            with pytest.raises(InvalidInput, match=r"request is|a PollRequest"):
                client.poll(request)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="blocks is"):
            client.add_blocks([5])  # type: ignore[list-item]


@pytest.mark.parametrize("changed", [
    {"listen": "here"}, {"listen": ("127.0.0.1", "80")}, {"tls": 5}, {"clients": 5}, {"clients": "abc"},
    {"application": 5}])
def test_an_http_server_is_given_what_it_needs(changed: dict[str, Any]) -> None:
    fine: dict[str, Any] = {"application": SchedulerApplication(SchedulerHost(log())), "listen": ("127.0.0.1", 0)}
    with pytest.raises(InvalidInput, match=next(iter(changed))):
        HttpServer(**{**fine, **changed})


@pytest.mark.parametrize("changed", [
    {"listen": "here"}, {"listen": ("127.0.0.1", "80")}, {"cluster": 5}, {"door": 5}, {"limits": 5},
    {"senders": 5}, {"senders": "abc"}])
def test_a_server_is_given_what_it_needs(changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(changed))):
        SnapshotServer(**{"listen": ("127.0.0.1", 0), **changed})


def test_one_job_is_no_list_of_jobs() -> None:
    """It would be one for each of its letters."""
    with pytest.raises(InvalidInput, match="names is 'job'; give a list"):
        SchedulerHost(log()).requeue("job")


@pytest.mark.parametrize("changed", [
    {"applied": 5}, {"term": "1"}, {"installed": None}, {"snapshots": "here"}, {"log": 5}, {"term_seen": 5}])
def test_a_server_is_given_what_a_log_needs(changed: dict[str, Any], tmp_path: Path) -> None:
    class Log:
        append_sparse = install = pin = reset = sync = print
        log_id = "log"

    server = SnapshotServer(listen=("127.0.0.1", 0))
    fine: dict[str, Any] = {"log": Log(), "snapshots": SnapshotFolder(tmp_path), "term": 1, "applied": lambda: -1,
                            "installed": lambda meta, state: None}
    with pytest.raises(InvalidInput, match=next(iter(changed))):
        server.add(**{**fine, **changed})
    server.add(**fine)
    with pytest.raises(InvalidInput, match="added before"):
        server.add(**fine)


@pytest.mark.parametrize("changed", [
    {"address": "here"}, {"term": "1"}, {"snapshots": "here"}, {"log": 5}, {"follower": 5}, {"limits": 5},
    {"max_transfers": 0}, {"max_transfers": "4"}, {"cluster": "\ud800"}])
def test_a_sender_is_given_what_it_needs(changed: dict[str, Any], tmp_path: Path) -> None:
    class Log:
        pin = print

    def send(log: Any, snapshots: Any, term: Any, address: Any = ("127.0.0.1", 1), **given: Any) -> None:
        asyncio.run(SnapshotClient(address, **given).send(log, snapshots, term=term))

    fine: dict[str, Any] = {"log": Log(), "snapshots": SnapshotFolder(tmp_path), "term": 1}
    with pytest.raises(NotFound):
        send(**fine)
    with pytest.raises(InvalidInput, match=next(iter(changed))):
        send(**{**fine, **changed})


@pytest.mark.parametrize("call", [
    lambda opened: opened.close(), lambda opened: opened.propose(encode_message(Tick())),
    lambda opened: opened.decide(lambda command: None), lambda opened: opened.compact(0),
    lambda opened: opened.audit()])
def test_a_log_is_busy_for_what_it_calls_itself(call: Callable[[LocalLog], object]) -> None:
    opened = started()

    def decide(command: Command) -> bytes:
        with pytest.raises(Busy, match="called from within"):
            call(opened)
        return encode_message(Tick())

    answers: list[object] = []
    # In a thread, so that a call that waits for itself fails the test instead of hanging it.
    deciding = threading.Thread(target=lambda: answers.append(opened.decide(decide)), daemon=True)
    deciding.start()
    deciding.join(60)
    assert len(answers) == 1
    assert opened.last_index == 2
    opened.audit()
    opened.close()


def test_a_host_is_not_closed_by_what_looks_at_it() -> None:
    host = SchedulerHost(log())

    def close(service: SchedulerService) -> None:
        with pytest.raises(Busy, match="called from within"):
            host.close()

    host.look(close)
    host.tick()
    host.close()
