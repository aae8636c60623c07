# SPDX-License-Identifier: Apache-2.0
"""What a host does to a blob store, as values: random histories for Hypothesis, and a store that lives through them.

>>> import tempfile
>>> history = (Put(0, 40), Put(1, 40, life_seconds=2.0), Delete(0), Wait(9.0), CompactBlobs())
>>> with tempfile.TemporaryDirectory() as folder:
...     with BlobHistory(folder) as store:
...         for step in history:
...             store.step(step)
...         store.live
{}
"""

from __future__ import annotations

import contextlib
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

import attrs

from compactlib.blobstore.compaction.plan.policies.compact_all import CompactAll
from compactlib.blobstore.compaction.plan.policy import BlobPolicy
from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.errors import StoreFull
from compactlib.blobstore.model.values import Blob, BlobInfo, GetOptions
from compactlib.blobstore.store.store import BlobStore
from compactlib.clock import ManualClock
from compactlib.errors import Conflict, MissingDependency, NotFound
from compactlib.files.disk import StrPath
from compactlib.outcome import Done
from compactlib.runtime.budget import Budget
from compactlib.testing.kit.examples import histories_of

try:
    from hypothesis import strategies as st
except ImportError:
    raise MissingDependency(package="hypothesis", extra="testing", purpose="random histories of a store") from None

BLOBS = 24
"""Among how many blobs the steps of a history are spread."""
_RETENTION_SECONDS = 5.0
_TICK_SECONDS = 0.001
_LIVES = (None, None, 0.0, 0.001, 2.0, 7.5, 3_600.0)
_PLAIN = GetOptions()
_WITH_DELETED = GetOptions(include_deleted=True)
_REFUSALS = (NotFound, Conflict, StoreFull)


@attrs.frozen
class Put:
    """Write blobs; each whose name was used before is passed over.

    Attributes:
        blob: the first one, 0 to `BLOBS` - 1.
        size: bytes of content of each.
        life_seconds: the time to live of each; `None`: for ever.
        count: how many, one after the other.
    """

    blob: int
    size: int
    life_seconds: float | None = None
    count: int = 1


@attrs.frozen
class Delete:
    """Delete blobs.

    Attributes:
        blob: the first one.
        count: how many, one after the other.
    """

    blob: int
    count: int = 1


@attrs.frozen
class Undelete:
    """Take a deletion back.

    Attributes:
        blob: which one.
    """

    blob: int


@attrs.frozen
class KeepForever:
    """Take a blob's time to live away.

    Attributes:
        blob: which one.
    """

    blob: int


@attrs.frozen
class Wait:
    """Let time pass.

    Attributes:
        seconds: how much.
    """

    seconds: float


@attrs.frozen
class CompactBlobs:
    """Close the segment being written, ask the policy, and carry out its plan."""


@attrs.frozen
class ReopenStore:
    """Close the store and open it again."""


BlobStep: TypeAlias = Put | Delete | Undelete | KeepForever | Wait | CompactBlobs | ReopenStore
"""One thing that a host does to a store."""


def blob_lifetimes(*, max_kinds: int = 3) -> st.SearchStrategy[tuple[float | None, ...]]:
    """The times to live that one workload gives its blobs, in seconds, `None` for ever: all alike, or a mix.

    Among them what is dead when it is written, what dies within a compaction, and what outlives every history. Shrinks
    to for ever alone.

    Args:
        max_kinds: the most different ones.
    """
    return st.lists(st.sampled_from(_LIVES), min_size=1, max_size=max_kinds).map(tuple)


def blob_steps(lives: tuple[float | None, ...] = (None,)) -> st.SearchStrategy[BlobStep]:
    """Single steps.

    Args:
        lives: the times to live to choose from.
    """
    blobs = st.integers(0, BLOBS - 1)
    puts = st.builds(Put, blobs, st.sampled_from([250, 250, 600, 1, 0]), st.sampled_from(lives), st.integers(1, 12))
    deletes = st.builds(Delete, blobs, st.integers(1, 12))
    waits = st.builds(Wait, st.sampled_from([10.0, 10.0, 5.0, 1.0, 0.001]))
    return st.one_of(puts, puts, deletes, waits, st.just(CompactBlobs()), st.just(CompactBlobs()),
                     st.builds(Undelete, blobs), st.builds(KeepForever, blobs), st.just(ReopenStore()))


def blob_histories(*, max_steps: int = 20) -> st.SearchStrategy[tuple[BlobStep, ...]]:
    """Histories of a store: blobs come, end by deletion or by age, are brought back, and compactions come in between.

    Shrinks to the fewest steps, on blob 0.

    Args:
        max_steps: the most steps.
    """
    return blob_lifetimes().flatmap(lambda lives: histories_of(blob_steps(lives), max_steps))


