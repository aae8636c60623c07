# SPDX-License-Identifier: Apache-2.0
"""Fences: a token is enforced where the data lies, so that a late worker cannot commit after its job went to another.

A scheduler's answer is old once it is read: between "the job is yours" and the rename that publishes a file, the job
may have gone to another worker. A fence closes this gap at the storage side. It keeps, for each resource, the highest
token it ever admitted, and refuses every lower one. What exactly is promised, for one resource:

1. `admit` records a token and checks it in one atomic step, durably where the fence is durable. Once it returned, no
   lower token is admitted, and none commits.
2. `commit` checks the token and publishes a value in one atomic step (a compare-and-set of the cell that also holds
   the token). A higher token that is admitted in between wins: the commit is refused and nothing has changed. So the
   committed values ascend by token, and the holder of the highest token knows that no other will commit.
3. `guard` (fences that can lock) runs a step, such as a few renames, while admissions to the resource wait: a higher
   token comes either before the step begins, which is then refused, or after it has ended. If the process dies within
   the step, the lock goes with it and the next one is admitted: it must first finish or undo what it finds, which is
   what a commit protocol's recovery does.

Use `commit` where the published thing is a value (the names of the new files, a manifest): write the files privately,
then commit their names. Use `guard` where it is a change of files in place, on one machine.

Tokens are those of the scheduler: indexes of one log, so they ascend over all resources. That allows a floor: below
`raise_floor(token)` nothing is admitted to any resource, and what was recorded below is forgotten. A fence that lasts
keeps the id of its log beside the floor, and refuses every other one: a log that was begun anew counts from 1 again.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeAlias

import attrs

from compactlib._arguments import require_seconds
from compactlib.errors import Busy, InvalidInput
from compactlib.fences.errors import CommittedOtherwise, FencedOff, OtherLog
from compactlib.files.json_record import JsonRecord
from compactlib.guard import take_within

MAX_TOKEN = (1 << 64) - 1
"""The highest token."""
MAX_RESOURCE_BYTES = 1000
MAX_VALUE_BYTES = 256 * 1024
"""The longest value of a commitment, in bytes."""


@attrs.frozen
class Commitment:
    """What was committed, and with which token."""

    token: int
    value: bytes


@attrs.frozen
class Admission:
    """A token was admitted; none below it will be any more.

    Attributes:
        resource: to what.
        token: the highest so far.
        committed: what was committed last, by this token or a lower one; `None` if nothing was. Says how far the
            resource itself has come. Blocks named here by a lower token must not be reported to the scheduler as a
            job's outputs: it may have refused them before, and had them deleted.
    """

    resource: str
    token: int
    committed: Commitment | None


class Fence(Protocol):
    """Admits ascending tokens to resources. Any thread may call any method; all methods raise `InvalidInput` for a
    resource's name that is empty or longer than 1000 bytes, and for a token outside 0 .. 2**64 - 1."""

    def admit(self, resource: str, token: int) -> Admission:
        """Record the token, unless a higher one was seen. The same token may come again.

        Raises:
            FencedOff: a higher token was admitted, or the floor lies above.
            Busy: a guarded step takes longer than this fence waits.
        """

    def commit(self, resource: str, token: int, value: bytes) -> Admission:
        """Publish a value (at most 256 KiB), if the token is still the highest. The same value may come again.

        Raises:
            FencedOff: a higher token was admitted meanwhile, or the floor lies above; this call has changed nothing.
                Whether an earlier one without an answer counts, `committed` says: ask before outputs are removed.
            CommittedOtherwise: this token has committed another value before; that one stays.
            InvalidInput: the token was never admitted, or the value is too long.
            Busy: as for `admit`.
        """

    def committed(self, resource: str) -> Commitment | None:
        """What was committed last, by whatever token. Admits nothing."""

    def raise_floor(self, token: int) -> int:
        """Refuse tokens below this one everywhere, for good, and forget resources whose last token lies below.

        Returns how many were forgotten. Give the lowest token that any live job has. Cost: one step a resource.
        """


class LockingFence(Fence, Protocol):
    """A fence that can also keep newer tokens waiting while a step runs."""

    def guard(self, resource: str, token: int) -> AbstractContextManager[Admission]:
        """Admit the token and run the body; admissions to the resource wait until it ends. `commit` works within.

        To be left in the thread that entered it. Steps of one fence run one at a time, whatever their resources.

        Raises:
            FencedOff: a higher token was admitted, or the floor lies above; the body did not run.
            Busy: another guarded step takes longer than this fence waits.
        """


