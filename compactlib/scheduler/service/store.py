# SPDX-License-Identifier: Apache-2.0
"""A scheduler whose state is kept in a key-value store: one node, no log of its own.

Each command is one journal entry, written before it is applied; now and then the whole state is written as a
checkpoint, and the journal begins anew. So a crash at any point leaves what was acknowledged, whatever the store:
nothing here needs more than compare-and-set of one key.

Who opens the store takes it over: it appends a *seal* to the journal of the owner before, at the very place of that
one's next entry. From then on the former owner cannot write, and finds out with its next command. Seals stay for good,
one small key for each time the store was opened.

What is deleted is named by epoch and generation, and an owner deletes only what lies below its own: a former owner
that wakes up late can delete nothing of a later one.

Keys and records: `docs/formats/scheduler-state.md`.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections.abc import Iterator
from itertools import count

import attrs

from compactlib._arguments import refuses_misfits
from compactlib.clock import Clock
from compactlib.errors import Busy, Closed, CompactlibError, CorruptData, InvalidInput, Stale
from compactlib.kv.errors import KeyNotFound, OutcomeUnknown, PredicateFailed
from compactlib.kv.store import Condition, Delete, KVStore, Predicate
from compactlib.runtime import SteadyClock
from compactlib.runtime.later import LaterObserver
from compactlib.runtime.look import look_until_seen
from compactlib.runtime.observe import Observer
from compactlib.scheduler.config import SchedulerConfig
from compactlib.scheduler.errors import JournalConflict
from compactlib.scheduler.model.poll import PollRequest, PollResponse
from compactlib.scheduler.model.update import Applied, ApplyResult, Operation
from compactlib.scheduler.model.values import Command
from compactlib.scheduler.persistence.codec import (
    RecordKind,
    decode_command,
    decode_record,
    encode_command,
    encode_record,
)
from compactlib.scheduler.persistence.plain import Plain
from compactlib.scheduler.persistence.state_rows import dump_rows
from compactlib.scheduler.persistence.stored_settings import dump_state, load_state, under
from compactlib.scheduler.plan.policy import AssignmentPolicy
from compactlib.scheduler.queue.metadata_index import MetadataIndex
from compactlib.scheduler.queue.state import SchedulerState
from compactlib.scheduler.service.service import SchedulerService

HEAD_KEY = b"head"
MAX_CHUNK_BYTES = 256 * 1024
CHECKPOINT_FAILED = "scheduler_checkpoint_failed"
"""A checkpoint was not written; the journal goes on, and the next command tries again: `error`."""
LEFTOVERS_STAY = "scheduler_leftovers_stay"
"""Older checkpoints and entries could not be removed; the next checkpoint tries again: `error`."""
_MAX_ATTEMPTS = 100
_MAX_LOADS = 10
_MAX_DELETES = 100
_MAX_UNSURE = 100


@attrs.frozen
class _Head:
    """Where the state begins: the checkpoint `generation` of owner `epoch`, in `chunks` records of `rows` rows.

    The nonce distinguishes what two processes wrote that tried to become the same owner at once.
    """

    epoch: int
    generation: int
    nonce: int
    chunks: int
    rows: int

    @property
    def record(self) -> bytes:
        """As stored."""
        return encode_record(RecordKind.HEAD, ["head", *attrs.astuple(self)])


class StoredScheduler:
    """A `SchedulerService` that survives its process; also a `Transport` for workers in it.

    Any thread may call any method; commands are carried out one after the other. Not for a fork of the process that
    opened it.

    What was carried out stays as it was, whatever the settings of a later opening: the journal is replayed under the
    settings it was written under, and new ones begin with the checkpoint that opening writes.

    Args:
        kv: where the state lives. Another owner of the same partition loses it.
        config: may be another one than before.
        partition: the store's partition.
        clock: stamps the commands, held against the monotonic clock (`SteadyClock`; give one of your own for other
            bounds, or to `accept` a jump).
        rng: distinguishes two processes that open the store at once; give each its own seed.
        checkpoint_every: commands after which the state is written anew, >= 1.
        with_index: whether a new scheduler has a metadata index; a stored one keeps what it has.
        policy: which job a poll gives out first; no part of what is stored.
        observer: notified of what happens as commands are applied, after each call and outside of any lock; a replay
            reports nothing.

    Attributes:
        service: the service; read it while no other thread calls a method, and change it through this class alone.

    Raises:
        JournalConflict: another process wrote a checkpoint meanwhile: opens it at the same time, or still has it open.
        CorruptData: a record is damaged.
        Unsupported: a record was written by another release.
        InvalidInput: `checkpoint_every` is below 1.
        CompactlibError: what the store raises.
    """

    @refuses_misfits
    def __init__(self, kv: KVStore, config: SchedulerConfig | None = None, *, partition: bytes = b"scheduler",
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
        self._pid = os.getpid()
        self._lock = threading.Lock()
        # The thread that carries out a command.
        self._holder: int | None = None
        self._broken: str | None = None
        self._closed = False
        self._last_error: CompactlibError | None = None
        self._failures = 0
        # Entries for the next position whose fate is not known yet: of all that are written there, one gets in.
        self._unsure: dict[bytes, tuple[Command, Operation]] = {}
        # A checkpoint of which it is not known yet whether it is in force.
        self._unsure_head: _Head | None = None
        config = config or SchedulerConfig()
        head, predicate, state = self._load(config, with_index)
        service = SchedulerService(state=state)
        if head is not None:
            self._replay_and_seal(head, service, clock)
            state = under(state, config)
        self._head, self._predicate, self._knows_predicate = head or _Head(0, 0, 0, 0, 0), predicate, True
        self.service: SchedulerService = SchedulerService(state=state, policy=policy, observer=self._observer)
        applied = state.applied
        self._clock = clock if isinstance(clock, SteadyClock) else SteadyClock(
            clock, last_known=None if applied is None else applied.appended_at, observer=self._observer)
        self._position = 0
        try:
            self._checkpoint(epoch=self._head.epoch + 1)
        finally:
            self._observer.deliver()

    # ------------------------------------------------------------------------------------------------- commands

    @property
    def term(self) -> int:
        """The term of this owner's commands: how often the store was opened."""
        return self._head.epoch

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
                update = self.service.prepare(command, request)
                if update.changes_nothing:
                    return PollResponse(answers=update.answers, now=update.now, why=update.why)
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
            self._checkpoint(self._head.epoch)

    def audit(self) -> None:
        """Check the state, and that the store gives the same one. O(everything).

        Raises:
            CompactlibError: something is wrong; the message has the numbers.
        """
        with self._held():
            if self._broken is None and not self._closed:
                self._settle()
            self.service.audit()
            head, _ = self._read_head()
            if head != self._head:
                raise self._taken_over()
            stored = SchedulerService(state=load_state(self._read_rows(head), self._place(_chunk_key(head, 0))))
            for position in range(self._position):
                key = _entry_key(head, position)
                stored.apply(*decode_command(self._kv.get(self._partition, key).value, self._place(key)))
            if list(dump_rows(stored.state)) != list(dump_rows(self.service.state)):
                raise CorruptData(path=self._place(HEAD_KEY), offset=0, expected=repr(self.service.state),
                                  found=repr(stored.state))

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        """The lock; the observer is notified once it is released."""
        if self._pid != os.getpid():
            raise Closed(f"the scheduler was opened by process {self._pid}, and this is process {os.getpid()}; a fork "
                         f"must not use what its parent has open, open it here when it is closed there")
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
        return Command(self.service.state.applied_index + 1, self._head.epoch, now, self._clock.expiry())

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
        if self._position >= self._every:
            try:
                self._checkpoint(self._head.epoch)
            except CompactlibError as error:
                # The command is durable, and its answer true; the next one finds out whether the owner has changed.
                self._last_error, self._failures = error, self._failures + 1
                self._observer.event(CHECKPOINT_FAILED, {"error": str(error)})
        return result if found == record else None

    def _write_entry(self, record: bytes, command: Command, operation: Operation) -> bytes:
        """Write the next entry; returns the one that stands in its place then."""
        key = _entry_key(self._head, self._position)
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
        self._unsure.clear()
        self._position += 1
        try:
            return self.service.apply(*mine)
        except BaseException as error:
            self._broken = f"command {mine[0].index} is in force, and was cut short by {error!r}"
            raise

    def _settle(self) -> None:
        """Find out whether an entry or a checkpoint whose answer was lost was written."""
        if self._unsure_head is not None:
            self._switch(self._unsure_head)
        if self._unsure:
            found = self._get(_entry_key(self._head, self._position))
            if found is None and len(self._unsure) >= _MAX_UNSURE:
                # Enough are on their way: one of them must get in, or be refused, before there are more.
                record, mine = next(reversed(self._unsure.items()))
                found = self._write_entry(record, *mine)
            if found is not None:
                self._adopt(found)

    def _taken_over(self) -> JournalConflict:
        self._broken = "another process has taken the store over"
        return JournalConflict(index=self.service.state.applied_index + 1)

    # ---------------------------------------------------------------------------------------------- checkpoints

    def _checkpoint(self, epoch: int) -> None:
        before = self._head
        if not self._knows_predicate:
            found, self._predicate = self._read_head()
            if found != before:
                raise self._taken_over()
            self._knows_predicate = True
        head = self._write_rows(epoch, before.generation + 1 if epoch == before.epoch else 1)
        self._switch(head)
        self._clean_up(head)

    def _switch(self, head: _Head) -> None:
        """Put a checkpoint in force. Once it is unknown whether it is, nothing is written until this was repeated."""
        first, self._unsure_head = self._unsure_head is None, head
        try:
            self._kv.set_if(self._partition, HEAD_KEY, head.record, self._predicate)
        except (PredicateFailed, OutcomeUnknown) as failed:
            refused = first and isinstance(failed, PredicateFailed)
            if refused:
                self._unsure_head = None
            found, _ = look_until_seen(self._read_head, failed, clock=self._clock, rng=self._rng)
            if found == (self._head if self._head.epoch else None):
                raise
            if refused or found != head:
                raise self._taken_over() from None
        except CompactlibError:
            if first:
                self._unsure_head = None
            raise
        self._unsure_head = None
        # An entry of unknown fate that still comes belongs to the journal before, which is not read any more.
        self._unsure.clear()
        self._head, self._position, self._knows_predicate = head, 0, False

    def _write_rows(self, epoch: int, generation: int) -> _Head:
        limit = min(MAX_CHUNK_BYTES, self._kv.limits.max_value_bytes) - 64
        nonce = self._rng.getrandbits(63)
        chunks, written = 0, 0
        pending: list[Plain] = []
        size = 0
        for row in dump_state(self.service.state):
            row_size = len(encode_record(RecordKind.ROWS, [row]))
            if pending and size + row_size > limit:
                self._write_chunk(_Head(epoch, generation, nonce, chunks, written), pending)
                chunks, pending, size = chunks + 1, [], 0
            pending.append(row)
            written += 1
            size += row_size
        self._write_chunk(_Head(epoch, generation, nonce, chunks, written), pending)
        return _Head(epoch, generation, nonce, chunks + 1, written)

    def _write_chunk(self, head: _Head, rows: list[Plain]) -> None:
        self._kv.set(self._partition, _chunk_key(head, head.chunks), encode_record(RecordKind.ROWS, rows))

    def _clean_up(self, head: _Head) -> None:
        """Remove what lies below the checkpoint in force; what fails is left to the next one."""
        try:
            found, predicate = self._read_head()
            if found != head or predicate is None:
                return  # another process's by now; the next command finds out
            self._predicate, self._knows_predicate = predicate, True
            self._remove(list(self._leftovers(head)), Condition(self._partition, HEAD_KEY, predicate))
        except CompactlibError as error:
            self._observer.event(LEFTOVERS_STAY, {"error": str(error)})

    def _leftovers(self, head: _Head) -> Iterator[bytes]:
        """Older checkpoints, checkpoints that lost against this one, and older journal entries that are no seals."""
        below, own = _generation_prefix(b"c/", head), _chunk_prefix(head)
        with self._kv.scan(self._partition, prefix=b"c/") as entries:
            for entry in entries:
                if entry.key.startswith(own):
                    entries.seek(own + b"\xff")
                elif entry.key < below or entry.key.startswith(below):
                    yield entry.key
                else:
                    break
        with self._kv.scan(self._partition, prefix=b"j/") as entries:
            for entry in entries:
                if entry.key >= _generation_prefix(b"j/", head):
                    break
                if entry.value != _SEAL_RECORD:
                    yield entry.key

    def _remove(self, keys: list[bytes], condition: Condition) -> None:
        most = min(self._kv.limits.max_transact - 1, _MAX_DELETES)
        if most < 1:
            for key in keys:
                self._kv.delete(self._partition, key)
            return
        for start in range(0, len(keys), most):
            self._kv.transact([condition], (), [Delete(self._partition, key) for key in keys[start:start + most]])

    # ------------------------------------------------------------------------------------------------- loading

    def _load(self, config: SchedulerConfig, with_index: bool) -> tuple[_Head | None, Predicate | None, SchedulerState]:
        """The head, and the state of its checkpoint under the settings of that time; a new one under `config`."""
        for attempt in range(_MAX_LOADS):
            head, predicate = self._read_head()
            if head is None:
                return None, None, SchedulerState(config, MetadataIndex() if with_index else None)
            try:
                return head, predicate, load_state(self._read_rows(head), self._place(_chunk_key(head, 0)))
            except CorruptData:
                # Or did the owner write another checkpoint, and remove this one?
                if self._read_head()[0] == head:
                    raise
                if attempt == _MAX_LOADS - 1:
                    raise Busy(f"{_MAX_LOADS} checkpoints in a row went while they were read; stop the one that writes "
                               f"them, or try again") from None
        raise AssertionError("the last attempt raises")

    def _read_head(self) -> tuple[_Head | None, Predicate | None]:
        try:
            found = self._kv.get(self._partition, HEAD_KEY)
        except KeyNotFound:
            return None, None
        plain = decode_record(found.value, RecordKind.HEAD, self._place(HEAD_KEY))
        if not (isinstance(plain, list) and len(plain) == 6 and all(type(part) is int for part in plain[1:])):
            raise CorruptData(path=self._place(HEAD_KEY), offset=16, expected="head and five numbers",
                              found=repr(plain))
        return _Head(*plain[1:]), found.predicate

    def _read_rows(self, head: _Head) -> Iterator[Plain]:
        found = 0
        for number in range(head.chunks):
            key = _chunk_key(head, number)
            data = self._get(key)
            if data is None:
                raise CorruptData(path=self._place(key), offset=0, expected=f"chunk {number} of {head.chunks}",
                                  found="nothing")
            rows = decode_record(data, RecordKind.ROWS, self._place(key))
            yield from rows
            found += len(rows)
        if found != head.rows:
            raise CorruptData(path=self._place(HEAD_KEY), offset=16, expected=f"{head.rows} rows", found=f"{found}")

    def _replay_and_seal(self, head: _Head, service: SchedulerService, clock: Clock | None) -> None:
        """Apply the journal of the owner before, and keep it from writing more."""
        for position in count():
            key = _entry_key(head, position)
            data = self._entry_or_seal(key, clock)
            if data == _SEAL_RECORD:
                return
            service.apply(*decode_command(data, self._place(key)))

    def _entry_or_seal(self, key: bytes, clock: Clock | None) -> bytes:
        """What stands in a place of the journal; a seal is put there if it is free."""
        unknown: OutcomeUnknown | None = None
        for _ in range(_MAX_ATTEMPTS):
            data = (self._get(key) if unknown is None else
                    look_until_seen(lambda: self._get(key), unknown, clock=clock, rng=self._rng))
            if data is not None:
                return data
            try:
                self._kv.set_if(self._partition, key, _SEAL_RECORD, None)
                return _SEAL_RECORD
            except PredicateFailed:
                continue  # the owner before was faster
            except OutcomeUnknown as error:
                unknown = error
        raise unknown or Busy(f"{self._place(key)} could not be read or written {_MAX_ATTEMPTS} times in a row; try "
                              f"again")

    def _get(self, key: bytes) -> bytes | None:
        try:
            return self._kv.get(self._partition, key).value
        except KeyNotFound:
            return None

    def _place(self, key: bytes) -> str:
        return f"{self._partition!r}/{key!r} of the key-value store"

    def close(self) -> None:
        """Give the scheduler up; the store stays open. Closing again does nothing; use afterwards raises `Closed`.

        Raises:
            Busy: called from within a command, by the policy, say; nothing was done.
        """
        self._require_outside()
        with self._lock:
            self._closed = True

    def __repr__(self) -> str:
        return f"StoredScheduler(term {self.term}, {self._position} entries since the checkpoint, {self.service!r})"


def _generation_prefix(kind: bytes, head: _Head) -> bytes:
    return kind + b"%016x/%016x/" % (head.epoch, head.generation)


def _chunk_prefix(head: _Head) -> bytes:
    return _generation_prefix(b"c/", head) + b"%016x/" % head.nonce


def _chunk_key(head: _Head, number: int) -> bytes:
    return _chunk_prefix(head) + b"%08x" % number


def _entry_key(head: _Head, position: int) -> bytes:
    return _generation_prefix(b"j/", head) + b"%016x" % position


_SEAL_RECORD = encode_record(RecordKind.COMMAND, ["seal"])
