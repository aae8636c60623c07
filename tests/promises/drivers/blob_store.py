# SPDX-License-Identifier: Apache-2.0
"""The driver of a `BlobStore`."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import attrs

from compactlib.blobstore import (
    Blob,
    BlobReader,
    BlobStore,
    BlobStoreConfig,
    CompactAll,
    Deleted,
    Expired,
    GetOptions,
    Greedy,
    Missing,
    StatsBased,
    StoreFull,
)
from compactlib.budget import Budget
from compactlib.errors import BudgetSpent, CorruptData, StorageError
from compactlib.testing import Driver, HostLock, Journal, World, WorldClock
from tests.promises.drivers.tidy import leftovers_of

NOW = WorldClock().now()
"""The initial time of a world."""
IDS = tuple(b"blob %d" % number for number in range(6))
RETENTION = 4.0
POLICIES = (CompactAll(min_used_fraction=0.0), CompactAll(min_used_fraction=0.0, skip_valid=True),
            StatsBased(min_used_fraction=0.0), Greedy(min_used_fraction=0.0))
EVERYTHING = GetOptions(include_deleted=True, include_expired=True)
MINUTE, TICK = 60.0, 0.01
TIDY = (r"\d+_\d+\.log", r"\d+_\d+\.index", "LOCK", "SEGMENTS", "HARD_DELETE")
"""The files of an open store without a running compaction."""
Found: TypeAlias = Blob | Deleted | Expired | Missing | None
"""The result of a get; `None` for a named error."""


@attrs.frozen
class Put:
    """A put, with unique content, that replaces an existing blob."""

    id: bytes
    content: bytes
    expires: float | None


@attrs.frozen
class Delete:
    """A delete, with its time."""

    id: bytes
    at: float


@attrs.frozen
class Undelete:
    """An undelete."""

    id: bytes


@attrs.frozen
class Permanent:
    """An update that removes the time to live."""

    id: bytes


@attrs.frozen
class Seen:
    """A get's result for an id. The caller may rely on it, so it has to survive a power failure."""

    id: bytes
    is_deleted: bool


@attrs.frozen
class Replicated:
    """The blobs that a peer has received by its token, each with its deletion."""

    token: Any
    told: tuple[tuple[bytes, bool], ...]


@attrs.frozen
class Sizes:
    """Capacity and segment size, which are fixed when the store is made."""

    capacity_bytes: int
    segment_bytes: int


@attrs.frozen
class Upkeep:
    """A whole or partial compaction, or a reclaim; it may drop dead records."""

    kind: str
    at: float


@attrs.frozen
class Erased:
    """A completed hard delete: no content of deletes in effect at its time is on the disk."""

    at: float


@attrs.frozen
class Stamp:
    """Whether and when the store used a wrong clock."""

    at: float
    is_wrong: bool


@attrs.frozen
class State:
    """A possible state of an id."""

    content: bytes | None = attrs.field(default=None, repr=lambda content: repr(content and content[:20]))
    expires: float | None = None
    deleted: float | None = None
    erased: bool = False


@attrs.frozen
class Reading:
    """A reader with the clock of its world."""

    reader: BlobReader
    clock: WorldClock

    def refresh(self) -> None:
        self.reader.refresh()

    def close(self) -> None:
        self.reader.close()


