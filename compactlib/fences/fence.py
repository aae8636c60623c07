# SPDX-License-Identifier: Apache-2.0
"""Fences: storage checks a token, so that a late worker cannot commit after its job went to another worker.

A scheduler's answer may be outdated when the worker reads it: between "the job is yours" and the rename that publishes
a file, the job may go to another worker. A fence closes this gap in the storage. It stores the highest token admitted
to each resource, and refuses lower tokens. Its promises, for one resource:

1. `admit` checks and records a token in one atomic step, durably if the fence is durable. After it returns, no lower
   token is admitted, and no lower token commits.
2. `commit` checks the token and publishes a value in one atomic step (a compare-and-set of the cell that also has the
   token). If a higher token is admitted in between, the commit is refused and nothing has changed. So committed values
   ascend by token, and the holder of the highest token knows that no other worker will commit.
3. `guard` (of a `LockingFence`) runs a step, such as a few renames, while admissions to the resource wait: a higher
   token is admitted before the step, which is then refused, or after it. If the process dies within the step, the lock
   is released and the next worker is admitted: it first rolls the step forward or back, as the recovery of a commit
   protocol does.

Use `commit` to publish a value (the names of new files, a manifest): write the files under private names, then commit
their names. Use `guard` for a change of files in place, on one machine.

Tokens are the scheduler's: indexes of one log, so they ascend over all resources. That allows a floor: no token below
`raise_floor(token)` is admitted to any resource, and records below it are removed. A durable fence stores the id of its
log with the floor, and refuses other logs, since a new log counts from 1 again.

The record of a resource has its highest token and its committed value, so that one change both checks the token and
commits. The floor is raised before records below it are removed, and each change reads it after the record. A record
may be absent because the floor has risen, so a change that creates a record reads the floor again, and is refused below
it.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import attrs

from compactlib._arguments import require_seconds
from compactlib.errors import Busy, CompactlibError, CorruptData, InvalidInput, Unsupported
from compactlib.fences.errors import CommittedOtherwise, FencedOff, OtherLog
from compactlib.files.durable_record import JsonRecord
from compactlib.guard import take_within
from compactlib.kv.errors import OutcomeUnknown

MAX_TOKEN = (1 << 64) - 1
"""The highest token."""
MAX_RESOURCE_BYTES = 1000
MAX_VALUE_BYTES = 256 * 1024
"""The longest value of a commitment, in bytes."""


@attrs.frozen
class Commitment:
    """A committed value and its token."""

    token: int
    value: bytes


@attrs.frozen
class Admission:
    """An admitted token; no lower one will be admitted.

    Attributes:
        resource: the token's resource.
        token: the highest so far.
        committed: the last commit, by this token or a lower one; `None` if there is none: the present state of the
            resource. Do not report blocks of a lower token's commit to the scheduler as a job's outputs: it may have
            refused them, and had them deleted.
    """

    resource: str
    token: int
    committed: Commitment | None


@attrs.frozen
class Floor:
    """The stored floor of a fence.

    Attributes:
        log: the id of the log of the tokens.
        token: the floor.
    """

    log: str
    token: int = 0


ValueT = TypeVar("ValueT", Admission, Floor)

FORMATS: dict[Any, JsonRecord[Any]] = {
    Admission: JsonRecord("fence record", b"CLFENCE\0", 1, Admission),
    Floor: JsonRecord("fence floor", b"CLFLOOR\0", 1, Floor),
}


class Fence(ABC):
    """Admits ascending tokens to resources. Threads may share it.

    A fence of one's own implements `_read`, `_update`, `_place`, `_places` and `_forget`, and sets `_floor_place`.

    All methods raise `InvalidInput` for a resource's name that is empty or longer than 1000 bytes, and for a token
    outside 0 .. 2**64 - 1.
    """

    _log: str = ""
    _floor_place: Any

    # ---- for a store of records to implement

    @abstractmethod
    def _read(self, place: Any, kind: type[ValueT]) -> ValueT | None:
        """Return the record or the floor at a place; `None` if there is none."""

    @abstractmethod
    def _update(self, place: Any, kind: type[ValueT], change: Callable[[ValueT | None], ValueT]) -> ValueT:
        """Replace the value at a place by the result of `change`, in one atomic step; `change` may be called again."""

    @abstractmethod
    def _place(self, resource: str) -> Any:
        """Return the place of a resource's record."""

    @abstractmethod
    def _places(self) -> Iterable[Any]:
        """Return the places of all resources' records."""

    @abstractmethod
    def _forget(self, place: Any, floor: int) -> bool:
        """Remove a record if it is below the floor; return whether it was."""

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the lock of a fence that has one; re-entrant."""
        yield

    # ---- tokens and values

    def admit(self, resource: str, token: int) -> Admission:
        """Record the token, unless a higher token was admitted. Idempotent.

        Raises:
            FencedOff: a higher token was admitted, or the token is below the floor.
            Busy: a guarded step takes longer than this fence waits.
        """
        return self._change(resource, token, None)

    def commit(self, resource: str, token: int, value: bytes) -> Admission:
        """Publish a value (at most 256 KiB), if the token is still the highest. Idempotent.

        Raises:
            FencedOff: a higher token was admitted, or the token is below the floor; this call has changed nothing. An
                earlier call without an answer may have committed: check `committed` before you remove outputs.
            CommittedOtherwise: this token has committed another value before, which stays.
            InvalidInput: the token was never admitted, or the value is too long.
            Busy: as for `admit`.
        """
        return self._change(resource, token, bytes(memoryview(value)))

    def committed(self, resource: str) -> Commitment | None:
        """Return the last commit of any token. Admits nothing."""
        _check_names(resource)
        record = self._read(self._place(resource), Admission)
        return None if record is None else record.committed

    def raise_floor(self, token: int) -> int:
        """Refuse lower tokens for all resources, for ever, and remove the records below the token.

        Returns the number of removed records. Pass the lowest token of all live jobs. Cost: a step for each resource.
        Can be repeated after an interrupt.

        Raises:
            CorruptData, Unsupported: a record cannot be read; the others were processed.
        """
        _check_names("all", token)
        wrong: list[Exception] = []
        forgotten = 0
        with self._held():
            floor = self._raise_floor(token)
            for place in self._places():
                try:
                    forgotten += self._forget(place, floor)
                except (CorruptData, Unsupported) as error:
                    wrong.append(error)
        if wrong:
            raise wrong[0]
        return forgotten

    # ---- the protocol

    def _change(self, resource: str, token: int, value: bytes | None) -> Admission:
        _check_names(resource, token)
        is_new: list[bool] = []

        def changed(record: Admission | None) -> Admission:
            is_new.append(record is None)
            return _next_record(resource, token, value, record, self._floor())

        with self._held():
            done = self._update(self._place(resource), Admission, changed)
            if is_new[-1]:
                try:
                    floor = self._floor()
                except CompactlibError as error:
                    raise OutcomeUnknown(operation=f"token {token} of {resource!r}", path=repr(self),
                                         detail=f"the floor cannot be read after the write: {error}") from error
                _next_record(resource, token, None, done, floor)
        return done

    def _floor(self) -> int:
        floor = self._read(self._floor_place, Floor)
        if floor is None and self._log:
            return self._raise_floor(0)
        return self._checked(floor).token

    def _raise_floor(self, token: int) -> int:
        def raised(floor: Floor | None) -> Floor:
            before = self._checked(floor)
            return Floor(before.log, max(before.token, token))

        return self._update(self._floor_place, Floor, raised).token

    def _checked(self, floor: Floor | None) -> Floor:
        """Return the floor, 0 if none is stored; `OtherLog` if it is another log's."""
        if floor is not None and floor.log != self._log:
            raise OtherLog(place=repr(self), log=self._log, kept=floor.log)
        return floor or Floor(self._log)


