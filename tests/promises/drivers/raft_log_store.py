# SPDX-License-Identifier: Apache-2.0
"""The driver of a `RaftLogStore` of two logs."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import attrs

from compactlib.errors import CorruptData, NotFound
from compactlib.executors import LocalExecutor
from compactlib.indexset import IndexSet
from compactlib.raftlog import (
    DeadEntry,
    Entry,
    EveryNMinors,
    LogOptions,
    MissingEntry,
    RaftLog,
    RaftLogStore,
    SeedPolicy,
    SegmentLimits,
    StoreOptions,
)
from compactlib.testing import Change, Driver, FilesInFront, HostLock, Journal, Request, World
from tests.promises.drivers.tidy import leftovers_of

ABSENT, DEAD, DAMAGED = "absent", "dead", "damaged"
SNAPSHOTTED, OTHER = "a", "b"
"""The one keeps its states and is never removed; the other's host keeps them elsewhere, and it is removed at times."""
NO_VOTE = (0, None)
MOST_TRAILING = 2
TIDY = ("store", "store/LOCK", "store/wal", r"store/wal/\d+\.wal", "store/logs", "store/logs/[ab]",
        r"store/logs/[ab]/\d+\.segment", "store/logs/[ab]/(LOCK|SNAPSHOT|HARD_STATE)", "store/logs/a/snapshots",
        r"store/logs/a/snapshots/\d+-\d+-\d+\.(state|checkpoint)")
"""The files of an open, idle store."""


@attrs.frozen
class Appended:
    """Entries that replace all from the first index on; durable with the next sync of this opening, or before."""

    log: str
    first: int
    term: int
    count: int
    opening: int
    is_durable: bool = False

    def indexes(self) -> range:
        return range(self.first, self.first + self.count)


@attrs.frozen
class Synced:
    """A sync of all logs."""

    opening: int


@attrs.frozen
class Cut:
    """A truncation of everything above an index, synced."""

    log: str
    last: int
    opening: int


@attrs.frozen
class Snapshot:
    """A snapshot, with its live indexes, and the number of last entries that may stay although they are dead."""

    log: str
    index: int
    live: tuple[int, ...]
    trailing: int
    opening: int


@attrs.frozen
class Checkpoint:
    """A state for a fast start."""

    index: int
    opening: int


@attrs.frozen
class Voted:
    """A term and a vote in it."""

    log: str
    term: int
    name: str


@attrs.frozen
class Removed:
    """A removal of a log with all its entries."""

    log: str
    opening: int


@attrs.frozen
class Upkeep:
    """A compaction or a reclaim, which changes no read."""

    kind: str


def payload_of(log: str, index: int, term: int) -> bytes:
    return b"%s %d in %d;" % (log.encode(), index, term) * (index % 4)


def live_of(log: RaftLog, index: int) -> tuple[int, ...]:
    """Return the live indexes of a snapshot: every third of the last nine entries, without those that are dead."""
    row = log.state
    return tuple(i for i in range(max(index - 8, 1), index + 1) if i % 3 == 0 and (i > row.index or i in row.live))


class Machine:
    """A state machine whose state is its live set."""

    def __init__(self) -> None:
        self._live: list[int] = []

    def apply(self, entry: Entry) -> None:
        raise NotImplementedError

    def live_indexes(self) -> Iterable[int]:
        return self._live

    def snapshot(self) -> Iterator[bytes]:
        yield json.dumps(self._live).encode()

    def restore(self, pieces: Iterable[bytes]) -> None:
        self._live = json.loads(b"".join(pieces))["live"]


def state_of(index: int, live: Sequence[int]) -> bytes:
    return json.dumps({"index": index, "live": list(live)}).encode()


def _without_locks(request: Request, act: Callable[[], Any]) -> Any:
    """A step that ignores lock files: a recording leaves them out, and a removed log removes its own."""
    if request.kind == "unlink" and os.path.basename(request.path) == "LOCK":
        os.unlink(request.path)
        return None
    return act()


@attrs.frozen
class Opened:
    """A store, and which opening it is."""

    store: RaftLogStore
    trailing: int
    opening: int

    def compact(self, *, policy: Any) -> None:
        for log_id in self.store.log_ids:
            with pinned(self.store.log(log_id)) as log:
                log.compact(policy=policy)

    def close(self) -> None:
        self.store.close()


