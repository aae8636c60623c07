# SPDX-License-Identifier: Apache-2.0
"""A scheduler whose state is kept in a key-value store: one node, no log of its own.

Each command is one journal entry, under its index, written before it is applied; now and then the whole state is
written as a snapshot (`SnapshotStore`), and the journal up to it is removed. So a crash at any point leaves what was
acknowledged, whatever the store: nothing here needs more than compare-and-set of one key.

Who opens the store takes it over: it appends an *opening*, a command with its settings, to the journal, at the very
place of the former owner's next entry. From then on that one cannot write, and finds out with its next command.
Openings stay for good, one small key for each time the store was opened.

Indexes are never given twice, and an owner removes only what its snapshot covers: a former owner that wakes up late can
remove nothing that is needed.

Keys and records: `docs/formats/scheduler-state.md`.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from compactlib.clock import Clock
from compactlib.errors import Busy, Closed, CompactlibError, CorruptData, InvalidInput, Stale
from compactlib.kv.errors import KeyNotFound, OutcomeUnknown, PredicateFailed
from compactlib.kv.snapshots import HEAD_KEY, SnapshotStore
from compactlib.kv.store import KVStore
from compactlib.runtime import SteadyClock
from compactlib.runtime.later import LaterObserver
from compactlib.runtime.look import look_until_seen
from compactlib.runtime.observe import Observer
from compactlib.runtime.owned_lock import OwnedLock
from compactlib.scheduler.config import SchedulerConfig
from compactlib.scheduler.errors import JournalConflict
from compactlib.scheduler.model.poll import PollRequest, PollResponse
from compactlib.scheduler.model.update import AddBlocks, Applied, ApplyResult, BlocksAdded, Operation
from compactlib.scheduler.model.values import BlockMeta, Command
from compactlib.scheduler.persistence.codec import (
    Change,
    decode_entry,
    encode_command,
    is_opening,
)
from compactlib.scheduler.plan.policy import AssignmentPolicy
from compactlib.scheduler.service.machine import LEFTOVERS_STAY, SNAPSHOT_FAILED, SchedulerMachine
from compactlib.scheduler.service.numbers import NUMBERS, levels_of, tell_events
from compactlib.scheduler.service.service import SchedulerService

AnswerT = TypeVar("AnswerT")

PARTITION = b"scheduler"
"""Where a scheduler is, if nothing else is said."""
JOURNAL = b"j/"
"""What the keys of the journal begin with."""
_MAX_ATTEMPTS = 100
_MAX_UNSURE = 100


class StoredScheduler:
    """A `SchedulerService` that survives its process; also a `Transport` for workers in it.

    Any thread may call any method; commands are carried out one after the other. Not for a fork of the process that
    opened it.

    What was carried out stays as it was, whatever the settings of a later opening: the journal is replayed under the
    settings it was written under, and new ones begin with the opening.

    Args:
        kv: where the state lives. Another owner of the same partition loses it.
        config: may be another one than before, and holds then. The same as before leaves alone what a `Configure` has
            changed since.
        partition: the store's partition.
        clock: stamps the commands, held against the monotonic clock (`SteadyClock`; give one of your own for other
            bounds, or to `accept` a jump).
        rng: distinguishes two processes that open the store at once; give each its own seed.
        checkpoint_every: commands after which the state is written anew, >= 1; one for each KiB of it, if that is more.
        with_index: whether a new scheduler has a metadata index; a stored one keeps what it has.
        policy: which job a poll gives out first; no part of what is stored.
        observer: notified of what happens as commands are applied, after each call and outside of any lock; a replay
            reports nothing.

    Raises:
        JournalConflict: another process wrote a checkpoint meanwhile: opens it at the same time, or still has it open.
        CorruptData: a record is damaged.
        Unsupported: a record was written by another release.
        InvalidInput: `checkpoint_every` is below 1.
        CompactlibError: what the store raises.
    """

    def __init__(self, kv: KVStore, config: SchedulerConfig | None = None, *, partition: bytes = PARTITION,
                 clock: Clock | None = None, rng: random.Random | None = None, checkpoint_every: int = 1000,
                 with_index: bool = True, policy: AssignmentPolicy | None = None,
                 observer: Observer | None = None) -> None:
        if checkpoint_every < 1:
            raise InvalidInput(f"checkpoint_every is {checkpoint_every}; give at least 1")
        self._kv = kv
        self._partition = partition
        self._rng = rng or random.Random()
        self._observer = LaterObserver(observer)
        self._every = checkpoint_every
        self._lock = OwnedLock("the scheduler")
        # The thread that carries out a command.
        self._holder: int | None = None
        self._broken: str | None = None
        self._closed = False
        self._last_error: CompactlibError | None = None
        self._failures = 0
        # Entries for the next place whose fate is not known yet: of all that are written there, one gets in.
        self._unsure: dict[bytes, tuple[Command, Operation]] = {}
        self._machine = SchedulerMachine(config or SchedulerConfig(), with_index=with_index, policy=policy)
        self._snapshots = SnapshotStore(kv, partition, clock=clock, rng=self._rng)
        self._machine.restore(self._snapshots)
        last_known = self._take_over(config or SchedulerConfig(), clock)
        self._clock = clock if isinstance(clock, SteadyClock) else SteadyClock(
            clock, last_known=last_known, observer=self._observer)
        try:
            self._checkpoint()
        finally:
            self._observer.deliver()

    # ------------------------------------------------------------------------------------------------- commands

    @property
    def service(self) -> SchedulerService:
        """The service; read it while no other thread calls a method (else `look`), and change it through this class."""
        return self._machine.service

    @property
    def term(self) -> int:
        """The term of this owner's commands: how often the store was opened."""
        return self._term

    @property
    def last_error(self) -> CompactlibError | None:
        """What kept a checkpoint from being written last, beside a command; `None` if nothing ever did."""
        return self._last_error

    @property
    def failures(self) -> int:
        """How often that was."""
        return self._failures

    def poll(self, request: PollRequest) -> PollResponse:
        """One poll, durable once it is answered. A poll that changes nothing is not written down.

        Raises:
            InvalidInput: the capacity is negative, or there are too many updates.
            JournalConflict: another process has taken the store over. Poll there.
            OutcomeUnknown: the poll may have been carried out; the next call finds out, and goes on from there.
            ClockJumped: the clock is off by more than its bound; nothing was changed.
            Stale: another process has taken the store over before. Open the store again.
            Closed: it was closed, or this process is a fork of the one that opened the store.
            CompactlibError: what the store raises; nothing was changed.
        """
        with self._held():
            while True:
                command = self._next_command()
                update = self._machine.prepare(command, request)
                if isinstance(update, PollResponse):
                    return update
                result = self._carry_out(command, update)
                if result is not None:
                    assert isinstance(result, Applied)
                    return result.response

    def apply(self, operation: Operation) -> ApplyResult:
        """Carry out an operation, durably.

        Raises:
            JournalConflict: another process has taken the store over.
            OutcomeUnknown: it may have been carried out; the next call finds out, and goes on from there.
            ClockJumped: the clock is off by more than its bound; nothing was changed.
            Stale: another process has taken the store over before. Open the store again.
            Closed: it was closed, or this process is a fork of the one that opened the store.
            CompactlibError: what the store raises; nothing was changed.
        """
        with self._held():
            while True:
                result = self._carry_out(self._next_command(), operation)
                if result is not None:
                    return result

    def add_blocks(self, blocks: Iterable[BlockMeta]) -> BlocksAdded:
        """New blocks: into the metadata index and the compaction queue; raises as `apply` does."""
        result = self.apply(AddBlocks(tuple(blocks)))
        assert isinstance(result, BlocksAdded)
        return result

    def look(self, at: Callable[[SchedulerService], AnswerT]) -> AnswerT:
        """What `at` finds in the scheduler, between two commands; everything it sees is durable.

        Keep it short: nothing else happens meanwhile. It must not keep parts of the service, nor change it.

        Raises:
            Stale, Closed: this owner can carry nothing out any more.
            CompactlibError: what the store raises, where what became of a command is still to be found out.
        """
        with self._held():
            self._require_usable()
            self._settle()
            return at(self.service)

    def checkpoint(self) -> None:
        """Write the whole state, and begin the journal anew. O(state).

        Raises:
            JournalConflict: another process has taken the store over.
            OutcomeUnknown: it may be in force; the next call finds out, and goes on from there.
            CompactlibError: what the store raises; the journal goes on.
        """
        with self._held():
            self._require_usable()
            self._settle()
            self._checkpoint()

    def audit(self) -> None:
        """Check the state, and that the store gives the same one. O(everything).

        Raises:
            JournalConflict: another process has taken the store over.
            CompactlibError: something is wrong; the message has the numbers.
        """
        with self._held():
            if self._broken is None and not self._closed:
                self._settle()
            self.service.audit()
            try:
                self._snapshots.audit()
                stored = stored_machine(self._kv, self._partition)
                if stored.dump() != self._machine.dump():
                    raise CorruptData(path=self._place(HEAD_KEY), offset=0, expected=repr(self.service.state),
                                      found=repr(stored.service.state))
            except CorruptData:
                # Or has another process taken the store over meanwhile, and removed what it covers?
                if stored_machine(self._kv, self._partition).applied_index > self._machine.applied_index:
                    raise self._taken_over() from None
                raise

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        """The lock; the observer is notified once it is released."""
        # Before who is inside is looked at, which a fork may have copied in the middle of a command.
        self._lock.require_mine()
        self._require_outside()
        try:
            with self._lock:
                self._holder = threading.get_ident()
                try:
                    yield
                finally:
                    self._holder = None
        finally:
            self._observer.deliver()

    def _require_outside(self) -> None:
        if self._holder == threading.get_ident():
            raise Busy("the scheduler is in the middle of a command, and was called from within it, by its policy or "
                       "by its store; call it when that has returned")

    def _next_command(self) -> Command:
        self._require_usable()
        self._settle()
        now = self._clock.now()
        return Command(self._machine.applied_index + 1, self._term, now, self._clock.expiry())

    def _require_usable(self) -> None:
        if self._closed:
            raise Closed("this scheduler was closed; open the store again")
        if self._broken is not None:
            raise Stale(f"this scheduler cannot go on: {self._broken}; open the store again")

    def _carry_out(self, command: Command, operation: Operation) -> ApplyResult | None:
        """The outcome of the command; `None` if an earlier one of unknown fate took its place: make it anew."""
        record = encode_command(command, operation)
        found = self._write_entry(record, command, operation)
        result = self._adopt(found)
        if self._snapshots.is_due(self._machine.applied_index, self._every):
            try:
                self._checkpoint()
            except CompactlibError as error:
                # The command is durable, and its answer true; the next one finds out whether the owner has changed.
                self._last_error, self._failures = error, self._failures + 1
                self._observer.event(SNAPSHOT_FAILED, {"error": str(error)})
        return result if found == record else None

    def _write_entry(self, record: bytes, command: Command, operation: Operation) -> bytes:
        """Write the next entry; returns the one that stands in its place then."""
        key = _entry_key(self._machine.applied_index + 1)
        again = record in self._unsure
        self._unsure[record] = command, operation
        try:
            self._kv.set_if(self._partition, key, record, None)
        except PredicateFailed:
            if not again:
                del self._unsure[record]
            found = self._get(key)
            if found is None:
                raise
            return found
        except OutcomeUnknown as unknown:
            found = look_until_seen(lambda: self._get(key), unknown, clock=self._clock, rng=self._rng)
            if found is None:
                # It may still come. Whatever is written next has the same key, so that only one of them gets in.
                raise
            return found
        except CompactlibError:
            if not again:
                del self._unsure[record]
            raise
        return record

    def _adopt(self, record: bytes) -> ApplyResult:
        """Carry out the entry that stands in the next place, if this owner wrote it."""
        mine = self._unsure.get(record)
        if mine is None:
            raise self._taken_over()
        try:
            self._unsure.clear()
            result = self._machine.carry_out(*mine)
        except BaseException as error:
            self._broken = f"command {mine[0].index} is in force, and was cut short by {error!r}"
            raise
        tell_events(self._observer, self._machine.events)
        assert not isinstance(result, SchedulerConfig)
        return result

    def _settle(self) -> None:
        """Find out whether an entry whose answer was lost was written."""
        if self._unsure:
            found = self._get(_entry_key(self._machine.applied_index + 1))
            if found is None and len(self._unsure) >= _MAX_UNSURE:
                # Enough are on their way: one of them must get in, or be refused, before there are more.
                record, mine = next(reversed(self._unsure.items()))
                found = self._write_entry(record, *mine)
            if found is not None:
                self._adopt(found)

    def _taken_over(self) -> JournalConflict:
        self._broken = "another process has taken the store over"
        return JournalConflict(index=self._machine.applied_index + 1)

    def _checkpoint(self) -> None:
        try:
            self._snapshots.save(self._machine.applied_index, self._machine.dump(), replaces=self._covered())
        except PredicateFailed:
            raise self._taken_over() from None
        if self._snapshots.cleanup_error is not None:
            self._observer.event(LEFTOVERS_STAY, {"error": str(self._snapshots.cleanup_error)})
        NUMBERS.levels(self._observer, levels_of(self.service.state))

    def _covered(self) -> Iterator[bytes]:
        """The entries that the snapshot covers, but openings and what an opening follows.

        Where one of these stands, a former owner that wakes up late still tries to write: its next entry, or the one
        before whose answer it has lost.
        """
        last = b""
        with self._kv.scan(self._partition, prefix=JOURNAL) as entries:
            for entry in entries:
                opens = is_opening(entry.value)
                if last and not (opens and entry.key == _key_after(last)):
                    yield last
                if entry.key > _entry_key(self._machine.applied_index):
                    return
                last = b"" if opens else entry.key
        if last:
            yield last

    # ------------------------------------------------------------------------------------------------- taking over

    def _take_over(self, config: SchedulerConfig, clock: Clock | None) -> float | None:
        """Apply the journal, and append this owner's opening: from then on no former owner can write.

        Returns:
            The time of the last command of a former owner, if there was one; an opening has none of its own.
        """
        machine = self._machine
        _replay(machine, self._kv, self._partition)
        while True:
            applied = machine.service.state.applied
            key = _entry_key(machine.applied_index + 1)
            opening = Command(machine.applied_index + 1, 1 if applied is None else applied.term + 1,
                              0.0 if applied is None else applied.appended_at)
            data = self._entry_or(key, opening, config, clock)
            if data is None:
                machine.carry_out(opening, config)
                self._term = opening.term
                return opening.appended_at or None
            machine.carry_out(*_decoded(self._partition, key, data))

    def _entry_or(self, key: bytes, opening: Command, config: SchedulerConfig, clock: Clock | None) -> bytes | None:
        """What stands in a place of the journal; `None` once the opening does, which is put there if it is free."""
        unknown: OutcomeUnknown | None = None
        record = b""
        for _ in range(_MAX_ATTEMPTS):
            data = (self._get(key) if unknown is None else
                    look_until_seen(lambda: self._get(key), unknown, clock=clock, rng=self._rng))
            if data is not None:
                return None if unknown is not None and data == record else data
            record = encode_command(opening, config)
            try:
                self._kv.set_if(self._partition, key, record, None)
                return None
            except PredicateFailed:
                continue  # the owner before was faster
            except OutcomeUnknown as error:
                unknown = error
            except CompactlibError as error:
                raise unknown or error from error
        raise unknown or Busy(f"{self._place(key)} could not be read or written {_MAX_ATTEMPTS} times in a row; try "
                              f"again")

    def _get(self, key: bytes) -> bytes | None:
        return _value(self._kv, self._partition, key)

    def _place(self, key: bytes) -> str:
        return _place(self._partition, key)

    def close(self) -> None:
        """Give the scheduler up; the store stays open. Closing again does nothing; use afterwards raises `Closed`.

        Raises:
            Busy: called from within a command, by the policy, say; nothing was done.
        """
        if self._lock.is_inherited:
            # A fork: the thread that holds the lock does not exist here to release it.
            self._closed = True
            return
        self._require_outside()
        with self._lock:
            self._closed = True

    def __repr__(self) -> str:
        since = self._machine.applied_index - self._snapshots.index
        return f"StoredScheduler(term {self.term}, {since} entries since the checkpoint, {self.service!r})"


