# SPDX-License-Identifier: Apache-2.0
"""Three nodes in three processes on loopback: the leader is killed, jobs go on, none is completed twice."""

from __future__ import annotations

import contextlib
import gc
import json
import pickle
import random
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.clock import ManualClock
from compactlib.errors import ClockJumped, Closed, InvalidInput
from compactlib.files import LocalFiles
from compactlib.hosting import LogBroken, NotLeader, NotStarted, RaftCommandLog, SchedulerMachine
from compactlib.scheduler import AddBlocks, Command, Configure, PollRequest, PollResponse
from compactlib.scheduler.persistence.codec import RecordKind, decode_message, decode_record, encode_message
from compactlib.scheduler.persistence.plain import from_plain
from tests.harness.forks import in_a_fork
from tests.hosting.machines import Journal
from tests.hosting.raft_node import QUICK
from tests.hosting.workload import CONFIG, PlainWorker, blocks
from tests.raftlog.wrapped_files import WatchedFiles

# Not ours to mend: pysyncobj leaves files for the garbage collector to close.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """What it leaves is collected while that is ignored, and not in a test of somebody else."""
    yield
    gc.collect()


def free_addresses(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return addresses


class Unreachable(Exception):
    """The node is gone, or did not carry the request out, or it is not known."""


class Node:
    """One process of the group."""

    def __init__(self, address: str, peers: list[str], folder: Path) -> None:
        command = [sys.executable, "-W", "error", "-m", "tests.hosting.raft_node", address, ",".join(peers),
                   str(folder)]
        self.address = address
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, request: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(request + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError:
            line = ""
        if not line:
            raise Unreachable(f"{self.address} is gone")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            assert reply["error"] in ("NotLeader", "NoAnswer", "PollAgain", "Busy"), reply
            raise Unreachable(f"{self.address}: {reply['error']}")
        return reply

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.end()

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


def rows_of(dumped: str) -> list[Any]:
    """A dump as rows, which say where two of them differ."""
    rows = decode_record(bytes.fromhex(dumped), RecordKind.STATE, "a dump")
    assert isinstance(rows, list)
    return rows


class Group:
    """The nodes; a `Scheduler` that finds the leader."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.addresses = free_addresses(3)
        self.nodes = {address: self.started(address) for address in self.addresses}

    def started(self, address: str) -> Node:
        peers = [other for other in self.addresses if other != address]
        return Node(address, peers, self.folder / address.rpartition(":")[2])

    def leader(self) -> Node:
        return next(node for _ in range(10_000) for node in self.nodes.values() if self.leads(node))

    @staticmethod
    def leads(node: Node) -> bool:
        threading.Event().wait(0.005)
        return bool(node.ask("status")["leads"])

    def request(self, text: str) -> dict[str, Any]:
        """Ask whoever leads, again and again; a request may be carried out more than once."""
        for _ in range(1000):
            try:
                return self.leader().ask(text)
            except Unreachable:
                pass
        raise AssertionError(f"nobody carried out {text:.40}")

    def poll(self, request: PollRequest) -> PollResponse:
        reply = decode_message(bytes.fromhex(self.request("poll " + encode_message(request).hex())["response"]))
        assert isinstance(reply, PollResponse)
        return reply

    def dumps(self) -> list[str]:
        """What each node's machine holds, once all have applied the same and nothing more comes."""
        before: list[int] = []
        for _ in range(200):
            # Longer than it takes until followers hear of what was committed.
            threading.Event().wait(0.2)
            applied = [node.ask("status")["applied"] for node in self.nodes.values()]
            if applied == before and len(set(applied)) == 1:
                return [node.ask("dump")["dump"] for node in self.nodes.values()]
            before = applied
        raise AssertionError("the nodes do not come to the same place")


@pytest.fixture
def group(memory_path: Path) -> Iterator[Group]:
    made = Group(memory_path)
    try:
        yield made
    finally:
        for node in made.nodes.values():
            node.end()


def work(group: Group, workers: list[PlainWorker], rounds: int, last: dict[str, int], rng: random.Random) -> None:
    for _ in range(rounds):
        worker = rng.choice(workers)
        worker.poll(group)
        for name, tokens in worker.tokens.items():
            if tokens and worker.held.get(name, (None, 0))[1] == tokens[-1]:
                assert tokens[-1] >= last.get(name, 0), f"the token of {name} went back"
                last[name] = tokens[-1]


@pytest.mark.cluster
def test_the_leader_is_killed_and_jobs_go_on(group: Group) -> None:
    rng = random.Random(12)
    workers = [PlainWorker(seed, diligent=seed % 2 == 0) for seed in range(4)]
    last: dict[str, int] = {}
    terms = []
    # The leaders that follow were given other settings, and so are those who come back.
    raised = attrs.evolve(CONFIG, max_failures=CONFIG.max_failures + 2)
    group.request("configure " + encode_message(Configure(raised)).hex())
    for turn in range(2):
        reply = group.request("add " + encode_message(AddBlocks(tuple(blocks(100 * turn, 24)))).hex())
        assert reply["queued"] in (24, 0), "asked twice, if the first answer was lost"
        work(group, workers, 10, last, rng)
        leader = group.leader()
        for node in group.nodes.values():
            # Whoever answers leads; the lead may go elsewhere at any time.
            with contextlib.suppress(Unreachable):
                assert node.ask("poll " + encode_message(PollRequest()).hex())["leads"]
        terms.append(leader.ask("status")["term"])
        leader.kill()
        del group.nodes[leader.address]
        work(group, workers, 15, last, rng)
        if turn == 0:
            # What it finds in its journal and gets from the others makes it the same again, from a snapshot as well.
            group.request("compact")
        group.nodes[leader.address] = group.started(leader.address)
    terms.append(group.leader().ask("status")["term"])
    assert terms == sorted(set(terms)), "each leader has a term of its own"
    diligent = [worker for worker in workers if worker.diligent]
    work(group, diligent, 25, last, rng)
    completed = sum((worker.completed for worker in workers), Counter[str]())
    assert len(completed) >= 20
    assert set(completed.values()) == {1}
    first, *others = group.dumps()
    for other in others:
        assert rows_of(other) == rows_of(first)
    assert from_plain(rows_of(first)[0]) == raised
    for node in group.nodes.values():
        node.ask("audit")


def one_opening(address: str, folder: Path, opening: int, seen: list[tuple[Command, bytes]]
                ) -> list[tuple[Command, bytes]]:
    machine = DumpableJournal()
    with RaftCommandLog(address, [], folder=folder, **QUICK) as log:
        log.start(machine)
        eventually(lambda: log.is_leader)
        answers = [log.propose(b"%d-%d" % (opening, number)) for number in range(3)]
        decided = log.decide(lambda command: b"after %d" % len(machine.commands))
        assert log.decide(lambda command: None) is None
        with pytest.raises(ZeroDivisionError):
            log.decide(lambda command: b"%d" % (1 // 0))
        assert [payload for _, payload in answers] == [b"%d-%d" % (opening, number) for number in range(3)]
        assert decided[1] == b"after %d" % (len(seen) + 3)
        # The two places where nothing was decided are entries too.
        eventually(lambda: log.last_index == machine.applied_index + 2)
        assert machine.commands[:len(seen)] == seen
        assert [command.index for command, _ in machine.commands[len(seen):-1]] == [index for index, _ in answers]
        assert log.leader == address
        assert "leader" in repr(log)
    with pytest.raises(Closed):
        log.propose(b"x")
    return machine.commands


def test_commands_on_a_group_of_one(memory_path: Path) -> None:
    # The index is that of the Raft entry, and the same after a restart; so are term and time.
    address, = free_addresses(1)
    seen: list[tuple[Command, bytes]] = []
    for opening in range(2):
        seen = one_opening(address, memory_path / "node", opening, seen)
    assert len({command.term for command, _ in seen}) == 2


class DumpableJournal(Journal):
    def dump(self) -> bytes:
        raise AssertionError("too short to be dumped")

    def load(self, data: bytes) -> None:
        raise AssertionError


def eventually(holds: Callable[[], bool]) -> None:
    for _ in range(2000):
        if holds():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it does not come true")


def test_a_machine_that_raises_breaks_its_node(memory_path: Path) -> None:
    class Moody(DumpableJournal):
        def apply(self, command: Command, payload: bytes) -> tuple[int, bytes]:
            raise ZeroDivisionError

    address, = free_addresses(1)
    with RaftCommandLog(address, [], **QUICK) as log:
        log.start(Moody())
        eventually(lambda: log.is_leader)
        assert log.last_error is None
        raised: list[LogBroken] = []
        for _ in range(2):
            with pytest.raises(LogBroken, match="raised ZeroDivisionError") as broken:
                log.propose(b"x")
            raised.append(broken.value)
        # Threads that are told at once must not share one exception and its traceback.
        assert raised[0] is not raised[1]
        assert isinstance(log.last_error, ZeroDivisionError)


class Halting(Journal):
    """Raises once, in the middle of a command; what it dumps is what it has done of all."""

    def __init__(self, raises_at: bytes = b"") -> None:
        super().__init__()
        self.raises_at = raises_at

    def apply(self, command: Command, payload: bytes) -> tuple[int, bytes]:
        if payload == self.raises_at:
            self.commands.append((command, b"half"))
            self.raises_at = b""
            raise MemoryError
        return super().apply(command, payload)

    def dump(self) -> bytes:
        return pickle.dumps(self.commands)

    def load(self, data: bytes) -> None:
        self.commands = pickle.loads(data)


def test_a_node_whose_machine_has_failed_writes_no_snapshot_and_leaves_its_group(memory_path: Path) -> None:
    address, = free_addresses(1)
    often = {**QUICK, "logCompactionMinTime": 0.1}
    with RaftCommandLog(address, [], folder=memory_path / "node", **often) as log:
        log.start(Halting(b"second"))
        eventually(lambda: log.is_leader)
        log.propose(b"first")
        with pytest.raises(LogBroken, match="MemoryError"):
            log.propose(b"second")
        threading.Event().wait(0.5)
        assert not log.is_leader
    with RaftCommandLog(address, [], folder=memory_path / "node", **often) as log:
        machine = Halting()
        log.start(machine)
        eventually(lambda: log.is_leader and machine.payloads[-1:] == [b"second"])
        assert machine.payloads == [b"first", b"second"]
        log.propose(b"third")
        assert machine.payloads == [b"first", b"second", b"third"]


def test_whatever_a_decision_raises_the_node_goes_on_and_a_thread_that_ended_is_told(memory_path: Path) -> None:
    address, = free_addresses(1)
    with RaftCommandLog(address, [], **QUICK) as log:
        log.start(DumpableJournal())
        eventually(lambda: log.is_leader)

        def leave(command: Command) -> bytes:
            raise SystemExit(3)

        with pytest.raises(SystemExit):
            log.decide(leave)
        assert log.propose(b"x")[1] == b"x"
        assert log.last_error is None


def test_commands_are_not_stamped_by_a_clock_that_jumped() -> None:
    address, = free_addresses(1)
    clock = ManualClock(1000.0)
    seen: list[Command] = []
    with RaftCommandLog(address, [], clock=clock, **QUICK) as log:
        log.start(DumpableJournal())
        eventually(lambda: log.is_leader)
        log.propose(b"x")
        clock.set_now(90_000.0)
        with pytest.raises(ClockJumped):
            log.propose(b"x")
        clock.advance(31.0)
        log.decide(seen.append)
        assert (seen[0].appended_at, seen[0].expiry) == (90_031.0, 90_031.0)


def test_a_folder_that_is_found_is_made_durable_before_a_node_begins(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    folder.mkdir()
    address, = free_addresses(1)
    found: list[tuple[str, str]] = []
    files = WatchedFiles(lambda operation, path: found.append((operation, path)))
    with RaftCommandLog(address, [], folder=folder, files=files, **QUICK) as log:
        log.start(DumpableJournal())
    assert found == [("sync folder", str(folder)), ("sync folder", str(tmp_path))]


def test_a_folder_that_is_made_is_its_owners_alone_if_so_asked(tmp_path: Path) -> None:
    address, = free_addresses(1)
    with RaftCommandLog(address, [], folder=tmp_path / "node", files=LocalFiles(private=True), **QUICK) as log:
        log.start(DumpableJournal())
    # pysyncobj's own files have the modes that the umask leaves; nobody else comes to them.
    assert stat.S_IMODE((tmp_path / "node").stat().st_mode) == 0o700


def test_a_fork_of_a_node_is_refused_and_the_node_goes_on() -> None:
    address, = free_addresses(1)
    with RaftCommandLog(address, [], **QUICK) as log:
        log.start(DumpableJournal())
        eventually(lambda: log.is_leader)
        log.propose(b"x")

        def refused() -> bool:
            with pytest.raises(Closed):
                log.propose(b"y")
            log.close()
            return True

        assert in_a_fork(refused) is True
        with log._lock:  # noqa: SLF001 - held by a thread that a fork does not have
            assert in_a_fork(refused, hangs_after_seconds=10.0) is True
        log.propose(b"z")


def test_a_place_in_the_log_is_decided_on_by_who_asked_for_it() -> None:
    # Tickets are counted anew by each node and in each life of a node: the run's id tells them apart.
    log = RaftCommandLog("127.0.0.1:1", [])
    log._deciders[1] = lambda command: b"mine"  # noqa: SLF001
    command = Command(1, 1, 0.0)
    assert log._decided_at(("another run", 1), command).value is None  # noqa: SLF001
    assert log._decided_at((log._run, 1), command).value == b"mine"  # noqa: SLF001
    assert log._decided_at((log._run, 1), command).value is None  # noqa: SLF001


def test_wrong_use_is_named() -> None:
    one, other = free_addresses(2)
    with pytest.raises(InvalidInput, match="wait_seconds is inf"):
        RaftCommandLog(one, [other], wait_seconds=float("inf"))
    with RaftCommandLog(one, [other], **QUICK) as log:
        with pytest.raises(NotStarted):
            log.propose(b"x")
        with pytest.raises(InvalidInput, match="has no dump"):
            log.start(Journal())
        log.start(SchedulerMachine(CONFIG))
        with pytest.raises(InvalidInput, match="started before"):
            log.start(SchedulerMachine(CONFIG))
        # One of two nodes is no majority.
        with pytest.raises(NotLeader, match="none is known"):
            log.propose(b"x")
        with pytest.raises(InvalidInput, match="at most 16777216"):
            log.propose(bytes((16 << 20) + 1))
        with pytest.raises(InvalidInput, match="forget commands up to 99"):
            log.compact(99)
