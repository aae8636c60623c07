# SPDX-License-Identifier: Apache-2.0
"""A host's own `CommandLog`: a group of nodes that pysyncobj replicates. `scheduler_group.py` runs a scheduler on it.

Every node has the whole log and a state machine of its own. The leader takes commands; a command's index is that of its
Raft entry, its time travels in the command. Its term is the highest that a command has carried so far, which is a
function of the log alone, and so the same on every node.

A command that was answered is in the memory of a majority of nodes. With a `folder` each node also keeps a journal, and
pysyncobj syncs it once a second: a power failure of a majority at once can take back the last second. Messages between
nodes are pickles, which run code: use loopback addresses, or give a `password`.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs
from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, SyncObjConsumer, replicated

from compactlib.clock import Clock, SystemClock
from compactlib.commandlog import Command, CommandMachine, NoAnswer, NotLeader, NotStarted
from compactlib.errors import Busy, Closed, CompactlibError, InvalidInput

_REFUSED = frozenset({FAIL_REASON.MISSING_LEADER, FAIL_REASON.NOT_LEADER, FAIL_REASON.REQUEST_DENIED,
                      FAIL_REASON.DISCARDED})
_REASONS = {value: name.lower().replace("_", " ") for name, value in vars(FAIL_REASON).items() if name.isupper()}


class DumpableMachine(CommandMachine, Protocol):
    """A state machine that can be sent to another node."""

    def dump(self) -> bytes:
        """The whole state."""

    def load(self, data: bytes) -> None:
        """Become the state that gave these bytes."""


@attrs.frozen
class _Answer:
    """The machine's answer or exception; pysyncobj would apply an entry that raises again and again."""

    value: Any = None
    error: BaseException | None = None


class _Replica(SyncObjConsumer):  # type: ignore[misc]
    """What pysyncobj drives on every node, in its own thread."""

    def __init__(self, log: RaftCommandLog, machine: DumpableMachine) -> None:
        super().__init__()
        self._log = log
        self.machine = machine
        self.term = 0

    @replicated  # type: ignore[untyped-decorator]
    def carry(self, ticket: tuple[str, int], term: int, time: float, payload: bytes | None) -> _Answer:
        """Apply one command. Without a payload, it is a place in the log where the proposer decides on one."""
        self.term = max(self.term, term)
        command = Command(self._syncObj.raftLastApplied + 1, self.term, time)
        if self._log.last_error is not None:
            # The machine may have done half of a command: the commands after it are for a machine that is restored.
            return _Answer(error=self._log.last_error)
        try:
            if payload is None:
                return _Answer(self._log.decided_at(ticket, command))
            return _Answer(self.machine.apply(command, payload))
        except BaseException as error:
            if payload is not None:
                self._log.break_at(command.index, f"the state machine raised {error!r}", error)
            return _Answer(error=error)

    def _serialize(self) -> tuple[int, bytes]:
        if self._log.last_error is not None:
            # Neither this node nor another may begin with the state after half a command.
            raise self._log.last_error
        return self.term, self.machine.dump()

    def _deserialize(self, data: tuple[int, bytes]) -> None:
        try:
            self.term, dumped = data
            self.machine.load(dumped)
        except Exception as error:
            self._log.break_at(self.machine.applied_index, f"a snapshot could not be loaded: {error!r}", error)
            raise