@contextlib.contextmanager
def pinned(log: RaftLog) -> Iterator[RaftLog]:
    """Pin some entries for the time of the block; require that they are unchanged at its end."""
    terms = {index: term for index in range(max(log.last_index - 8, 0), log.last_index + 1, 2)
             if isinstance(term := _answer(log, index), int)}
    try:
        pin = log.pin(IndexSet.from_sorted(terms))
    except CorruptData:
        yield log
        return
    # Another thread may have replaced entries between two of the reads above.
    terms = {entry.index: entry.term for entry in entries_of(pin)}
    try:
        yield log
        # Entries that were truncated or replaced during the block are no longer pinned.
        found = {entry.index: entry for entry in entries_of(pin)}
        # A log that was closed or removed during the block releases its pins.
        lost = [index for index in terms if index not in found and index <= log.state.index and not log.is_closed]
        assert not lost, f"pinned were {terms}, {sorted(found)} are read, and the snapshot is {log.state.index}"
        for index, entry in found.items():
            # One that was truncated before the block may be there again.
            assert entry.term >= terms.get(index, 0), f"pinned entry {index} of term {terms[index]} is {entry}"
            assert bytes(entry.payload) == payload_of(log.log_id, index, entry.term), f"pinned entry {index} is {entry}"
    finally:
        pin.release()


def entries_of(pin: Any) -> Iterator[Entry]:
    """Yield the pinned entries that were not truncated."""
    for index in pin.indexes:
        with contextlib.suppress(NotFound):
            yield pin.read(index)


@attrs.frozen
class Beside:
    """An executor that calls a function before or after the tasks of a compaction."""

    do: Callable[[], object]
    is_after: bool

    def run(self, tasks: Iterable[Any], **options: Any) -> Iterator[Any]:
        listed = list(tasks)
        if not self.is_after:
            self.do()
        outcomes = list(LocalExecutor().run(listed, **options))
        if self.is_after:
            self.do()
        yield from outcomes