class BlobStoreDriver(Driver[BlobStore]):
    """A store of small segments: puts, replacements, deletes, undeletes, times to live, compactions of all kinds.

    Args:
        changes: settings of the usual configuration with other values.
    """

    def __init__(self, **changes: object) -> None:
        self._hosts = {blob_id: HostLock() for blob_id in IDS}
        usual = BlobStoreConfig(
            capacity_bytes=1 << 16, segment_bytes=1 << 10, journal_max_entries=0,
            ttl_update_buffer_seconds=0.0, deleted_retention_seconds=RETENTION,
            max_blob_bytes=0, compaction_bytes_per_second=None, hard_delete=True,
            hard_delete_bytes_per_second=None)
        self._usual = attrs.evolve(usual, **changes)  # type: ignore[arg-type]

    def settings(self) -> Sequence[BlobStoreConfig]:
        usual = self._usual
        return [usual,
                attrs.evolve(usual, durability="group", journal_max_entries=4, max_open_segments=1),
                attrs.evolve(usual, capacity_bytes=1 << 17, segment_bytes=1 << 11, durability="interval",
                             purge_tombstones=True, hard_delete=False)]

    def open(self, world: World, settings: BlobStoreConfig) -> BlobStore:
        return BlobStore(world.folder, settings, clock=world.clock, files=world.files,
                         new_incarnation=lambda: b"the incarnation.")

    def policy(self) -> CompactAll:
        return POLICIES[0]

    # ------------------------------------------------------------------------------------------------------- acting

    def act(self, store: BlobStore, rng: Random, journal: Journal) -> None:
        self._note_clock(store, journal)
        self._replicate(store, journal)
        kinds = ["write", "compact", "write", "write", "reclaim", "write", "compact", "stop", "write", "write", "erase",
                 "compact"]
        if sum(isinstance(self._look(store, blob_id, journal), Missing) for blob_id in IDS) > len(IDS) // 2:
            kinds = ["write"]  # the store is empty
        kind = rng.choice(kinds)
        if kind == "write":
            for blob_id in rng.sample(IDS, rng.randint(2, 4)):
                with self._hosts[blob_id]:  # a host changes one blob on one thread
                    self._write(store, blob_id, rng, journal)
        else:
            with contextlib.ExitStack() as stack:  # no thread changes a blob while time passes
                for host in self._hosts.values():
                    stack.enter_context(host)
                store.clock.sleep(rng.choice([0.0, 1.0, RETENTION + 1.0, RETENTION + 1.0]))
            self._keep_up(store, kind, rng, journal)
        self._note_clock(store, journal)

    def _replicate(self, store: BlobStore, journal: Journal) -> None:
        """Send a peer all records from its last token on."""
        _note(journal, Sizes(store.status().capacity_bytes, store.status().segment_bytes))
        before = [change.what for change in journal.changes if isinstance(change.what, Replicated)][-1:]
        told, token = dict(before[0].told if before else ()), before[0].token if before else None
        while True:
            found = store.entries_since(token)
            told.update((entry.id, entry.is_deleted) for entry in found.entries)
            token = found.token
            if found.at_end:
                break
        _note(journal, Replicated(token, tuple(told.items())))

    def _look(self, store: BlobStore, blob_id: bytes, journal: Journal) -> object:
        with self._hosts[blob_id]:
            found = store.info(blob_id)
            if not isinstance(found, Missing | Expired):
                _note(journal, Seen(blob_id, isinstance(found, Deleted)))
        return found

    def _write(self, store: BlobStore, blob_id: bytes, rng: Random, journal: Journal) -> None:
        now, found = _time(store), store.info(blob_id)
        choice = rng.choice(["delete", "change", "replace"])
        if isinstance(found, Deleted):
            may_return = not found.content_gone and now < found.deleted_at + RETENTION
            choice = "undelete" if choice != "replace" and may_return else "replace"
        elif isinstance(found, Missing | Expired):
            choice = "put"
        elif choice == "change":
            choice = "permanent" if found.expires_at is not None else "delete"
        if choice in ("put", "replace"):
            seconds = rng.choice([None, None, 2.0, 1000.0, 1000.0])
            put = Put(blob_id, b"<%s %d>" % (blob_id, rng.randrange(1 << 60)) * rng.randint(1, 14),
                      None if seconds is None else now + seconds)
            with journal.trying(put):
                info = store.put(blob_id, put.content, ttl_seconds=seconds, replace=choice == "replace")
                _settle(store)
            _note(journal, Stamp(now, abs(info.put_at - now) > MINUTE))
            return
        what, write = {"delete": (Delete(blob_id, now), store.delete), "undelete": (Undelete(blob_id), store.undelete),
                       "permanent": (Permanent(blob_id), store.ttl_update)}[choice]
        with journal.trying(what):
            write(blob_id)
            _settle(store)

    def _keep_up(self, store: BlobStore, kind: str, rng: Random, journal: Journal) -> None:
        now = _time(store)
        with journal.trying(Upkeep(kind, now)):
            if kind == "compact":
                policy = rng.choice(POLICIES)
                if policy.name == CompactAll.name:
                    _seal(store)
                store.compact(policy=policy)
            elif kind == "stop":
                _seal(store)
                with contextlib.suppress(BudgetSpent):
                    store.compact(policy=POLICIES[0], budget=Budget(total_bytes=rng.randint(1, 600), clock=store.clock))
            elif kind == "reclaim":
                store.reclaim()
            else:
                store.close_active_segment()
                report = store.reclaim()
        if kind == "erase" and not report.is_partial and store.config.hard_delete:
            _note(journal, Erased(now))

    def _note_clock(self, store: BlobStore, journal: Journal) -> None:
        if abs(store.clock.now() - _time(store)) > MINUTE:
            _note(journal, Stamp(math.inf, is_wrong=True))

    # ----------------------------------------------------------------------------------------------------- checking

    def reader(self, world: World) -> Reading:
        return Reading(BlobReader(world.folder, self._usual, clock=world.clock), world.clock)

    def check_reader(self, reading: Reading, journal: Journal) -> None:
        allowed, time, reader = allowed_of(journal), Time.of(reading, journal), reading.reader
        # A reader that opens during a hard delete may miss the erased blobs until `refresh`.
        is_erasing = any(change.what.kind == "erase" and not change.acknowledged
                         for change in journal.changes if isinstance(change.what, Upkeep))
        for blob_id in IDS:
            states = allowed.get(blob_id, {State()})
            states |= {State()} if is_erasing and any(state.deleted is not None for state in states) else set()
            plain, everything = _answers(reader, blob_id)
            assert plain is not None, f"{blob_id!r} is damaged"
            assert any(fits(state, plain, everything, time) for state in states), (
                f"{blob_id!r} is {plain} for a reader, and with what is gone {everything}; expected {states}")
        assert not reader.damage, reader.damage
        assert reader.verify().is_sound, reader.verify()

    def check(self, store: BlobStore, journal: Journal, *, damage: str) -> None:
        allowed, time = allowed_of(journal), Time.of(store, journal)
        answers = {blob_id: _answers(store, blob_id) for blob_id in (*IDS, b"never put")}
        for blob_id, (plain, everything) in answers.items():
            states = allowed.get(blob_id, {State()})
            if plain is None or everything is None:
                assert damage, f"{blob_id!r} is damaged"
            else:
                assert any(fits(state, plain, everything, time) for state in states), (
                    f"{blob_id!r} is {plain}, and with what is gone {everything}, at {time}; expected {states}")
        if not damage:
            self._check_whole(store, journal, allowed, answers)

    def _check_whole(self, store: BlobStore, journal: Journal, allowed: dict[bytes, set[State]],
                     answers: dict[bytes, tuple[Found, Found]]) -> None:
        assert not store.recovery.damage, store.recovery.damage
        assert store.verify().is_sound, store.verify()
        store.audit()
        leftovers = leftovers_of(Path(store.folder), *TIDY)
        assert not leftovers, f"{leftovers} were left"
        told = dict(_told(store))
        for peer in [change.what for change in journal.changes if isinstance(change.what, Replicated)][-2:]:
            # A token stays valid across compactions and openings.
            has = {**dict(peer.told), **dict(_told(store, peer.token))}
            assert told.items() <= has.items(), f"a peer that goes on from {peer.token} has {has} instead of {told}"
        sizes = {change.what for change in journal.changes if isinstance(change.what, Sizes)}
        status = store.status()
        assert sizes <= {Sizes(status.capacity_bytes, status.segment_bytes)}, f"the store's sizes were {sizes}"
        for blob_id, (plain, _) in answers.items():
            assert isinstance(plain, Missing | Expired) or told[blob_id] == isinstance(plain, Deleted), (blob_id, told)
        assert told.keys() <= answers.keys()
        with BlobReader(store.folder, store.config, clock=store.clock) as reader:
            for blob_id, (_, everything) in answers.items():
                found = reader.get(blob_id, EVERYTHING)
                assert found == everything, f"a reader answers {found} for {blob_id!r}, and the store {everything}"
        erased = {blob_id: state.content for blob_id, states in allowed.items() if len(states) == 1
                  for state in states if state.erased and state.content is not None}
        on_disk = [path.read_bytes() for path in Path(store.folder).iterdir() if path.is_file()] if erased else []
        for blob_id, content in erased.items():
            assert not any(content in data for data in on_disk), f"{blob_id!r} was erased, and is on the disk"