class LockingFence(Fence):
    """A fence that can also make newer tokens wait during a step: each step of its store runs under a lock.

    Args:
        wait_seconds: how long a call waits for guarded steps of other threads and processes.
    """

    def __init__(self, wait_seconds: float) -> None:
        require_seconds("wait_seconds", wait_seconds)
        self._wait_seconds = wait_seconds
        self._lock = threading.RLock()
        self._guarded: dict[str, int] = {}  # by resource: the token of its running guarded step

    @contextmanager
    def guard(self, resource: str, token: int) -> Iterator[Admission]:
        """Admit the token and run the body; admissions to the resource wait until it ends. The body may call `commit`.

        Enter and leave it in the same thread. A fence runs one step at a time, for all resources.

        Raises:
            FencedOff: a higher token was admitted, or the token is below the floor; the body did not run.
            Busy: another guarded step takes longer than this fence waits.
        """
        with self._held():
            record = self.admit(resource, token)
            before, self._guarded = self._guarded, {**self._guarded, resource: token}
            try:
                yield record
            finally:
                self._guarded = before

    @contextmanager
    def _held(self) -> Iterator[None]:
        taken: list[bool] = []
        lock = self._lock
        try:
            take_within(lock, self._wait_seconds, taken)
            if taken != [True]:
                raise Busy(f"a guarded step of this process has been running for more than {self._wait_seconds} "
                           f"seconds in {self!r}; wait for it")
            yield
        finally:
            if taken == [True]:
                lock.release()

    def _change(self, resource: str, token: int, value: bytes | None) -> Admission:
        with self._held():
            # All other callers wait for the end of a guarded step.
            inside = self._guarded.get(resource, token)
            if token > inside:
                raise InvalidInput(f"token {token} cannot be admitted to {resource!r} within a step that is guarded "
                                   f"for token {inside}; leave the step first")
            return super()._change(resource, token, value)