class RaftLogStoreDriver(Driver[Opened]):
    """Two logs over one WAL: appends, conflicts, cuts, flushes, snapshots, checkpoints, votes, removals."""

    def __init__(self) -> None:
        self._host = HostLock()
        self._openings = itertools.count()

    def settings(self) -> Sequence[StoreOptions]:
        def options(entries: int, keep_links_seconds: float, **given: Any) -> StoreOptions:
            log = LogOptions(limits=SegmentLimits(max_entries=entries), keep_links_seconds=keep_links_seconds,
                             trigger=EveryNMinors(0))
            return StoreOptions(log=log, background=False, **given)

        return [options(4, 0.0, max_wal_bytes=600),
                options(2, 3600.0, max_wal_bytes=100, max_unflushed_files=1, max_queued_bytes=0, keep_trailing=2),
                options(7, 0.0, max_wal_bytes=1 << 16, max_wal_entries=9)]

    def open(self, world: World, settings: StoreOptions) -> Opened:
        # With a machine, a lost live set is rebuilt from the state.
        machine_of = (lambda _: Machine()) if settings.keep_trailing else None
        log = attrs.evolve(settings.log, clock=world.clock, files=FilesInFront(_without_locks, world.files))
        store = RaftLogStore(world.folder / "store", attrs.evolve(settings, log=log, machine_of=machine_of))
        return Opened(store, settings.keep_trailing, next(self._openings))

    def policy(self) -> SeedPolicy:
        return SeedPolicy()

    def act(self, store: Opened, rng: Random, journal: Journal) -> None:
        kind = rng.choice(["upkeep", "checkpoint", "append", "unsynced", "unsynced", "cut", "upkeep", "conflict",
                           "conflict", "snapshot", "remove", "append", "checkpoint"])
        if kind == "upkeep":
            self._keep_up(store, rng.choice(["flush", "reclaim", "compact"]), rng, journal)
        else:
            with self._host:  # a host writes each log on one thread
                self._write(store, kind, rng, journal)

    def _keep_up(self, store: Opened, work: str, rng: Random, journal: Journal) -> None:
        if work != "reclaim":
            with journal.trying(Synced(store.opening)):
                store.store.flush()
        for log_id in store.store.log_ids:
            with journal.trying(Upkeep(work)):
                log = store.store.log(log_id)
                if work == "compact":
                    self._compact(store, log, rng, journal)
                elif work == "reclaim":
                    log.reclaim()

    def _compact(self, store: Opened, log: RaftLog, rng: Random, journal: Journal) -> None:
        """Compact alone, with pinned entries, or while a flush replaces entries of the victims."""
        way = rng.choice(["alone", "pinned", "before", "after"])

        def flush() -> None:
            with journal.trying(Synced(store.opening)):
                store.store.flush()

        with self._host:
            self._append(store, log, rng, journal)
        flush()
        with pinned(log) if way == "pinned" else contextlib.nullcontext():
            with self._host:
                if way in ("before", "after"):
                    # The log's memory has other entries than its segments.
                    self._take_back(store, "conflict", log, rng, journal)
                    self._append(store, log, rng, journal)
                self._snapshot(store, log, rng, journal)
            if way in ("alone", "pinned"):
                flush()
            executor = Beside(flush, way == "after") if way in ("before", "after") else LocalExecutor()
            log.compact(policy=self.policy(), executor=executor)

    def _write(self, store: Opened, kind: str, rng: Random, journal: Journal) -> None:
        log_id = rng.choice([SNAPSHOTTED, OTHER])
        if kind in ("append", "unsynced"):
            for each in (SNAPSHOTTED, OTHER):
                taken_back = rng.choice(["conflict", "conflict", "cut", ""])
                if kind == "append" and taken_back:
                    self._take_back(store, taken_back, store.store.log(each), rng, journal)
                else:
                    self._append(store, store.store.log(each), rng, journal)
            if kind == "append":
                with journal.trying(Synced(store.opening)):
                    store.store.sync()
        elif kind == "remove":
            if OTHER in store.store.log_ids:
                with journal.trying(Removed(OTHER, store.opening)):
                    store.store.remove(OTHER)
        elif kind == "checkpoint":
            self._checkpoint(store, store.store.log(SNAPSHOTTED), rng, journal)
        elif kind == "snapshot":
            for each in (SNAPSHOTTED, OTHER):
                self._append(store, store.store.log(each), rng, journal)
                self._snapshot(store, store.store.log(each), rng, journal)
        else:
            for each in (SNAPSHOTTED, OTHER) if kind == "conflict" else (log_id,):
                self._take_back(store, kind, store.store.log(each), rng, journal)

    def _append(self, store: Opened, log: RaftLog, rng: Random, journal: Journal) -> None:
        first = max(log.last_index, 0) + 1
        appended = Appended(log.log_id, first, _term(log, rng), rng.randint(1, 6), store.opening)
        with journal.trying(appended):
            log.append(_entries(appended))

    def _take_back(self, store: Opened, kind: str, log: RaftLog, rng: Random, journal: Journal) -> None:
        last = max(log.last_index, 0)
        floor = max(0, log.state.index, *(each.index for each in log.checkpoints))
        if kind == "cut" and last:
            cut = Cut(log.log_id, max(last - rng.randrange(1, 4), floor), store.opening)
            with journal.trying(cut):
                log.reset(cut.last)
                log.sync()
        else:
            voted = Voted(log.log_id, _term(log, rng) + 1, f"node {rng.randrange(9)}")
            with journal.trying(voted):
                log.record_hard_state(voted.term, voted.name)
            before = max(last - rng.randrange(5), floor)
            appended = Appended(log.log_id, before + 1, voted.term, rng.randint(1, 4), store.opening, True)
            with journal.trying(appended):
                answer = log.append_entries(before, log.term_of(before) or 0, _entries(appended))
                assert (answer.success, answer.match_index) == (True, before + appended.count), answer

    def _snapshot(self, store: Opened, log: RaftLog, rng: Random, journal: Journal) -> None:
        floor, through = max(log.state.index, 0), log.last_index
        if through > floor:
            index = rng.choice([through, rng.randint(floor + 1, through)])
            live = live_of(log, index)
            with journal.trying(Snapshot(log.log_id, index, live, store.trailing, store.opening)):
                log.snapshot(index, live, [state_of(index, live)] if log.log_id == SNAPSHOTTED else None)

    def _checkpoint(self, store: Opened, log: RaftLog, rng: Random, journal: Journal) -> None:
        checkpoints = log.checkpoints
        there = checkpoints[-1] if checkpoints and rng.random() < 0.6 else None
        floor = max(0, log.state.index, *(each.index for each in checkpoints))
        if there is None and log.last_index > floor:
            index = rng.randint(floor + 1, log.last_index)
            live = live_of(log, index)
            with journal.trying(Checkpoint(index, store.opening)):
                log.checkpoint(index, live, [state_of(index, live)])
        elif there is not None:
            with journal.trying(Snapshot(log.log_id, there.index, tuple(there.live), store.trailing, store.opening)):
                log.promote(there.index)
                assert log.state.index == there.index

    def check(self, store: Opened, journal: Journal, *, damage: str) -> None:
        refused = set[str]()
        for log_id in (SNAPSHOTTED, OTHER):
            try:
                log: RaftLog | None = store.store.log(log_id, create=False)
            except NotFound:
                log = None
            except CorruptData:
                assert damage, f"log {log_id!r} is damaged"
                refused.add(log_id)
                continue
            # The damage is in the refused log, so the other log has to be right.
            _check_log(log, log_id, journal, "" if refused else damage)
        if SNAPSHOTTED not in refused:
            _check_snapshots(store, journal, damage)
        if not damage:
            store.store.audit()
            assert store.store.verify().is_sound, store.store.verify()
            leftovers = leftovers_of(Path(store.store.folder).parent, *TIDY)
            assert not leftovers, f"{leftovers} were left"