class BlobHistory:
    """A real store in small segments that lives through steps, beside what was acknowledged; compactions must change no
    answer. Single-threaded.

    Args:
        folder: the store's; new.
        policy: plans the compactions.

    Attributes:
        live: content of each blob that can be read now, by number.
        clock: the store's.
    """

    def __init__(self, folder: StrPath, policy: BlobPolicy | None = None) -> None:
        self.clock: ManualClock = ManualClock(1_000.0)
        self._policy: BlobPolicy = policy or CompactAll()
        self._written: dict[int, bytes] = {}
        # When each blob that was written expires, and which of them are deleted.
        self._ends: dict[int, float] = {}
        self._deleted: set[int] = set()
        self._deleted_at: dict[int, float] = {}
        self._folder = Path(folder)
        self._config = BlobStoreConfig(
            capacity_bytes=6 << 10, segment_bytes=1 << 10, index_max_entries=3, journal_max_entries=1,
            deleted_retention_seconds=_RETENTION_SECONDS)
        self._store = BlobStore(self._folder, self._config, clock=self.clock)

    @property
    def live(self) -> dict[int, bytes]:
        """Content of each blob that can be read now, by number."""
        found = ((blob, self._read(blob)) for blob in range(BLOBS))
        return {blob: content for blob, content in found if content is not None}

    def step(self, step: BlobStep) -> None:
        """Carry out one step, and check what it did. A step that the store refuses by its rules does nothing.

        Raises:
            AssertionError: a blob is lost, damaged, or back from the dead; the message names it.
        """
        with contextlib.suppress(*_REFUSALS):
            self._carry_out(step)
        live, now = self.live, self.clock.now()
        for blob, content in live.items():
            assert blob in self._ends and blob not in self._deleted and self._ends[blob] >= now - _TICK_SECONDS, (
                f"after {step} blob {blob} can be read, which was never written, or is deleted, or has expired")
            assert content == self._written[blob], (
                f"after {step} blob {blob} holds {content!r}, and {self._written[blob]!r} was written")
        lost = sorted(blob for blob, end in self._ends.items()
                      if blob not in live and blob not in self._deleted and end > now + _TICK_SECONDS)
        assert not lost, f"after {step} blobs {lost} are gone, which were written, and neither deleted nor expired"
        self._store.audit()

    def _carry_out(self, step: BlobStep) -> None:
        match step:
            case Put():
                for blob in _blobs(step):
                    self._put(blob, bytes([ord("a") + blob]) * step.size, step.life_seconds)
            case Delete():
                for blob in _blobs(step):
                    with contextlib.suppress(*_REFUSALS):
                        self._store.delete(_id(blob))
                        self._deleted.add(blob)
                        self._deleted_at[blob] = self.clock.now()
            case Undelete():
                self._store.undelete(_id(step.blob))
                self._deleted.discard(step.blob)
            case KeepForever():
                self._store.ttl_update(_id(step.blob))
                self._ends[step.blob] = inf
            case Wait():
                self.clock.advance(step.seconds)
            case CompactBlobs():
                self._compact()
            case ReopenStore():
                before = self.live
                self._store.close()
                self._store = BlobStore(self._folder, self._config, clock=self.clock)
                assert self.live == before, f"opened again the store has blobs {set(self.live)}, not {set(before)}"

    def _put(self, blob: int, content: bytes, life_seconds: float | None) -> None:
        with contextlib.suppress(*_REFUSALS):
            self._store.put(_id(blob), content, ttl_seconds=life_seconds)
            self._written[blob] = content
            self._deleted.discard(blob)
            self._ends[blob] = inf if life_seconds is None else self.clock.now() + life_seconds

    def _compact(self) -> None:
        name = self._policy.name
        self._store.close_active_segment()
        plan = self._store.plan(self._policy)
        if plan.is_empty:
            return
        before, undeletable = self._lives(), self._undeletable()
        outcome = self._store.compact(plan, budget=Budget())
        assert isinstance(outcome, Done), f"{name}: the plan {plan!r} could not be carried out: {outcome!r}"
        after = self._lives()
        # A compaction takes time: blobs that expire meanwhile may go, and so may those whose retention ends.
        ended = self.clock.now()
        lost = sorted(blob for blob, end in before.items() if blob not in after and end >= ended)
        assert not lost, f"{name}: {plan!r} lost blobs {lost}, which could be read before"
        back = sorted(after.keys() - before.keys())
        assert not back, f"{name}: {plan!r} brought back blobs {back}, which were deleted or had expired"
        kept = self._undeletable()
        gone = sorted(blob for blob, end in undeletable.items() if blob not in kept and end >= ended)
        assert not gone, (
            f"{name}: {plan!r} took blobs {gone}, which were deleted less than {_RETENTION_SECONDS} s ago and could "
            f"still be undeleted")

    def _lives(self) -> dict[int, float]:
        """When each blob that can be read now expires."""
        infos = {blob: self._store.info(_id(blob)) for blob in range(BLOBS)}
        return {blob: inf if info.expires_at is None else info.expires_at
                for blob, info in infos.items() if isinstance(info, BlobInfo)}

    def _undeletable(self) -> dict[int, float]:
        """Until when the deletion of each blob can still be taken back: so long its content has to stay."""
        found: dict[int, float] = {}
        for blob, deleted_at in self._deleted_at.items():
            if self._read(blob) is None and self._read(blob, _WITH_DELETED) is not None:
                info = self._store.info(_id(blob), _WITH_DELETED)
                expires_at = info.expires_at if isinstance(info, BlobInfo) else None
                # The store counts in milliseconds.
                end = min(deleted_at + _RETENTION_SECONDS - _TICK_SECONDS, inf if expires_at is None else expires_at)
                if end >= self.clock.now():
                    found[blob] = end
        return found

    def _read(self, blob: int, options: GetOptions = _PLAIN) -> bytes | None:
        answer = self._store.get(_id(blob), options)
        return answer.content if isinstance(answer, Blob) else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._store.close()


def _blobs(step: Put | Delete) -> list[int]:
    return [(step.blob + more) % BLOBS for more in range(step.count)]


def _id(blob: int) -> bytes:
    return b"blob %d" % blob