def _seal(store: BlobStore) -> None:
    """Make the active segment eligible, if the log has room for another one."""
    with contextlib.suppress(StoreFull):
        store.close_active_segment()


@attrs.frozen
class Time:
    """The earliest and the latest possible time of a check; `is_wrong`: the store's clock was wrong once."""

    earliest: float
    latest: float
    is_wrong: bool
    was_compacted: bool

    @classmethod
    def of(cls, store: BlobStore | Reading, journal: Journal) -> Time:
        now, whats = _time(store), [change.what for change in journal.changes]
        # After a power failure the store is in another world, whose clock has stood still.
        known = [what.at for what in whats if isinstance(what, Delete | Upkeep | Erased)]
        return cls(now, max([now, *known]), was_wrong(journal), any(isinstance(what, Upkeep) for what in whats))


def fits(state: State, plain: Found, everything: Found, time: Time) -> bool:
    """Return whether these are the results for an id of this state, with the plain options and with `EVERYTHING`."""
    if state.content is None:
        return isinstance(plain, Missing) and isinstance(everything, Missing)
    is_there = isinstance(everything, Blob) and everything.content == state.content
    expires = state.expires
    may_be_over = expires is not None and (time.is_wrong or expires <= time.latest + TICK)
    is_over = expires is not None and not time.is_wrong and expires < time.earliest - TICK
    if may_be_over and time.was_compacted and isinstance(plain, Missing):
        return isinstance(everything, Missing)
    if state.deleted is not None:
        may_be_gone = time.was_compacted and (
            may_be_over or time.is_wrong or state.deleted + RETENTION < time.latest + TICK)
        return isinstance(plain, Deleted) and (is_there or (may_be_gone and isinstance(everything, Deleted | Missing)))
    if may_be_over and isinstance(plain, Expired):
        return is_there or (time.was_compacted and isinstance(everything, Expired | Missing))
    return isinstance(plain, Blob) and not is_over and plain.content == state.content and everything == plain