def stored_machine(kv: KVStore, partition: bytes = PARTITION) -> SchedulerMachine:
    """A stored scheduler as it was at one moment: its snapshot, brought on by the journal. O(state + journal).

    Writes nothing, so that an owner goes on; a scheduler that is not there has no jobs, and no settings.

    Raises:
        CorruptData, Unsupported: a record is damaged, or another release wrote it.
        CompactlibError: what the store raises.
    """
    machine = SchedulerMachine(SchedulerConfig())
    machine.restore(SnapshotStore(kv, partition))
    _replay(machine, kv, partition)
    return machine


def _replay(machine: SchedulerMachine, kv: KVStore, partition: bytes) -> None:
    """Apply the entries that stand in the journal one after the other; a page of them is one request."""
    with kv.scan(partition, _entry_key(machine.applied_index + 1), prefix=JOURNAL) as entries:
        for entry in entries:
            if entry.key != _entry_key(machine.applied_index + 1):
                return
            machine.carry_out(*_decoded(partition, entry.key, entry.value))


def _decoded(partition: bytes, key: bytes, data: bytes) -> tuple[Command, Change]:
    command, change = decode_entry(data, _place(partition, key))
    if _entry_key(command.index) != key:
        raise CorruptData(path=_place(partition, key), offset=0, expected="the command of this place",
                          found=f"command {command.index}")
    return command, change


def _value(kv: KVStore, partition: bytes, key: bytes) -> bytes | None:
    try:
        return kv.get(partition, key).value
    except KeyNotFound:
        return None


def _place(partition: bytes, key: bytes) -> str:
    return f"{partition!r}/{key!r} of the key-value store"


def _entry_key(index: int) -> bytes:
    return JOURNAL + b"%016x" % index


def _key_after(key: bytes) -> bytes:
    return _entry_key(int(key[len(JOURNAL):], 16) + 1)