def _check_log(log: RaftLog | None, log_id: str, journal: Journal, damage: str) -> None:
    changes, wrong = journal.changes, ""
    for history in histories_of(changes):
        kept = Kept.of(history)[log_id]
        wrong = wrong_with(log, kept, damage)
        if not wrong:
            return
    if log is not None and damage == "cut":
        # As if the last writes had never been synced: entries above the snapshot have an earlier state. If the WAL
        # begins after the cut, the log is refused.
        row, kept = log.state.index, Kept.of(changes)[log_id]
        for count in range(len(changes)):
            earlier = Kept.of(changes[:count])[log_id].answers
            answers = {i: kept.at(i) if i <= row else earlier.get(i, {ABSENT}) for i in {*kept.answers, *earlier}}
            wrong = wrong and wrong_with(log, attrs.evolve(kept, answers=answers), damage)
    assert not wrong, f"log {log_id!r}: {wrong}"


def histories_of(changes: Sequence[Change]) -> Iterator[Sequence[Change]]:
    """Yield the possible histories: an unacknowledged removal was carried out whole, or was not."""
    doubtful = [change for change in changes if isinstance(change.what, Removed) and not change.acknowledged]
    for done in itertools.product([True, False], repeat=len(doubtful)):
        kept = dict(zip(map(id, doubtful), done, strict=True))
        yield [attrs.evolve(change, acknowledged=True) if id(change) in kept else change
               for change in changes if kept.get(id(change), True)]


def _term(log: RaftLog, rng: Random) -> int:
    """Draw the term of the next entries."""
    return max(log.state.term, log.last_term or 0, log.hard_state.term) or 1 + rng.randrange(5)


def _entries(appended: Appended) -> list[tuple[int, int, bytes]]:
    return [(i, appended.term, payload_of(appended.log, i, appended.term)) for i in appended.indexes()]


@attrs.define
class Kept:
    """The possible states of a log.

    Attributes:
        answers: by index, the possible terms of its entry, or `ABSENT`, or `DEAD`.
        rows: the possible snapshots: index, -1 without a snapshot, and live set.
        votes: the possible terms and votes.
    """

    answers: dict[int, set[object]] = attrs.field(factory=dict)
    rows: dict[int, frozenset[int]] = attrs.field(factory=lambda: {-1: frozenset()})
    votes: set[tuple[int, str | None]] = attrs.field(factory=lambda: {NO_VOTE})

    @classmethod
    def of(cls, changes: Sequence[Change]) -> Mapping[str, Kept]:
        """Return the possible states of each log after these changes."""
        kept = {SNAPSHOTTED: cls(), OTHER: cls()}
        waiting: list[Appended] = []
        for change in changes:
            what, is_sure = change.what, change.acknowledged
            if isinstance(what, Appended) and not what.is_durable and is_sure:
                kept[what.log].put(what, False)
                waiting = [each for each in waiting if each.opening == what.opening] + [what]
                continue
            if is_sure and not isinstance(what, Voted | Upkeep):
                # Durable after all earlier appends of this opening to the same log.
                logs = {SNAPSHOTTED, OTHER} if isinstance(what, Synced) else {getattr(what, "log", SNAPSHOTTED)}
                for each in waiting:
                    if each.opening == what.opening and each.log in logs:
                        kept[each.log].put(each, True)
                waiting = [each for each in waiting if each.log not in logs]
            elif not is_sure:
                waiting = []
            if not isinstance(what, Synced | Checkpoint | Upkeep):
                kept[what.log].put(what, is_sure)
        return kept

    def put(self, what: Any, is_sure: bool) -> None:
        """Apply a change, which is certain or possible."""
        match what:
            case Appended(first=first, term=term):
                self._replace(range(first, _BEYOND), {i: {term} for i in what.indexes()}, is_sure)
            case Cut(last=last):
                self._replace(range(last + 1, _BEYOND), {}, is_sure)
            case Snapshot(index=last, live=live, trailing=trailing):
                dead = [i for i in range(1, last + 1) if i not in live]
                self._replace(range(1, last + 1), {
                    i: {DEAD} | (self.at(i) - {ABSENT} if i > last - trailing else set()) for i in dead
                } | {i: self.at(i) for i in live}, is_sure)
                self.rows = {last: frozenset(live)} | ({} if is_sure else self.rows)
            case Voted(term=term, name=name):
                self.votes = {(term, name)} | (set() if is_sure else self.votes)
            case Removed():
                self._replace(range(_BEYOND), {}, is_sure)
                self.rows = {-1: frozenset[int]()} | ({} if is_sure else self.rows)
                self.votes = {NO_VOTE} | (set() if is_sure else self.votes)

    def at(self, index: int) -> set[object]:
        return self.answers.get(index, {ABSENT})

    def _replace(self, where: range, by: Mapping[int, set[object]], is_sure: bool) -> None:
        for index in {*self.answers, *by}:
            if index in where:
                new = by.get(index, {ABSENT})
                self.answers[index] = new if is_sure else self.at(index) | new