class RaftCommandLog:
    """A `CommandLog` on one node of a group. Nothing is opened before `start`; then a thread of pysyncobj runs.

    Other nodes than the leader refuse commands with `NotLeader`, which names it. A node whose state machine has failed
    leaves the group until it is closed and started again.

    Args:
        address: this node's `"host:port"`.
        peers: the other nodes' addresses.
        folder: where this node keeps its journal and its snapshot. `None`: in memory only.
        password: encrypts the messages between nodes; the same everywhere.
        wait_seconds: how long a command is waited for.
        clock: gives the commands that are proposed here their time.
        settings: further settings of `pysyncobj.SyncObjConf`, by name.
    """

    def __init__(self, address: str, peers: Sequence[str], *, folder: Path | None = None, password: str | None = None,
                 wait_seconds: float = 10.0, clock: Clock | None = None, **settings: Any) -> None:
        self._address = address
        self._peers = list(peers)
        self._folder = folder
        self._password = password
        self._wait_seconds = wait_seconds
        self._clock: Clock = SystemClock() if clock is None else clock
        self._settings = settings
        # Each life of a node counts its tickets from 1 on.
        self._run = uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self._deciders: dict[int, Callable[[Command], bytes | None]] = {}
        self._node: Any = None
        self._replica: _Replica | None = None
        self._broken: tuple[int, str, BaseException] | None = None
        self._closed = False

    def start(self, machine: CommandMachine) -> None:
        """Start the node; the machine, which is empty, gets the commands in pysyncobj's thread."""
        if not hasattr(machine, "dump") or machine.applied_index or self._node is not None:
            raise InvalidInput(f"a group's state machine begins empty, is started once and has dump() and load(); "
                               f"{type(machine).__name__} stands at command {machine.applied_index}")
        chosen: dict[str, Any] = {
            # A command must not be kept until there is a leader: its proposer has given up by then.
            "commandsWaitLeader": False,
            # Entries are sent at once, and waited for in small steps.
            "appendEntriesUseBatch": False, "autoTickPeriod": 0.01,
            # A fork of a process with threads and locks is asking for trouble.
            "useFork": False, "password": self._password,
        }
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            chosen |= {"journalFile": str(self._folder / "journal"), "fullDumpFile": str(self._folder / "snapshot")}
        self._replica = _Replica(self, machine)  # type: ignore[arg-type]
        self._node = SyncObj(self._address, self._peers, SyncObjConf(**{**chosen, **self._settings}),
                             consumers=[self._replica])

    def propose(self, payload: bytes) -> Any:
        """Replicate one command, and return the machine's answer."""
        return self._carry(payload, (self._run, next(self._numbers)))

    def decide(self, make: Callable[[Command], bytes | None]) -> Any:
        """Call `make` at the command's place in the log, in pysyncobj's thread, and propose the command it returns."""
        number = next(self._numbers)
        self._deciders[number] = make
        try:
            payload = self._carry(None, (self._run, number))
        finally:
            self._deciders.pop(number, None)
        return None if payload is None else self.propose(payload)

    def decided_at(self, ticket: tuple[str, int], command: Command) -> bytes | None:
        """Return the command decided on at this place; `None` on the nodes that did not ask for the place."""
        run, number = ticket
        make = self._deciders.pop(number, None) if run == self._run else None
        return None if make is None else make(command)

    def _carry(self, payload: bytes | None, ticket: tuple[str, int]) -> Any:
        node, replica = self._require_started()
        if self._thread() is threading.current_thread():
            raise Busy("the log was called from within one of its commands; call it when that has returned")
        if not self.is_leader:
            raise NotLeader(leader=self.leader)
        answered = threading.Event()
        found: list[Any] = []

        def take(answer: _Answer | None, reason: int) -> None:
            found[:] = [answer, reason]
            answered.set()

        replica.carry(ticket, node.raftCurrentTerm, self._clock.now(), payload, callback=take)
        if not answered.wait(self._wait_seconds):
            raise NoAnswer(waited_seconds=self._wait_seconds, reason="a majority of nodes did not answer")
        answer, reason = found
        if reason != FAIL_REASON.SUCCESS:
            raise self._refusal(reason)
        if answer.error is not None:
            raise (self._is_broken() or answer.error) from answer.error
        return answer.value

    def _refusal(self, reason: int) -> CompactlibError:
        if reason in _REFUSED:
            return NotLeader(leader=self.leader)
        if reason == FAIL_REASON.QUEUE_FULL:
            return Busy("too many commands are waiting to be replicated; wait and try again")
        return NoAnswer(waited_seconds=0.0, reason=_REASONS.get(reason, f"reason {reason}"))

    @property
    def is_leader(self) -> bool:
        """Whether this node takes commands, as far as it knows."""
        return (self._node is not None and not self._closed and self._broken is None
                and bool(self._node._isLeader()))

    @property
    def leader(self) -> str:
        """Return the leader's address, as far as this node knows; `""` if it knows no leader."""
        found = None if self._node is None or self._closed else self._node._getLeader()
        return "" if found is None else str(found)

    @property
    def term(self) -> int:
        """The term of this node's last command."""
        return 0 if self._replica is None else self._replica.term

    @property
    def last_index(self) -> int:
        """The index of the last entry that this node has applied."""
        return 0 if self._node is None else int(self._node.raftLastApplied)

    @property
    def last_error(self) -> BaseException | None:
        """The state machine's exception in pysyncobj's thread; `None` without one."""
        return None if self._broken is None else self._broken[2]

    @property
    def failures(self) -> int:
        """How often the state machine has raised."""
        return int(self._broken is not None)

    def compact(self, index: int) -> None:
        """Have pysyncobj write a snapshot of its own, and forget the entries that it covers."""
        self._require_started()[0].forceLogCompaction()

    def close(self) -> None:
        """Stop the node; the rest of the group continues."""
        if self._node is not None and not self._closed:
            self._node.destroy_synchronous()
        self._closed = True

    def __enter__(self) -> RaftCommandLog:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _require_started(self) -> tuple[Any, _Replica]:
        broken = self._is_broken()
        if broken is not None:
            raise broken from self.last_error
        if self._closed:
            raise Closed("the log was closed; open it again")
        if self._node is None or self._replica is None:
            raise NotStarted("this log has no state machine yet; call start() first")
        return self._node, self._replica

    def _thread(self) -> threading.Thread | None:
        """pysyncobj's, in which the state machine is called."""
        return getattr(self._node, "_SyncObj__thread", None)

    def break_at(self, index: int, cause: str, error: BaseException) -> None:
        """Leave the group: another node may lead then, one that takes commands."""
        if self._broken is None:
            self._broken = index, cause, error
        if self._node is not None:
            self._node.destroy()

    def _is_broken(self) -> Closed | None:
        """A new one for each receiver."""
        if self._broken is None:
            return None
        index, cause, _ = self._broken
        return Closed(f"this node has left the group at command {index}: {cause}; close it and start it again")
