# SPDX-License-Identifier: Apache-2.0
"""`examples/raft_command_log.py`: a host's own command log keeps the promises of `CommandLog`."""

from __future__ import annotations

import gc
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactlib.commandlog import Command, NotLeader, NotStarted
from compactlib.errors import Closed
from examples.raft_command_log import RaftCommandLog
from examples.scheduler_group import QUICK
from tests.harness.addresses import free_addresses

# pysyncobj leaves files for the garbage collector to close.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    yield
    gc.collect()


class Payloads:
    """A state machine that keeps its commands, and fails at one of them."""

    def __init__(self) -> None:
        self.applied_index = 0
        self.payloads: list[bytes] = []

    def apply(self, command: Command, payload: bytes) -> tuple[int, int]:
        if payload == b"fail":
            raise ZeroDivisionError
        self.applied_index = command.index
        self.payloads.append(payload)
        return command.index, command.term

    def dump(self) -> bytes:
        return pickle.dumps((self.applied_index, self.payloads))

    def load(self, data: bytes) -> None:
        self.applied_index, self.payloads = pickle.loads(data)


def lead(log: RaftCommandLog) -> None:
    while not log.is_leader:
        threading.Event().wait(0.005)


def test_commands_survive_the_node(tmp_path: Path) -> None:
    [address] = free_addresses(1)
    for life in (1, 2):
        machine = Payloads()
        with RaftCommandLog(address, [], folder=tmp_path / "node", **QUICK) as log:
            log.start(machine)
            lead(log)
            index, term = log.propose(b"%d" % life)
            assert log.decide(lambda command: b"decided at %d" % command.index)[0] > index
            assert log.decide(lambda command: None) is None
            assert (log.term, log.last_index >= index) == (term, True)
        assert [each.split()[0] for each in machine.payloads] == [b"1", b"decided", b"2", b"decided"][:2 * life]


def test_a_node_whose_machine_fails_takes_no_commands() -> None:
    [address] = free_addresses(1)
    with RaftCommandLog(address, [], **QUICK) as log:
        with pytest.raises(NotStarted):
            log.propose(b"x")
        log.start(Payloads())
        lead(log)
        for payload in (b"fail", b"x"):
            with pytest.raises(Closed, match="the state machine raised ZeroDivisionError"):
                log.propose(payload)
        assert isinstance(log.last_error, ZeroDivisionError)


def test_one_of_two_nodes_is_no_majority() -> None:
    one, other = free_addresses(2)
    with RaftCommandLog(one, [other], **QUICK) as log:
        log.start(Payloads())
        with pytest.raises(NotLeader, match="no leader is known"):
            log.propose(b"x")