@attrs.frozen
class TokenFence:
    """A `CommitFence` for one job: what it commits is let through while its token is the highest.

    Give it to any store's `compact`: a holder that came too late gets `FencedOff`, and has committed nothing.

    >>> from compactlib.fences import MemoryFence, TokenFence
    >>> fence = MemoryFence()
    >>> with TokenFence(fence, "log 7", 57).guard() as admitted:
    ...     admitted.token
    57
    >>> with TokenFence(fence, "log 7", 41).guard():
    ...     pass
    Traceback (most recent call last):
        ...
    compactlib.fences.errors.FencedOff: token 41 is stale: 'log 7' has seen 57; its job went to another worker, so
    ...

    Attributes:
        fence: where tokens are kept.
        resource: the fence's name for what is committed to.
        token: the job's fencing token.

    Raises:
        InvalidInput: the fence cannot guard a step, or the name or the token is out of range.
    """

    fence: LockingFence
    resource: str
    token: int

    def __attrs_post_init__(self) -> None:
        if not callable(getattr(self.fence, "guard", None)):
            raise InvalidInput(f"{self.fence!r:.200} cannot keep newer tokens waiting while a step runs; give a "
                               f"LockingFence, such as FileFence or MemoryFence")
        check_names(self.resource, self.token)

    def guard(self) -> AbstractContextManager[Admission]:
        """See `CommitFence.guard` and `LockingFence.guard`."""
        return self.fence.guard(self.resource, self.token)


# ------------------------------------------------------------------------------------- the rules, for all fences


def check_admission(resource: str, token: int, record: Admission | None, floor: int) -> Admission:
    """The record after admitting `token`. Pure."""
    highest = max(floor, -1 if record is None else record.token)
    if token < highest:
        raise FencedOff(resource=resource, token=token, highest=highest)
    return Admission(resource, token, None if record is None else record.committed)


def check_commit(resource: str, token: int, value: bytes, record: Admission | None, floor: int) -> Admission:
    """The record after committing `value`; the same object if it was committed before. Pure."""
    if len(value) > MAX_VALUE_BYTES:
        raise InvalidInput(f"a value of {len(value)} bytes cannot be committed to {resource!r}; the limit is "
                           f"{MAX_VALUE_BYTES}: write it to a file, and commit the file's name")
    admitted = check_admission(resource, token, record, floor)
    if record is None or record.token < token:
        raise InvalidInput(f"token {token} was never admitted to {resource!r}; call admit() before the work, so that "
                           f"it sees what an earlier holder has committed")
    done = admitted.committed
    if done is not None and done.token == token:
        if done.value != value:
            raise CommittedOtherwise(resource=resource, token=token)
        return record
    return Admission(resource, token, Commitment(token, value))


