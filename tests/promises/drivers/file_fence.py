# SPDX-License-Identifier: Apache-2.0
"""The drivers of a `FileFence` and a `KVFence`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from random import Random
from typing import TypeAlias

import attrs

from compactlib.errors import CompactlibError, CorruptData
from compactlib.fences import FencedOff, FileFence, KVFence
from compactlib.kv import MemoryStore, OutcomeUnknown
from compactlib.testing import Driver, HostLock, Journal, World
from tests.promises.drivers.denied import Denied, standing

RESOURCES = ("log", "table")
NEVER_NAMED = "never admitted to"


@attrs.frozen
class Admitted:
    """An admission of a token to a resource."""

    resource: str
    token: int


@attrs.frozen
class Committed:
    """A commit of a value with an admitted token."""

    resource: str
    token: int


@attrs.frozen
class Read:
    """A commitment that the fence returned, and that is therefore final."""

    resource: str
    token: int


@attrs.frozen
class Floor:
    """A rise of the floor: lower tokens are refused for all resources."""

    token: int


@attrs.frozen
class Seen:
    """A possible state of a resource.

    Attributes:
        token: the highest token, 0 without an admission.
        committed: the token of the commitment, 0 without a commitment.
        floor: the least floor: records below it were dropped.
    """

    token: int = 0
    committed: int = 0
    floor: int = 0


def value_of(resource: str, token: int) -> bytes:
    return b"%s by %d;" % (resource.encode(), token) * (token % 3)


AnyFence: TypeAlias = FileFence | KVFence


@attrs.frozen
class Opened:
    """A fence, which needs no close."""

    fence: AnyFence
    host: HostLock = attrs.field(factory=HostLock)

    def close(self) -> None:
        """Do nothing."""


class FileFenceDriver(Driver[Opened]):
    """A fence in a folder: admissions, commits, guarded steps, late workers, and a floor that rises."""

    def settings(self) -> Sequence[float]:
        """Return the seconds for which a call waits for others."""
        return [30.0, 0.0, 3600.0]

    def open(self, world: World, settings: float) -> Opened:
        return Opened(FileFence(world.folder / "fence", files=world.files, clock=world.clock, wait_seconds=settings))

    def changes_nothing(self, error: CompactlibError) -> bool:
        """Return whether the fence promises that a call with this error changed nothing."""
        return isinstance(error, FencedOff)

    def act(self, store: Opened, rng: Random, journal: Journal) -> None:
        kind = rng.choice(["admit", "guard", "admit", "floor", "late", "commit", "read"])
        fence, resource, step = store.fence, rng.choice(RESOURCES), rng.randrange(3)
        if kind == "admit":
            with store.host:  # so that the journal has the fence's order
                self._admit(fence, resource, _highest(fence, resource, journal) + step, journal)
        elif kind == "floor":
            with store.host:
                self._raise_floor(fence, step, journal)
        elif kind == "read":
            _read(fence, resource, journal)
        elif kind == "late":
            with store.host:
                token = _highest(fence, resource, journal)
                if token:
                    _require_late(fence, resource, token - 1)
                with journal.trying(Floor(min(step, token))):
                    fence.raise_floor(min(step, token))  # a late call, which lowers nothing
        else:
            self._commit(store, kind, resource, step, journal)

    def _raise_floor(self, fence: AnyFence, step: int, journal: Journal) -> None:
        """Raise the floor to the lowest token in use, or above it."""
        highest = {resource: _highest(fence, resource, journal) for resource in RESOURCES}
        floor = min(highest.values()) + step
        with journal.trying(Floor(floor)):
            fence.raise_floor(floor)
        for resource, token in highest.items() if not self.has_peers else ():
            assert token >= floor or fence.committed(resource) is None, f"{resource!r} is not forgotten"

    def _commit(self, store: Opened, kind: str, resource: str, step: int, journal: Journal) -> None:
        fence = store.fence
        with store.host:
            token = _highest(fence, resource, journal) + step
            self._admit(fence, resource, token, journal)
        # Another thread may have been admitted since then.
        committed = Committed(resource, token)
        try:
            with journal.trying(committed):
                if kind == "commit" or isinstance(fence, KVFence):
                    done = fence.commit(resource, token, value_of(resource, token)).committed
                else:
                    with fence.guard(resource, token):
                        done = fence.commit(resource, token, value_of(resource, token)).committed
        except FencedOff as late:
            assert late.highest > token
            with journal.trying(Denied(committed)):
                return
        except CompactlibError as error:
            self._deny(error, committed, journal)
            raise
        assert done is not None
        assert (done.token, done.value) == (token, value_of(resource, token))

    def _admit(self, fence: AnyFence, resource: str, token: int, journal: Journal) -> None:
        admitted = Admitted(resource, token)
        try:
            with journal.trying(admitted):
                fence.admit(resource, token)
        except CompactlibError as error:
            self._deny(error, admitted, journal)
            raise

    def _deny(self, error: CompactlibError, what: object, journal: Journal) -> None:
        if self.changes_nothing(error):
            with journal.trying(Denied(what)):
                pass

    def check(self, store: Opened, journal: Journal, *, damage: str) -> None:
        if damage == "missing" and not any(_highest(store.fence, each, Journal()) for each in RESOURCES):
            return  # without its folder, this fence cannot be distinguished from a new one
        floors, allowed = allowed_of(journal)
        try:
            floor = _highest(store.fence, NEVER_NAMED, Journal())
        except CorruptData:
            assert damage, "the floor is damaged"
            return
        assert floor in floors, f"the floor is {floor}, expected one of {floors}"
        for resource in RESOURCES:
            may_be = {seen for seen in allowed.get(resource, {Seen()}) if seen.floor <= floor}
            expected = {max(floor, seen.token) for seen in may_be}
            try:
                done = store.fence.committed(resource)
                committed = 0 if done is None else done.token
                assert committed in {seen.committed for seen in may_be}, \
                    f"{resource!r} was committed to by {committed}, expected one of {may_be}"
                assert done is None or done.value == value_of(resource, done.token), f"{resource!r} has a wrong value"
                highest = _highest(store.fence, resource, Journal())
            except CorruptData:
                assert damage, f"{resource!r} is damaged"
                continue
            assert highest in expected, f"{resource!r} admits from {highest} on, expected one of {expected}"
            if highest:
                _require_late(store.fence, resource, highest - 1)


class KVFenceDriver(FileFenceDriver):
    """A fence in the cells of a key-value store, without guarded steps, for several processes."""

    has_peers = True

    def changes_nothing(self, error: CompactlibError) -> bool:
        return not isinstance(error, OutcomeUnknown)

    def settings(self) -> Sequence[float]:
        return [0.0]

    def open(self, world: World, settings: float) -> Opened:
        store = world.keyed("fence", lambda: MemoryStore(predicates="value"))
        return Opened(KVFence(store, clock=world.clock, rng=Random(1)))


def _highest(fence: AnyFence, resource: str, journal: Journal) -> int:
    """Return the lowest token that the fence admits: the highest admitted token, or the floor."""
    try:
        with journal.trying(Admitted(resource, 0)):
            return fence.admit(resource, 0).token
    except FencedOff as late:
        return late.highest


def _read(fence: AnyFence, resource: str, journal: Journal) -> None:
    found = fence.committed(resource)
    if found is not None:
        with journal.trying(Read(resource, found.token)):
            assert found.value == value_of(resource, found.token)


def _require_late(fence: AnyFence, resource: str, token: int) -> None:
    """Require that every call of a worker with a lower token is refused."""
    for call in ("admit", "commit", "guard"):
        with contextlib.suppress(FencedOff):
            if call == "admit":
                fence.admit(resource, token)
            elif call == "commit" or isinstance(fence, KVFence):
                fence.commit(resource, token, value_of(resource, token))
            else:
                fence.guard(resource, token).__enter__()
            raise AssertionError(f"{call} let token {token} through to {resource!r}, which has seen a higher one")


def allowed_of(journal: Journal) -> tuple[set[int], dict[str, set[Seen]]]:
    """Return the possible floors, and the possible states of each resource."""
    floors, allowed = {0}, dict[str, set[Seen]]()

    def note(resource: str, is_sure: bool, *, token: int, committed: int = 0) -> None:
        before = allowed.get(resource, {Seen()})
        after = {Seen(max(seen.token, token), max(seen.committed, committed), seen.floor) for seen in before}
        if min(floors) > token:
            after |= {Seen(floor=min(floors))}  # a floor was tried first, and raised after it
        allowed[resource] = after if is_sure else before | after

    changes = standing(journal)
    # A floor without an acknowledgement may still be raised, which drops the records below it.
    late = [change for change in changes if isinstance(change.what, Floor) and not change.acknowledged]
    for change in (*changes, *late):
        is_sure = change.acknowledged
        match change.what:
            case Admitted(resource=resource, token=token):
                note(resource, is_sure, token=token)
            case Committed(resource=resource, token=token) | Read(resource=resource, token=token):
                note(resource, is_sure, token=token, committed=token)
            case Floor(token=floor):
                raised = {max(each, floor) for each in floors}
                floors = raised if is_sure else floors | raised
                for resource, before in allowed.items():
                    # A dropped record may be back after a crash: it is below the floor, where no token is admitted.
                    allowed[resource] = before | {Seen(floor=floor) for seen in before if seen.token < floor}
    return floors, allowed