def was_wrong(journal: Journal) -> bool:
    """Return whether the store may have used a wrong clock. It has to ignore a wrong reading before a right one."""
    stamps = [change.what for change in journal.changes if isinstance(change.what, Stamp)]
    return any(stamp.is_wrong and (following is None or following.is_wrong or following.at - stamp.at >= MINUTE / 2)
               for stamp, following in zip_longest(stamps, stamps[1:]))


def allowed_of(journal: Journal) -> dict[bytes, set[State]]:
    """Return the possible states of each id.

    A refused change may still be on the disk. Another thread may read the state before it, until the next change closes
    the store; opening then finds the change.
    """
    allowed: dict[bytes, set[State]] = {}
    refused: dict[bytes, list[Put | Delete | Undelete | Permanent]] = {}
    is_wrong = was_wrong(journal)
    for change in journal.changes:
        what = change.what
        if isinstance(what, Erased) and change.acknowledged and not is_wrong:
            for blob_id, states in allowed.items():
                allowed[blob_id] = {attrs.evolve(state, erased=True) if state.deleted is not None
                                    and state.deleted + RETENTION < what.at - TICK else state for state in states}
        if isinstance(what, Seen) and change.acknowledged:
            allowed[what.id] = {state for state in allowed.get(what.id, set()) if state.content is not None
                                and what.is_deleted == (state.deleted is not None)}
            for later in refused.get(what.id, ()):
                allowed[what.id] |= {_after(state, later) for state in allowed[what.id]}
        if isinstance(what, Put | Delete | Undelete | Permanent):
            old = allowed.get(what.id, {State()})
            new = {_after(state, what) for state in old}
            allowed[what.id] = new if change.acknowledged else old | new
            refused[what.id] = [] if change.acknowledged else [*refused.get(what.id, ()), what]
    return allowed


def _after(state: State, what: Put | Delete | Undelete | Permanent) -> State:
    match what:
        case Put(content=content, expires=expires):
            return State(content, expires)
        case Delete(at=at):
            return attrs.evolve(state, deleted=at)
        case Undelete():
            return attrs.evolve(state, deleted=None)
        case Permanent():
            return attrs.evolve(state, expires=None)


def _answers(store: BlobStore | BlobReader, blob_id: bytes) -> tuple[Found, Found]:
    """Return both results of one moment; a reader whose files were removed refreshes first."""
    while True:
        plain, everything = _answer(store, blob_id, GetOptions()), _answer(store, blob_id, EVERYTHING)
        if _answer(store, blob_id, GetOptions()) == plain:
            return plain, everything


def _answer(store: BlobStore | BlobReader, blob_id: bytes, options: GetOptions) -> Found:
    try:
        return store.get(blob_id, options)
    except (CorruptData, StorageError):
        return None


def _told(store: BlobStore, token: Any = None) -> Iterator[tuple[bytes, bool]]:
    """Return the blobs that a peer receives, each with its deletion."""
    while True:
        found = store.entries_since(token)
        yield from ((entry.id, entry.is_deleted) for entry in found.entries)
        if found.at_end:
            return
        token = found.token


def _time(store: BlobStore | Reading) -> float:
    """Return the true time: a hazard sets the wall clock wrong, and never the monotonic clock."""
    return NOW + store.clock.monotonic()


def _settle(store: BlobStore) -> None:
    if store.config.durability == "interval":
        store.flush()


def _note(journal: Journal, fact: object) -> None:
    with journal.trying(fact):
        pass
