# SPDX-License-Identifier: Apache-2.0
"""`RaftCommandLog`: a `CommandLog` over a group of nodes, replicated by pysyncobj (extra `compactlib[raft]`).

Every node has the whole log and a state machine of its own. The leader takes commands; a command's index is that of its
Raft entry (`raftLastApplied + 1` inside the applied method), its time travels in the command. Its term is the highest
that a command has carried so far, which is a function of the log alone, and so the same on every node.

What pysyncobj promises, and what not: a command that was answered is in the memory of a majority of nodes. With a
`folder` each node also keeps a journal through the page cache, which survives the process; it is synced once a second,
so a power failure of a majority at once can take back the last second. Messages between nodes are pickles, which run
code: a host that reaches a node's port runs what it likes in its process, with a `password` only if it knows that.
Without one, only loopback addresses are taken. Tried with pysyncobj 0.3.17.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import attrs

from compactlib._arguments import require_seconds, require_type
from compactlib._closing import Closing
from compactlib.clock import Clock
from compactlib.errors import Busy, Closed, CompactlibError, InvalidInput, MissingDependency
from compactlib.executors.tasks import new_attempt_id
from compactlib.files.disk import Files, LocalFiles, StrPath, local_path, make_missing_folder, sync_names
from compactlib.hosting.command_log import CommandMachine
from compactlib.hosting.errors import LogBroken, NoAnswer, NotLeader, NotStarted
from compactlib.outcome import Done, Failed, Skipped
from compactlib.runtime import SteadyClock
from compactlib.runtime.doors import require_guarded
from compactlib.scheduler.model.values import Command

try:
    from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, SyncObjConsumer, replicated
except ImportError:
    raise MissingDependency(package="pysyncobj", extra="raft", purpose="a replicated command log") from None

_LOGGER = logging.getLogger("compactlib.hosting")
_MAX_PAYLOAD_BYTES = 16 << 20
_REFUSED = frozenset({FAIL_REASON.MISSING_LEADER, FAIL_REASON.NOT_LEADER, FAIL_REASON.REQUEST_DENIED,
                      FAIL_REASON.DISCARDED})
_REASONS = {value: name.lower().replace("_", " ") for name, value in vars(FAIL_REASON).items() if name.isupper()}


class DumpableMachine(CommandMachine, Protocol):
    """A state machine that can be sent to another node."""

    def dump(self) -> bytes:
        """The whole state."""

    def load(self, data: bytes) -> None:
        """Become the state that gave these bytes."""


class _Replica(SyncObjConsumer):  # type: ignore[misc]
    """What pysyncobj drives on every node, in its own thread."""

    def __init__(self, log: RaftCommandLog, machine: DumpableMachine) -> None:
        super().__init__()
        self._log = log
        self._machine = machine
        self._term = 0

    @replicated  # type: ignore[untyped-decorator]
    def carry(self, ticket: tuple[str, int], term: int, time_ns: int, payload: bytes | None) -> Any:
        """Apply one command. Without a payload, it is a place in the log where the proposer decides on one."""
        self._term = max(self._term, term)
        command = Command(self._syncObj.raftLastApplied + 1, self._term, time_ns / 1e9)
        if self._log._broken is not None:
            # The machine may have done half of a command: what comes after that is for one that is restored.
            return _Raised(self._log._broken[2])
        # pysyncobj would apply the entry again and again if this raised, and its thread end at what is no `Exception`.
        try:
            if payload is None:
                return self._log._decided_at(ticket, command)
            return _Answer(self._machine.apply(command, payload))
        except BaseException as error:
            if payload is not None:
                self._log._break(command.index, f"the state machine raised {error!r}", error)
            return _Raised(error)

    def _serialize(self) -> tuple[int, bytes]:
        broken = self._log._is_broken()
        if broken is not None:
            # Neither this node nor another may begin with what half a command has made.
            raise broken
        return self._term, self._machine.dump()

    def _deserialize(self, data: tuple[int, bytes]) -> None:
        try:
            self._term, dumped = data
            self._machine.load(dumped)
        except Exception as error:
            self._log._break(self._machine.applied_index, f"a snapshot could not be loaded: {error!r}", error)
            raise


class _Answer:
    """What the machine returned, as opposed to an exception that was raised."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Raised:
    """What was raised instead."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class RaftCommandLog(Closing):
    """A `CommandLog` on one node of a group. Nothing is opened before `start`; then a thread of pysyncobj runs.

    Polls and other commands go to the leader; every other node refuses them with `NotLeader`, which names it. A node
    whose state machine has failed writes no snapshot and leaves the group, until it is closed and started again.

    Args:
        address: this node's `"host:port"`, to which the others connect.
        peers: the other nodes' addresses.
        folder: where this node keeps its journal and its snapshot; made if there is none. `None`: in memory only, and
            a node that was restarted gets everything from the others.
        password: encrypts the messages between nodes, with the package `cryptography`; the same everywhere. Without one
            all addresses have to be loopback's.
        insecure: other addresses without a password too: each host that reaches this node's port can run code here.
        wait_seconds: how long a command is waited for.
        clock: gives the commands that are proposed here their time, held against the monotonic clock (`SteadyClock`;
            give one of your own for other bounds, or to `accept` a jump).
        files: makes the folder.
        settings: further settings of `pysyncobj.SyncObjConf`, by name; they win over what is chosen here.
    """

    def __init__(self, address: str, peers: Sequence[str], *, folder: StrPath | None = None,
                 password: str | None = None, insecure: bool = False, wait_seconds: float = 10.0,
                 clock: Clock | None = None, files: Files | None = None, **settings: Any) -> None:
        for each in (address, *peers):
            require_guarded("a node of a group", each.rpartition(":")[0].strip("[]"), guard="password=",
                            is_guarded=bool(password), insecure=insecure)
        require_seconds("wait_seconds", wait_seconds)
        self._address = address
        self._peers = tuple(peers)
        self._folder = None if folder is None else local_path(folder)
        self._password = password
        self._wait_seconds = wait_seconds
        self._clock: SteadyClock = clock if isinstance(clock, SteadyClock) else SteadyClock(clock)
        self._files: Files = LocalFiles() if files is None else files
        self._settings = settings
        self._run = new_attempt_id()
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._deciders: dict[int, Callable[[Command], bytes | None]] = {}
        self._node: Any = None
        self._replica: _Replica | None = None
        self._broken: tuple[int, str, BaseException] | None = None
        self._failures = 0
        self._closed = False
        self._pid = os.getpid()

    def start(self, machine: CommandMachine) -> None:
        """See `CommandLog.start`: the machine gets the commands in pysyncobj's thread, as they are found committed.

        Raises:
            InvalidInput: the machine is not empty, or cannot `dump` and `load`; or it was started before.
            StorageError: the folder cannot be made.
        """
        if not hasattr(machine, "dump") or not hasattr(machine, "load") or machine.applied_index:
            raise InvalidInput(f"a group's state machine begins empty and can be sent to other nodes; "
                               f"{type(machine).__name__} stands at command {machine.applied_index}, and "
                               f"{'has' if hasattr(machine, 'dump') else 'has no'} dump()")
        if self._node is not None:
            raise InvalidInput("this log was started before; open another one for another state machine")
        chosen: dict[str, Any] = {
            # A command must not be kept until there is a leader: its proposer has given up by then.
            "commandsWaitLeader": False,
            # Entries are sent at once, and waited for in small steps.
            "appendEntriesUseBatch": False, "autoTickPeriod": 0.01,
            # A fork of a process with threads and locks is asking for trouble.
            "useFork": False, "password": self._password,
        }
        if self._folder is not None:
            make_missing_folder(self._files, self._folder)
            # Also if it was there: its maker may have been killed before this.
            sync_names(self._files, self._folder)
            chosen["journalFile"] = os.path.join(self._folder, "journal")
            chosen["fullDumpFile"] = os.path.join(self._folder, "snapshot")
        conf = SyncObjConf(**{**chosen, **self._settings})
        self._replica = _Replica(self, machine)  # type: ignore[arg-type]
        self._node = SyncObj(self._address, list(self._peers), conf, consumers=[self._replica])
        if self._broken is not None:
            self._node.destroy()

    # -- commands

    def propose(self, payload: bytes) -> Any:
        """See `CommandLog.propose`. One round to a majority of nodes.

        Raises:
            NotLeader: this node does not lead, or lost the lead before the command was in the log.
            NoAnswer: there was no answer in time, or the lead went elsewhere meanwhile.
            ClockJumped: the clock is off by more than its bound; nothing was proposed.
            Busy: too many commands are waiting.
            LogBroken: this node's state machine has failed.
        """
        require_type("a command", payload, bytes, "bytes")
        if len(payload) > _MAX_PAYLOAD_BYTES:
            raise InvalidInput(f"a command of {len(payload)} bytes was given, this log takes at most "
                               f"{_MAX_PAYLOAD_BYTES}; split it")
        return self._carry(payload, (self._run, next(self._numbers)))

    def decide(self, make: Callable[[Command], bytes | None]) -> Any:
        """See `CommandLog.decide`: `make` runs in pysyncobj's thread. Two rounds to a majority, one for no command."""
        number = next(self._numbers)
        self._deciders[number] = make
        try:
            payload = self._carry(None, (self._run, number))
        finally:
            self._deciders.pop(number, None)
        return None if payload is None else self.propose(payload)

    def _decided_at(self, ticket: tuple[str, int], command: Command) -> _Answer:
        run, number = ticket
        make = self._deciders.pop(number, None) if run == self._run else None
        return _Answer(None if make is None else make(attrs.evolve(command, expiry=self._clock.expiry())))

    def _carry(self, payload: bytes | None, ticket: tuple[str, int]) -> Any:
        node, replica = self._require_started()
        self._require_outside()
        if not node._isLeader():
            raise NotLeader(leader=self.leader)
        answered = threading.Event()
        answer: list[Any] = []

        def take(result: Any, reason: int) -> None:
            answer[:] = [result, reason]
            answered.set()

        # Refused while a jump is in doubt, but for a place in the log, where a proposer may only look.
        time_ns = round((self._clock.steady() if payload is None else self._clock.now()) * 1e9)
        replica.carry(ticket, node.raftCurrentTerm, time_ns, payload, callback=take)
        if not answered.wait(self._wait_seconds):
            raise NoAnswer(waited_seconds=self._wait_seconds, reason="a majority of nodes did not answer")
        result, reason = answer
        if reason != FAIL_REASON.SUCCESS:
            raise self._named(reason)
        if isinstance(result, _Raised):
            raise (self._is_broken() or result.error) from result.error
        return result.value

    def _named(self, reason: int) -> CompactlibError:
        if reason in _REFUSED:
            return NotLeader(leader=self.leader)
        if reason == FAIL_REASON.QUEUE_FULL:
            return Busy("too many commands are waiting to be replicated; wait and try again")
        return NoAnswer(waited_seconds=0.0, reason=_REASONS.get(reason, f"reason {reason}"))

    # -- the group

    @property
    def is_leader(self) -> bool:
        """Whether this node takes commands, as far as it knows."""
        return (self._node is not None and not self._closed and self._broken is None
                and bool(self._node._isLeader()))

    @property
    def leader(self) -> str:
        """The leader's address, as far as this node knows; `""` if there is none."""
        found = None if self._node is None or self._closed else self._node._getLeader()
        return "" if found is None else str(found)

    @property
    def term(self) -> int:
        """The term of this node's last command."""
        return 0 if self._replica is None else self._replica._term

    @property
    def last_index(self) -> int:
        """The index of the last entry that this node has applied."""
        return 0 if self._node is None else int(self._node.raftLastApplied)

    def compact(self, index: int) -> Done[Any] | Skipped | Failed:
        """See `CommandLog.compact`: pysyncobj writes a snapshot of its own and forgets what it covers, soon."""
        node, _ = self._require_started()
        if index > self.last_index:
            raise InvalidInput(f"the log is to forget commands up to {index}, the last one is {self.last_index}")
        node.forceLogCompaction()
        return Done(index)

    def close(self) -> None:
        """See `CommandLog.close`. The rest of the group goes on without this node.

        Raises:
            Busy: called from within a command; nothing was done.
        """
        if self._pid != os.getpid():
            return
        self._require_outside()
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._node is not None:
            self._node.destroy_synchronous()

    @property
    def last_error(self) -> BaseException | None:
        """What broke this node: raised by its state machine, in pysyncobj's thread; `None` if nothing did."""
        return None if self._broken is None else self._broken[2]

    @property
    def failures(self) -> int:
        """How often its state machine has raised."""
        return self._failures

    def __repr__(self) -> str:
        return (f"RaftCommandLog({self._address!r}, {len(self._peers)} peers, "
                f"{'leader' if self.is_leader else 'follower'}, last {self.last_index})")

    def _require_started(self) -> tuple[Any, _Replica]:
        broken = self._is_broken()
        if broken is not None:
            raise broken from self.last_error
        if self._pid != os.getpid():
            raise Closed(f"the log of {self._address} was started by process {self._pid}, and this is process "
                         f"{os.getpid()}; a fork has none of its threads, start one here when it is closed there")
        if self._closed:
            raise Closed("the log was closed; open it again")
        if self._node is None or self._replica is None:
            raise NotStarted("this log has no state machine yet; call start() first")
        return self._node, self._replica

    def _thread(self) -> threading.Thread | None:
        """pysyncobj's, in which the state machine and what decides on commands are called."""
        return getattr(self._node, "_SyncObj__thread", None)

    def _require_outside(self) -> None:
        if self._thread() is threading.current_thread():
            raise Busy(f"the log of {self._address} is in the middle of a command, and was called from within it, by "
                       f"the state machine or by what decides on a command; call it when that has returned")

    def _break(self, index: int, cause: str, error: BaseException) -> None:
        self._failures += 1
        _LOGGER.error("the node %s stops at command %d: %s", self._address, index, cause, exc_info=error)
        if self._broken is None:
            self._broken = index, cause, error
        if self._node is not None:
            # Another node may lead then: one that takes commands.
            self._node.destroy()

    def _is_broken(self) -> LogBroken | None:
        """A new one for each receiver."""
        if self._broken is None:
            return None
        index, cause, _ = self._broken
        return LogBroken(index=index, durable_index=index, cause=cause)