def check_names(resource: str, token: int) -> None:
    """Refuse what no fence keeps.

    Raises:
        InvalidInput: the resource's name or the token is out of range.
    """
    try:
        size = len(resource.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput(f"a resource's name must be text that UTF-8 can hold: {error}") from None
    if not 1 <= size <= MAX_RESOURCE_BYTES:
        raise InvalidInput(f"a resource's name has {size} bytes; give 1 to {MAX_RESOURCE_BYTES}")
    check_token(token)


def check_token(token: int) -> None:
    """Refuse a token that is none.

    Raises:
        InvalidInput: outside 0 .. 2**64 - 1.
    """
    if not 0 <= token <= MAX_TOKEN:
        raise InvalidInput(f"token {token}; tokens are log indexes between 0 and {MAX_TOKEN}")


@attrs.frozen
class Floor:
    """What is stored once for a whole fence.

    Attributes:
        log: the id of the log whose tokens these are.
        token: the floor.
    """

    log: str
    token: int = 0


RECORDS: JsonRecord[Admission] = JsonRecord("fence record", b"CLFENCE\0", 2, Admission)
FLOORS: JsonRecord[Floor] = JsonRecord("fence floor", b"CLFLOOR\0", 1, Floor)


def check_log(floor: Floor | None, log: str, place: str) -> Floor:
    """Return the floor of a fence for this log, the lowest if none is stored yet.

    Raises:
        OtherLog: it is another log's.
    """
    if floor is None:
        return Floor(log)
    if floor.log != log:
        raise OtherLog(place=place, log=log, kept=floor.log)
    return floor


# ------------------------------------------------------------------------------------------- what all fences share


Rule: TypeAlias = Callable[[Admission | None, int], Admission]
"""Makes the next record of a resource of its present one and the floor; see `check_admission`."""


class RuledFence(ABC):
    """The methods of a `Fence` over four steps of a store."""

    @abstractmethod
    def _change(self, resource: str, token: int, rule: Rule) -> Admission:
        """Replace a resource's record by what the rule makes of it, with the floor as it is at that moment."""

    @abstractmethod
    def _record(self, resource: str) -> Admission | None:
        """Return the record of a resource."""

    @abstractmethod
    def _raise_floor(self, token: int) -> int:
        """Raise the floor unless it is higher; returns it as it is then."""

    @abstractmethod
    def _forget_below(self, floor: int) -> int:
        """Remove the records below the floor; returns how many."""

    def admit(self, resource: str, token: int) -> Admission:
        """Record the token, unless a higher one was seen; see `Fence.admit`."""
        check_names(resource, token)
        return self._change(resource, token, lambda record, floor: check_admission(resource, token, record, floor))

    def commit(self, resource: str, token: int, value: bytes) -> Admission:
        """Publish a value, if the token is still the highest; see `Fence.commit`."""
        check_names(resource, token)
        wanted = bytes(memoryview(value))
        return self._change(resource, token, lambda record, floor: check_commit(resource, token, wanted, record, floor))

    def committed(self, resource: str) -> Commitment | None:
        """Return what was committed last, by whatever token. Admits nothing."""
        check_names(resource, 0)
        record = self._record(resource)
        return None if record is None else record.committed

    def raise_floor(self, token: int) -> int:
        """Refuse tokens below this one everywhere, and forget what lies below; see `Fence.raise_floor`.

        Reads every record. May be interrupted and called again.

        Raises:
            CorruptData, Unsupported: a record cannot be read; but in an object store, the others are done with.
        """
        check_token(token)
        return self._forget_below(self._raise_floor(token))


class GuardingFence(RuledFence):
    """The methods of a `LockingFence` over a lock.

    Args:
        wait_seconds: how long a call waits for guarded steps of others.

    Raises:
        InvalidInput: that is negative, or no finite number.
    """

    def __init__(self, wait_seconds: float) -> None:
        require_seconds("wait_seconds", wait_seconds)
        self._wait_seconds = wait_seconds
        self._begin()

    def _begin(self) -> None:
        """Begin unlocked."""
        self._lock = threading.RLock()
        self._guarded: dict[str, int] = {}  # the token of each resource for which a guarded step runs

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the fence's lock; by the thread that holds it already, once more."""
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

    @abstractmethod
    def _replace(self, resource: str, rule: Rule) -> Admission:
        """Carry out `_change`, with the lock held."""

    def _change(self, resource: str, token: int, rule: Rule) -> Admission:
        with self._held():
            inside = self._guarded.get(resource, token)
            if token > inside:
                # A guarded step must not let a newer token in itself: every other caller has to wait for its end, too.
                raise InvalidInput(f"token {token} cannot be admitted to {resource!r} within a step that is guarded "
                                   f"for token {inside}; leave the step first")
            return self._replace(resource, rule)

    @contextmanager
    def guard(self, resource: str, token: int) -> Iterator[Admission]:
        """Run the body as a guarded step; see `LockingFence.guard`. Steps of all resources run one at a time."""
        with self._held():
            record = self.admit(resource, token)
            before = self._guarded.get(resource)
            self._guarded[resource] = token
            try:
                yield record
            finally:
                del self._guarded[resource]
                if before is not None:
                    self._guarded[resource] = before


# --------------------------------------------------------------------------------------------------- in memory


class MemoryFence(GuardingFence):
    """A `LockingFence` for the threads of one process; remembers nothing after it.

    Args:
        wait_seconds: how long a call waits for guarded steps of others.

    Raises:
        InvalidInput: that is negative, or no finite number.
    """

    def __init__(self, *, wait_seconds: float = 30.0) -> None:
        super().__init__(wait_seconds)
        self._records: dict[str, Admission] = {}
        self._floor = 0

    def _replace(self, resource: str, rule: Rule) -> Admission:
        record = self._records[resource] = rule(self._records.get(resource), self._floor)
        return record

    def _record(self, resource: str) -> Admission | None:
        return self._records.get(resource)

    def _raise_floor(self, token: int) -> int:
        with self._held():
            self._floor = max(self._floor, token)
            return self._floor

    def _forget_below(self, floor: int) -> int:
        with self._held():
            old = [name for name, record in self._records.items() if record.token < floor]
            for name in old:
                del self._records[name]
            return len(old)

    def __repr__(self) -> str:
        return f"MemoryFence({len(self._records)} resources, floor {self._floor})"