_BEYOND = 1 << 20


def wrong_with(log: RaftLog | None, kept: Kept, damage: str) -> str:
    """Describe a wrong read of a log; an empty text if there is no wrong read."""
    if log is None:
        gone = [i for i, answers in kept.answers.items() if ABSENT not in answers]
        return f"it is gone, and {gone} with it" if gone or -1 not in kept.rows or NO_VOTE not in kept.votes else ""
    found = {i: _answer(log, i) for i in range(1, max(kept.answers, default=0) + 3)}
    for index, answer in found.items():
        if answer not in kept.at(index) and not (damage and answer == DAMAGED):
            return f"index {index} is {answer}, expected one of {sorted(map(str, kept.at(index)))}"
    row = log.state
    if row.index not in kept.rows:
        return f"the snapshot is {row.index}, expected one of {kept.rows}"
    if not kept.rows[row.index] <= set(row.live):
        return f"alive are {list(row.live)}, expected {set(kept.rows[row.index])}"
    hard_state = (log.hard_state.term, log.hard_state.voted_for)
    if hard_state not in kept.votes:
        return f"the vote is {hard_state}, expected one of {kept.votes}"
    held = [i for i, answer in found.items() if isinstance(answer, int)]
    if not damage:
        if held != [entry.index for entry in log.entries()]:
            return f"it lists {[entry.index for entry in log.entries()]}, and holds {held}"
        if log.last_index != max([row.index, *held]):
            return f"it says it ends at {log.last_index}, and holds {held}"
        terms = [answer for answer in found.values() if isinstance(answer, int)]
        if terms != sorted(terms):
            return f"its terms do not ascend: {terms}"
    return ""


def _answer(log: RaftLog, index: int) -> object:
    """Return the term of the entry at an index, or `ABSENT`, `DEAD` or `DAMAGED`."""
    try:
        found = log.read(index)
    except CorruptData:
        return DAMAGED
    match found:
        case Entry(index=number, term=term, payload=payload):
            assert number == index
            assert bytes(payload) == payload_of(log.log_id, index, term), f"index {index} has a wrong payload"
            return term
        case DeadEntry():
            return DEAD
        case MissingEntry():
            return ABSENT


def _check_snapshots(store: Opened, journal: Journal, damage: str) -> None:
    """The log has the state of its snapshot, and each checkpoint above that."""
    log = store.store.log(SNAPSHOTTED)
    row = log.state
    try:
        checkpoints = [each.index for each in log.checkpoints]
        for each in [*([row] if row.index >= 0 else []), *log.checkpoints]:
            with log.open_state(each) as reader:
                found = json.loads(b"".join(reader.pieces()))
            added = set(each.live) - set(found["live"])
            assert found["index"] == each.index
            assert set(found["live"]) <= set(each.live)
            assert added <= set(range(each.index - MOST_TRAILING + 1, each.index + 1)), f"{each} of {found}"
    except CorruptData:
        assert damage, "the snapshots are damaged"
        return
    made = {change.what.index: change.acknowledged for change in journal.changes if isinstance(change.what, Checkpoint)}
    assert set(checkpoints) <= set(made), f"checkpoints {checkpoints} of {set(made)}"
    lost = [index for index, is_sure in made.items() if is_sure and index > row.index and index not in checkpoints]
    assert not lost, f"checkpoints {lost} are gone"
