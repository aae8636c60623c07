# SPDX-License-Identifier: Apache-2.0
"""`KVLog`: a command log of one owner in a key-value store.

Each command is one key, `e/` and its index in hex. The cell `owner` has the term of the present owner, and is a
condition of every change of the log:

1. *Opening* replaces the owner's cell under a new term, and then reads. Later commands of a former owner fail, and
   earlier ones are read.
2. *Appending* writes the key of the next index, if it is free and the owner's cell has not changed. A write without an
   answer is repeated, with the same bytes to the same key, until that key exists: no other command of this owner can
   get ahead of it.
3. *Compacting* deletes keys, and in the same step updates the first index in the owner's cell. So a late append cannot
   write a key that was deleted.

A command is carried out once it is durable. Keys and records: `docs/formats/command-log.md`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import attrs

from compactlib._closing import Closing
from compactlib._steady_clock import SteadyClock
from compactlib.clock import Clock, SystemClock
from compactlib.commandlog.errors import NotStarted, OutOfStep, TakenOver
from compactlib.commandlog.protocol import MAX_PAYLOAD_BYTES, Command, CommandMachine, require_outside_commands
from compactlib.errors import CorruptData, InvalidInput, Unsupported
from compactlib.files.checksum import crc32
from compactlib.files.record_frame import RecordFrame
from compactlib.guard import Guard
from compactlib.kv.cell import Cell
from compactlib.kv.errors import OutcomeUnknown, PredicateFailed
from compactlib.kv.store import Conditions, KVStore

_ENTRIES = b"e/"
_OWNER = b"owner"
_FRAME = RecordFrame("command", b"CLCMD\0", 1, "<HQd")
"""Term, time in seconds; then the command's bytes."""
_MAX_DELETES = 1000


@attrs.frozen
class Owner:
    """The owner of a log, who may append.

    Attributes:
        term: the number of times that the log was opened.
        id: distinguishes owners that open the log at the same time.
        began_at: the first index when the log was created.
        first_index: the first command in the log, also of an empty one.
    """

    term: int
    id: str
    began_at: int
    first_index: int