@attrs.frozen
class TokenFence:
    """A `CommitFence` for one job: commits pass while its token is the highest.

    Pass it to any store's `compact`, which raises `FencedOff` for a late worker, and commits nothing.

    Attributes:
        fence: the fence that checks the token.
        resource: name of the store in the fence.
        token: the job's fencing token.
    """

    fence: LockingFence
    resource: str
    token: int

    def guard(self) -> AbstractContextManager[Admission]:
        """Admit the token for the time of the block; other admissions wait until its end."""
        return self.fence.guard(self.resource, self.token)


# --------------------------------------------------------------------------------------------------------- the rules


def _next_record(resource: str, token: int, value: bytes | None, record: Admission | None, floor: int) -> Admission:
    """Return the record after `token` is admitted, or commits `value`; the same record if it has done so before."""
    highest = max(floor, -1 if record is None else record.token)
    if token < highest:
        raise FencedOff(resource=resource, token=token, highest=highest)
    done = None if record is None else record.committed
    if value is None:
        return Admission(resource, token, done)
    if len(value) > MAX_VALUE_BYTES:
        raise InvalidInput(f"a value of {len(value)} bytes cannot be committed to {resource!r}; the limit is "
                           f"{MAX_VALUE_BYTES}: write it to a file, and commit the file's name")
    if record is None or record.token < token:
        raise InvalidInput(f"token {token} was never admitted to {resource!r}; call admit() before the work, so that "
                           f"it sees what an earlier holder has committed")
    if done is not None and done.token == token:
        if done.value != value:
            raise CommittedOtherwise(resource=resource, token=token)
        return record
    return Admission(resource, token, Commitment(token, value))


def _check_names(resource: str, token: int = 0) -> None:
    """Raise `InvalidInput` if the name of a resource or a token is out of range."""
    try:
        size = len(resource.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput(f"a resource's name must be text that UTF-8 can hold: {error}") from None
    if not 1 <= size <= MAX_RESOURCE_BYTES:
        raise InvalidInput(f"a resource's name has {size} bytes; give 1 to {MAX_RESOURCE_BYTES}")
    if not 0 <= token <= MAX_TOKEN:
        raise InvalidInput(f"token {token}; tokens are log indexes between 0 and {MAX_TOKEN}")


# --------------------------------------------------------------------------------------------------- in memory


class MemoryFence(LockingFence):
    """A `LockingFence` in memory, for the threads of one process.

    Args:
        wait_seconds: how long a call waits for guarded steps of other threads.
    """

    def __init__(self, *, wait_seconds: float = 30.0) -> None:
        super().__init__(wait_seconds)
        self._records: dict[str, Any] = {}
        self._floor_place = ""  # no resource has this name

    def _read(self, place: str, kind: type[ValueT]) -> ValueT | None:
        found: ValueT | None = self._records.get(place)
        return found

    def _update(self, place: str, kind: type[ValueT], change: Callable[[ValueT | None], ValueT]) -> ValueT:
        after = self._records[place] = change(self._records.get(place))
        return after

    def _place(self, resource: str) -> str:
        return resource

    def _places(self) -> list[str]:
        return [place for place in self._records if place != self._floor_place]

    def _forget(self, place: str, floor: int) -> bool:
        is_old: bool = self._records[place].token < floor
        if is_old:
            del self._records[place]
        return is_old

    def __repr__(self) -> str:
        return f"MemoryFence({len(self._places())} resources)"
