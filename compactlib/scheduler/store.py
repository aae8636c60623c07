"""A scheduler whose state is kept in a key-value store: one node, no log of its own.

Each command is one journal entry, written before it is applied; now and then the whole state is written as a
checkpoint, and the journal begins anew. So a crash at any point leaves what was acknowledged, whatever the store:
nothing here needs more than compare-and-set of one key.

Who opens the store takes it over: it appends a *seal* to the journal of the owner before, at the very place of that
one's next entry. From then on the former owner cannot write, and finds out with its next command. Seals stay for good,
one small key for each time the store was opened.

Keys and records: `docs/formats/scheduler-state.md`. Source: issue 3, part 12.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import attrs

from compactlib.clock import Clock, SystemClock
from compactlib.errors import CompactlibError, CorruptData, InvalidInput, Stale
from compactlib.kv.errors import KeyNotFound, OutcomeUnknown, PredicateFailed
from compactlib.kv.store import KVStore, Predicate
from compactlib.observe import Observer
from compactlib.scheduler.codec import RecordKind, decode_command, decode_record, encode_command, encode_record
from compactlib.scheduler.config import SchedulerConfig
from compactlib.scheduler.errors import JournalConflict
from compactlib.scheduler.metadata_index import MetadataIndex
from compactlib.scheduler.model import Command
from compactlib.scheduler.plain import Plain
from compactlib.scheduler.poll import PollRequest, PollResponse
from compactlib.scheduler.service import SchedulerService
from compactlib.scheduler.state import SchedulerState
from compactlib.scheduler.state_rows import dump_rows, load_rows
from compactlib.scheduler.update import Applied, ApplyResult, Operation

HEAD_KEY = b"head"
MAX_CHUNK_BYTES = 256 * 1024


@attrs.frozen
class _Head:
    """Where the state begins: the checkpoint `generation` of owner `epoch`, in `chunks` records of `rows` rows.

    The nonce tells apart what two processes wrote that tried to become the same owner at once.
    """

    epoch: int
    generation: int
    nonce: int
    chunks: int
    rows: int


class StoredScheduler:
    """A `SchedulerService` that survives its process; also a `Transport` for workers in it.

    Not safe for several threads at once: put a lock around it, or one thread in front.

    Args:
        kv: where the state lives. Another owner of the same partition loses it.
        config: the same as before; levels and limits may change between two openings.
        partition: the store's partition.
        clock: stamps the commands.
        rng: tells apart two processes that open the store at once; give each its own seed.
        checkpoint_every: commands after which the state is written anew, >= 1.
        with_index: whether a new scheduler has a metadata index; a stored one keeps what it has.
        observer: is told what happens as commands are applied.

    Attributes:
        service: the service; read it, and change it through this class alone.

    Raises:
        JournalConflict: somebody else opens it at the same time, and was faster.
        CorruptData: a record is damaged.
        Unsupported: a record was written by a newer release.
        InvalidInput: `checkpoint_every` is below 1.
        CompactlibError: what the store raises.
    """

    def __init__(self, kv: KVStore, config: SchedulerConfig | None = None, *, partition: bytes = b"scheduler",
                 clock: Clock | None = None, rng: random.Random | None = None, checkpoint_every: int = 1000,
                 with_index: bool = True, observer: Observer | None = None) -> None:
        if checkpoint_every < 1:
            raise InvalidInput(f"checkpoint_every is {checkpoint_every}; give at least 1")
        self._kv = kv
        self._partition = partition
        self._clock = clock or SystemClock()
        self._rng = rng or random.Random()
        self._observer = observer or Observer()
        self._every = checkpoint_every
        self._broken: str | None = None
        config = config or SchedulerConfig()
        head, predicate = self._read_head()
        if head is None:
            state = SchedulerState(config, MetadataIndex() if with_index else None)
        else:
            state = load_rows(self._read_rows(head), config, self._place(_chunk_key(head, 0)))
        self.service: SchedulerService = SchedulerService(state=state, observer=observer)
        self._head, self._head_predicate = head or _Head(0, 0, 0, 0, 0), predicate
        if head is not None:
            self._replay_and_seal(head)
        self._position = 0
        self._checkpoint(epoch=self._head.epoch + 1)

    # ------------------------------------------------------------------------------------------------- commands

    @property
    def term(self) -> int:
        """The term of this owner's commands: how often the store was opened."""
        return self._head.epoch

    def poll(self, request: PollRequest) -> PollResponse:
        """One poll, durable once it is answered. A poll that changes nothing is not written down.

        Raises:
            InvalidInput: the capacity is negative, or there are too many updates.
            JournalConflict: somebody else has taken the store over. Poll there.
            Stale: this happened before, or it is unknown what became of an earlier command. Open the store again.
            CompactlibError: what the store raises; nothing was changed.
        """
        command = self._next_command()
        update = self.service.prepare(command, request)
        if update.changes_nothing:
            return PollResponse(answers=update.answers, now=update.now)
        result = self._carry_out(command, update)
        assert isinstance(result, Applied)
        return result.response

    def apply(self, operation: Operation) -> ApplyResult:
        """Carry out an operation, durably.

        Raises:
            JournalConflict: somebody else has taken the store over.
            Stale: this happened before, or it is unknown what became of an earlier command. Open the store again.
            CompactlibError: what the store raises; nothing was changed.
        """
        return self._carry_out(self._next_command(), operation)

    def checkpoint(self) -> None:
        """Write the whole state, and begin the journal anew. O(state).

        Raises:
            JournalConflict: somebody else has taken the store over.
            CompactlibError: what the store raises; the journal goes on.
        """
        self._check_usable()
        self._checkpoint(self._head.epoch)

    def audit(self) -> None:
        """Check the state, and that the store gives the same one. O(everything).

        Raises:
            CompactlibError: something is wrong; the message has the numbers.
        """
        self.service.audit()
        head, _ = self._read_head()
        if head != self._head:
            raise JournalConflict(index=self.service.state.applied_index)
        stored = SchedulerService(state=load_rows(self._read_rows(head), self.service.config))
        for position in range(self._position):
            key = _entry_key(head, position)
            stored.apply(*decode_command(self._kv.get(self._partition, key).value, self._place(key)))
        if list(dump_rows(stored.state)) != list(dump_rows(self.service.state)):
            raise CorruptData(path=self._place(HEAD_KEY), offset=0, expected=repr(self.service.state),
                              found=repr(stored.state))

    def _next_command(self) -> Command:
        self._check_usable()
        return Command(self.service.state.applied_index + 1, self._head.epoch, self._clock.now())

    def _check_usable(self) -> None:
        if self._broken is not None:
            raise Stale(f"this scheduler cannot go on: {self._broken}; open the store again")

    def _carry_out(self, command: Command, operation: Operation) -> ApplyResult:
        self._append(encode_command(command, operation), command.index)
        result = self.service.apply(command, operation)
        if self._position >= self._every:
            try:
                self._checkpoint(self._head.epoch)
            except CompactlibError as error:
                # The command is durable, and its answer true; the next one finds out whether the owner has changed.
                self._observer.event("scheduler_checkpoint_failed", {"error": str(error)})
        return result

    def _append(self, record: bytes, index: int) -> None:
        key = _entry_key(self._head, self._position)
        try:
            self._kv.set_if(self._partition, key, record, None)
        except OutcomeUnknown:
            # It is there or it is not; nobody but this owner writes here, except for a seal.
            self._broken = f"it is unknown whether command {index} was written"
            if self._get(key) != record:
                raise
            self._broken = None
        except PredicateFailed:
            self._broken = "somebody else has taken the store over"
            raise JournalConflict(index=index) from None
        self._position += 1

    # ---------------------------------------------------------------------------------------------- checkpoints

    def _checkpoint(self, epoch: int) -> None:
        before = self._head
        generation = before.generation + 1 if epoch == before.epoch else 1
        head = self._write_rows(epoch, generation)
        record = encode_record(RecordKind.HEAD, ["head", *attrs.astuple(head)])
        try:
            self._kv.set_if(self._partition, HEAD_KEY, record, self._head_predicate)
        except OutcomeUnknown:
            self._broken = "it is unknown whether a checkpoint was written"
            if self._get(HEAD_KEY) != record:
                raise
            self._broken = None
        except PredicateFailed:
            self._broken = "somebody else has taken the store over"
            raise JournalConflict(index=self.service.state.applied_index) from None
        self._head, self._position = head, 0
        found = self._kv.get(self._partition, HEAD_KEY)
        if found.value != record:
            self._broken = "somebody else has taken the store over"
            raise JournalConflict(index=self.service.state.applied_index)
        self._head_predicate = found.predicate
        self._clean_up(head)

    def _write_rows(self, epoch: int, generation: int) -> _Head:
        limit = min(MAX_CHUNK_BYTES, self._kv.limits.max_value_bytes) - 64
        nonce = self._rng.getrandbits(63)
        chunks, count = 0, 0
        pending: list[Plain] = []
        size = 0
        for row in dump_rows(self.service.state):
            row_size = len(encode_record(RecordKind.ROWS, [row]))
            if pending and size + row_size > limit:
                self._write_chunk(_Head(epoch, generation, nonce, chunks, count), pending)
                chunks, pending, size = chunks + 1, [], 0
            pending.append(row)
            count += 1
            size += row_size
        self._write_chunk(_Head(epoch, generation, nonce, chunks, count), pending)
        return _Head(epoch, generation, nonce, chunks + 1, count)

    def _write_chunk(self, head: _Head, rows: list[Plain]) -> None:
        self._kv.set(self._partition, _chunk_key(head, head.chunks), encode_record(RecordKind.ROWS, rows))

    def _clean_up(self, head: _Head) -> None:
        """Remove what no head names: older checkpoints, and journal entries from before this one; seals stay."""
        for prefix, kept in ((b"c/", _chunk_prefix(head)), (b"j/", b"-")):
            with self._kv.scan(self._partition, prefix=prefix) as entries:
                gone = [entry.key for entry in entries
                        if not entry.key.startswith(kept) and entry.value != _SEAL_RECORD]
            for key in gone:
                self._kv.delete(self._partition, key)

    # ------------------------------------------------------------------------------------------------- loading

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
        count = 0
        for number in range(head.chunks):
            key = _chunk_key(head, number)
            data = self._get(key)
            if data is None:
                raise CorruptData(path=self._place(key), offset=0, expected=f"chunk {number} of {head.chunks}",
                                  found="nothing")
            rows = decode_record(data, RecordKind.ROWS, self._place(key))
            yield from rows
            count += len(rows)
        if count != head.rows:
            raise CorruptData(path=self._place(HEAD_KEY), offset=16, expected=f"{head.rows} rows", found=f"{count}")

    def _replay_and_seal(self, head: _Head) -> None:
        """Apply the journal of the owner before, and keep it from writing more."""
        position = 0
        while True:
            key = _entry_key(head, position)
            data = self._get(key)
            if data is None:
                with contextlib.suppress(PredicateFailed, OutcomeUnknown):
                    self._kv.set_if(self._partition, key, _SEAL_RECORD, None)
                data = self._get(key)
            if data is None:
                continue  # an unknown outcome was none: once more
            if data == _SEAL_RECORD:
                return
            self.service.apply(*decode_command(data, self._place(key)))
            position += 1

    def _get(self, key: bytes) -> bytes | None:
        try:
            return self._kv.get(self._partition, key).value
        except KeyNotFound:
            return None

    def _place(self, key: bytes) -> str:
        return f"{self._partition!r}/{key!r} of the key-value store"

    def close(self) -> None:
        """Give the scheduler up; the store stays open. Using it afterwards raises `Stale`."""
        self._broken = "it was closed"

    def __repr__(self) -> str:
        return f"StoredScheduler(term {self.term}, {self._position} entries since the checkpoint, {self.service!r})"


def _chunk_prefix(head: _Head) -> bytes:
    return b"c/%016x/%016x/%016x/" % (head.epoch, head.generation, head.nonce)


def _chunk_key(head: _Head, number: int) -> bytes:
    return _chunk_prefix(head) + b"%08x" % number


def _entry_key(head: _Head, position: int) -> bytes:
    return b"j/%016x/%016x/%016x" % (head.epoch, head.generation, position)


_SEAL_RECORD = encode_record(RecordKind.COMMAND, ["seal"])