class KVLog(Closing):
    """A `CommandLog` in a partition of a store, with one owner. Opening it replaces a former owner.

    An append is a transaction of two conditions and a put; a store without transactions is `Unsupported`. Commands are
    carried out one after the other. `start` reads a page of commands a request, `compact` deletes up to 1,000.

    All methods raise the store's errors, and `TakenOver` after another owner has opened the log; nothing was changed.
    After `OutcomeUnknown` of `decide` the command may be durable; the next call reads the outcome first. `start` raises
    `CorruptData` for a damaged or missing command.

    Args:
        store: the log's store; stays open.
        partition: a partition for this log alone.
        first_index: the first index of a new log, >= 1. If a log was lost and its fences were not, pass an index above
            their tokens.
        clock: stamps the commands.
        rng: makes the ids of owners; give each process another seed.

    Raises:
        Unsupported: the store has no transactions.
        OutcomeUnknown: this owner may or may not have replaced the former owner; open the log again.
        CorruptData: the owner's cell is damaged.
        CompactlibError: of the store.
    """

    def __init__(self, store: KVStore, partition: bytes = b"commands", *, first_index: int = 1,
                 clock: Clock | None = None, rng: random.Random | None = None) -> None:
        if store.limits.max_transact < 4:
            raise Unsupported(f"{store!r} has no transactions, which a command log needs; use a store that has them")
        if first_index < 1:
            raise InvalidInput(f"first_index is {first_index}; a log begins at 1 or above")
        self._store = store
        self._partition = partition
        self._clock: Clock = SteadyClock(SystemClock() if clock is None else clock)
        self._guard = Guard(f"the command log in partition {partition!r}")
        self._machine: CommandMachine | None = None
        self._unsure: tuple[Command, bytes] | None = None  # a command without an answer, and its payload
        self._taken_over: TakenOver | None = None
        rng = random.SystemRandom() if rng is None else rng
        owner_id = rng.randbytes(8).hex()
        self._owners: Cell[Owner] = Cell(store, partition, _OWNER, Owner, clock=self._clock, rng=rng)

        def taken(owner: Owner | None) -> Owner:
            return (Owner(1, owner_id, first_index, first_index) if owner is None
                    else attrs.evolve(owner, term=owner.term + 1, id=owner_id))

        self._owners.update(taken, operation=f"the opening of {self._guard.name}")
        self._id, self._term = owner_id, 0
        self._owner, self._owned = self._read_owner()
        self._term = self._owner.term
        self._last = self._owner.first_index - 1

    def _read_owner(self) -> tuple[Owner, Conditions]:
        """Return the owner's cell, and the condition "it has not changed"; raise `TakenOver` if it is another's."""
        state = self._owners.state()
        if state.value is None or state.value.id != self._id:
            raise self._replaced_by(state.value)
        return state.value, state.conditions

    def _replaced_by(self, owner: Owner | None) -> TakenOver:
        self._taken_over = TakenOver(place=self._guard.name, term=self._term,
                                     first_index=0 if owner is None else owner.first_index)
        self._guard.undone()  # ends a start, so that later calls raise this error too
        return self._taken_over

    def start(self, machine: CommandMachine) -> None:
        require_outside_commands(self._guard)
        with self._guard.lock:
            self._guard.require_open()
            if self._machine is not None:
                raise InvalidInput("this log was started before; open another one for another state machine")
            self._guard.begin("its start")
            owner, applied = self._owner, machine.applied_index
            first, last = owner.first_index, owner.first_index - 1
            if not applied and first == owner.began_at:
                applied = last
            with self._store.scan(self._partition, _key(first), prefix=_ENTRIES) as entries:
                for entry in entries:
                    index = int(entry.key[len(_ENTRIES):], 16)
                    if index != last + 1:
                        self._read_owner()  # a later owner may have deleted commands
                        raise CorruptData(path=self._place(last + 1), offset=0, expected=f"command {last + 1}",
                                          found=f"command {index}", index=last + 1)
                    last = index
                    command, payload = self._decoded(index, entry.value)
                    if first - 1 <= applied < index:
                        machine.apply(command, payload)
            self._read_owner()
            if not first - 1 <= applied <= last:
                raise OutOfStep(applied_index=applied, first_index=first, last_index=last)
            self._last = last
            self._machine = machine
            self._guard.done()

    def decide(self, make: Callable[[Command], bytes | None]) -> Any:
        require_outside_commands(self._guard)
        with self._guard.lock:
            machine = self._require_started()
            if self._unsure is not None:
                self._settle(machine, *self._unsure)
            command = Command(self._last + 1, self._term, self._clock.now())
            payload = make(command)
            if payload is None:
                return None
            if len(payload) > MAX_PAYLOAD_BYTES:
                raise InvalidInput(f"a command of {len(payload)} bytes was given, this log takes at most "
                                   f"{MAX_PAYLOAD_BYTES}; split it")
            # Stored before the write, so that after any exception the next command first reads the fate of this one.
            self._unsure = command, payload
            try:
                return self._settle(machine, command, payload)
            except (OutcomeUnknown, TakenOver):
                raise
            except Exception:
                # Certainly refused, since it was sent once.
                self._unsure = None
                raise

    def _settle(self, machine: CommandMachine, command: Command, payload: bytes) -> Any:
        """Write a command until its key exists, and carry it out."""
        key = _key(command.index)
        record = _FRAME.encode(command.term, command.appended_at, body=payload, salt=self._salt(command.index))
        while True:
            try:
                # The key must be free too, so that a client library that repeats the write does no harm.
                self._store.transact({**self._owned, (self._partition, key): None}, {(self._partition, key): record})
                break
            except (PredicateFailed, OutcomeUnknown) as error:
                # Refused, or repeated by the client library, or of unknown outcome.
                owned = self._owned
                if self._is_written(command.index, record, error):
                    break
                if isinstance(error, OutcomeUnknown) or self._owned == owned:
                    raise
                # A compaction of this owner without an answer has changed the cell: retry.
        self._guard.begin(f"command {command.index}")
        result = machine.apply(command, payload)
        self._last = command.index
        self._unsure = None
        self._guard.done()
        return result

    def _is_written(self, index: int, record: bytes, error: Exception) -> bool:
        """Return whether a command has its key after a failed write. If not, read the owner's cell too.

        `TakenOver` means that the command was not written, `OutcomeUnknown` that another owner may have deleted it.
        """
        try:
            found = self._store.get_many([(self._partition, _key(index))])
            if any(each.value == record for each in found.values()):
                return True
            self._owner, self._owned = self._read_owner()
        except TakenOver as taken:
            if taken.first_index <= index:
                raise
            raise self._unknown(index, error, taken) from taken
        except Exception as unread:
            raise self._unknown(index, error, unread) from unread
        return False

    def _unknown(self, index: int, error: Exception, then: Exception) -> OutcomeUnknown:
        return OutcomeUnknown(operation=f"command {index}", path=self._place(index), detail=f"{error}; and then {then}")

    def compact(self, index: int) -> None:
        require_outside_commands(self._guard)
        at_once = min(self._store.limits.max_transact - 2, _MAX_DELETES)
        is_done = False
        while not is_done:
            with self._guard.lock:  # released between two requests, for commands
                is_done = self._forget(index, at_once)

    def _forget(self, index: int, at_once: int) -> bool:
        """Delete the first commands up to `index`, at most `at_once`; return whether that was all."""
        self._require_started()
        if index > self._last:
            raise InvalidInput(f"the log is to forget commands up to {index}, durable are those up to {self._last}; "
                               f"compact to what a snapshot covers")
        first = self._owner.first_index
        end = min(first + at_once, index + 1)
        if first < end:
            def forgotten(owner: Owner | None) -> Owner:
                if owner is None or owner.id != self._id:
                    raise self._replaced_by(owner)
                return attrs.evolve(owner, first_index=max(owner.first_index, end))

            self._owners.update(
                forgotten, also={(self._partition, _key(each)): None for each in range(first, end)},
                operation=f"a compaction of {self._guard.name}", may_repeat=True)
            self._owner, self._owned = self._read_owner()
        return self._owner.first_index > index

    @property
    def first_index(self) -> int:
        """The index of the first command in the log."""
        return self._owner.first_index

    @property
    def last_index(self) -> int:
        return self._last

    @property
    def term(self) -> int:
        return self._term

    def close(self) -> None:
        require_outside_commands(self._guard)
        self._guard.release()

    def _require_started(self) -> CommandMachine:
        self._guard.require_open()
        if self._taken_over is not None:
            raise self._taken_over
        if self._machine is None:
            raise NotStarted(f"{self._guard.name} has no state machine yet; call start() first")
        return self._machine

    def _decoded(self, index: int, record: bytes) -> tuple[Command, bytes]:
        term, appended_at, payload = _FRAME.decode(record, self._place(index), salt=self._salt(index))
        return Command(index, term, appended_at), bytes(payload)

    def _salt(self, index: int) -> int:
        return crc32(self._partition + _key(index))

    def _place(self, index: int) -> str:
        return f"key {_key(index)!r} of partition {self._partition!r}"

    def __repr__(self) -> str:
        return f"KVLog({self._partition!r}, {self.first_index} to {self._last}, term {self._term})"


def _key(index: int) -> bytes:
    return _ENTRIES + b"%016x" % index
