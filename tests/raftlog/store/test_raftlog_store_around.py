# SPDX-License-Identifier: Apache-2.0
"""Around the store of many logs: killed and followed by an owner who acknowledges before the power fails, forked, and
opened under other settings. The same for a folder of snapshots.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import attrs
import pytest

from compactlib.errors import Closed, CorruptData
from compactlib.executors import LocalExecutor
from compactlib.files import Files
from compactlib.files.checksum import crc32
from compactlib.indexset import IndexSet
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog import (
    CostPolicy,
    DeadEntry,
    Entry,
    EveryNMinors,
    LogOptions,
    MissingEntry,
    RaftLog,
    RaftLogStore,
    SeedPolicy,
    SegmentLimits,
    SnapshotFolder,
    SnapshotMeta,
    StoreOptions,
    open_log,
)
from compactlib.raftlog.compaction.report import CompactionFailed
from compactlib.raftlog.compaction.sense import statistics
from compactlib.raftlog.compaction.sense.trigger import Manual
from compactlib.raftlog.errors import LogStopped
from compactlib.raftlog.model.hard_state import HardState
from compactlib.raftlog.model.names import segment_name
from compactlib.raftlog.segment import format as native
from compactlib.raftlog.segment.known import file_bytes
from compactlib.raftlog.snapshots.model import SnapshotManifest
from compactlib.rewrite import RewriteOutcome, RewriteTask
from compactlib.runtime import Budget, Observer
from compactlib.testing import RecordingFiles, explore_kills
from tests.harness.forks import check_fork
from tests.harness.plain_log import History, PlainLog
from tests.harness.raft_world import KINDS, LOGS, RaftModel, World, check_log, found_state
from tests.raftlog.compaction_logs import counted, flip_byte
from tests.raftlog.raft_host import indexes, overwrite
from tests.raftlog.wrapped_files import LocksAsideFiles, UnsyncedFiles
from tests.tools.faults.plan import Crash, FailingFiles, Fault
from tests.tools.settings import check_settings

# ------------------------------------------------------------------------------- killed, followed, and then no power

STORE, HOST, SNAPSHOTS = "store", "host", "host/snapshots"


@attrs.frozen
class Promised:
    """What a log has acknowledged: the term of each index, the snapshot in force, the highest term of all, the vote."""

    terms: dict[int, int]
    snapshot: int
    highest: int
    hard_state: HardState


def options(files: Files) -> StoreOptions:
    """Everything so small that it happens often, and nothing in a thread of its own."""
    log = LogOptions(limits=SegmentLimits(max_entries=4), run_id=counted(), keep_links_seconds=0.0, files=files,
                     trigger=EveryNMinors(0))
    return StoreOptions(log=log, background=False, max_wal_bytes=600)


def payload_of(index: int, term: int) -> bytes:
    return b"%d in %d" % (index, term) * (index % 4)


def highest_term(log: RaftLog) -> int:
    return max([log.state.term, *(entry.term for entry in log.entries())])


def promise_of(log: RaftLog) -> Promised:
    return Promised({entry.index: entry.term for entry in log.entries()}, log.state.index, highest_term(log),
                    log.hard_state)


class Life:
    """What one process does: two logs, one with snapshots, one that is removed and begun anew."""

    def __init__(self, folder: Path, files: RecordingFiles) -> None:
        self.files = files
        self.aside = LocksAsideFiles(files)
        self.folder = folder
        self.promised: dict[str, Promised | None] = {}

    def promise(self, store: RaftLogStore, *names: str) -> None:
        for name in names:
            self.promised[name] = promise_of(store.log(name, create=False)) if name in store.log_ids else None
        self.files.acknowledge(dict(self.promised))

    def run(self, rounds: int) -> None:
        with RaftLogStore(self.folder / STORE, options(self.aside)) as store:
            self.promise(store, "a", "b")
            log = store.log("a")
            log.attach(SnapshotFolder(self.folder / SNAPSHOTS, files=self.files))
            self.promise(store, "a")
            for _ in range(rounds):
                self.round(store, log)

    def retract(self, log: RaftLog, first: int) -> None:
        """Promise no more of what is going to be taken back: a crash may come before what takes its place."""
        promised = self.promised[log.log_id]
        assert promised is not None
        kept = {index: term for index, term in promised.terms.items() if index < first}
        self.promised[log.log_id] = attrs.evolve(promised, terms=kept)
        self.files.acknowledge(dict(self.promised))

    def round(self, store: RaftLogStore, log: RaftLog) -> None:
        other = store.log("b")
        for each in (log, other):
            term = highest_term(each) + 1
            first = max(each.last_index - 1, each.state.index + 1, 0)
            if self.promised.get(each.log_id) is not None:
                self.retract(each, first)
            overwrite(each, [(index, term, payload_of(index, term)) for index in range(first, first + 5)])
        store.sync()
        self.promise(store, "a", "b")
        store.flush()
        held = [entry.index for entry in log.entries()]
        log.snapshot(held[-3], [index for index in held[:-3] if index % 3 == 0], [b"state up to %d" % held[-3]])
        self.promise(store, "a")
        log.compact(policy=log.policy)
        term = highest_term(log) + 1
        last = log.last_index
        log.append_sparse([Entry(last + 2, term, payload_of(last + 2, term))])
        log.reset(last)
        log.append([(last + 1, term, payload_of(last + 1, term))])
        log.record_hard_state(log.hard_state.term + 1, f"candidate-{term}")
        log.sync()
        self.promise(store, "a")
        store.remove("b")
        self.promise(store, "b")
        store.log("b").append([(7, 9, payload_of(7, 9))])
        store.sync()
        self.promise(store, "b")
        log.append([(log.last_index + 1, term, b"never synced")])


def live(folder: Path, files: RecordingFiles, rounds: int) -> None:
    Life(folder, files).run(rounds)


def require_kept(folder: Path, acknowledged: Sequence[dict[str, Promised | None]]) -> None:
    if not acknowledged:
        return
    with RaftLogStore(folder / STORE, options(UnsyncedFiles())) as store:
        for name, promised in acknowledged[-1].items():
            if promised is None:
                # Removed, or not made yet; what is there is of a later try, of which nothing was acknowledged.
                continue
            if name == "b" and name not in store.log_ids:
                # Its removal was begun, and not acknowledged.
                assert promised.terms != {7: 9} or len(acknowledged) > 1
                continue
            require_log_kept(store.log(name, create=False), promised, may_be_anew=name == "b")
        if "a" in store.log_ids:
            row = store.log("a").state.index
            snapshots = SnapshotFolder(folder / SNAPSHOTS, files=UnsyncedFiles())
            found = snapshots.latest()
            assert (-1 if found is None else found.index) >= row
            snapshots.audit()
            store.log("a").attach(snapshots)
        store.audit()
        store.flush()


def require_log_kept(log: RaftLog, promised: Promised, *, may_be_anew: bool) -> None:
    assert may_be_anew or log.state.index >= promised.snapshot
    kept = log.hard_state
    assert may_be_anew or kept == promised.hard_state or kept.term > promised.hard_state.term
    highest = highest_term(log)
    for index, term in promised.terms.items():
        match log.read(index):
            case Entry(found, found_term, payload):
                assert found == index
                assert found_term >= term or may_be_anew
                assert payload in (payload_of(index, found_term), b"never synced")
            case DeadEntry():
                assert log.state.index > promised.snapshot
            case MissingEntry():
                assert highest > promised.highest or may_be_anew, f"{index} is gone, and nothing newer took it back"


def make_host(folder: Path) -> None:
    """Apart from the store, so that what syncs the one folder does nothing for the other."""
    (folder / HOST).mkdir()


def kills(max_states: int, limit_per_point: int, rounds: int = 1, points: range | None = None) -> int:
    work = partial(live, rounds=rounds)
    return explore_kills(work, work, require_kept, prepare=make_host, points=points, max_states=max_states,
                         limit_per_point=limit_per_point, seed=0)


def test_killed_while_the_store_is_made_another_that_acknowledges_and_then_no_power() -> None:
    assert kills(120, 2, points=range(1, 12)) >= 100


def test_a_killed_store_another_that_acknowledges_and_then_no_power() -> None:
    assert kills(200, 3) >= 200


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_soak_a_killed_store_another_that_acknowledges_and_then_no_power() -> None:
    assert kills(15_000, 80, rounds=2) >= 15_000


# ------------------------------------------------------------------------- taken back while a compaction rewrites it


@attrs.frozen
class Flushing:
    """Runs tasks, and flushes a store before it rewrites or after it."""

    store: RaftLogStore
    moment: str

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteOutcome]:
        listed = list(tasks)
        if self.moment == "before the rewrite":
            self.store.flush()
        outcomes = list(LocalExecutor().run(listed, budget=budget, observer=observer))
        if self.moment == "after it":
            self.store.flush()
        yield from outcomes


@pytest.mark.parametrize("moment", ["before the rewrite", "after it"])
def test_segments_that_are_taken_back_while_they_are_rewritten_are_no_failure(tmp_path: Path, moment: str) -> None:
    """A flush writes what took their entries' places, and removes their files, which hold nothing else."""
    store = RaftLogStore(tmp_path / STORE, attrs.evolve(options(UnsyncedFiles()), max_wal_bytes=1 << 20))

    with store:
        log = store.log("a")
        log.append([(index, 1, b"old") for index in range(16)])
        store.flush()
        overwrite(log, [(index, 2, b"new") for index in range(6, 20)])
        log.snapshot(18, [0, 5, 7, 9, 13])
        outcome = log.compact(policy=log.policy, executor=Flushing(store, moment))
        if moment == "before the rewrite":
            assert isinstance(outcome, Skipped)
            assert "taken back" in outcome.reason
        else:
            assert isinstance(outcome, Done)
        for _ in range(2):
            assert [(entry.index, entry.payload) for entry in log.entries()] == [
                (0, b"old"), (5, b"old"), (7, b"new"), (9, b"new"), (13, b"new"), (19, b"new")]
            store.audit()
            assert not isinstance(log.compact(policy=log.policy), Failed)


def test_a_group_that_was_taken_back_whole_while_it_was_rewritten_leaves_no_file(tmp_path: Path) -> None:
    """Its new file came where a flush had just removed the old ones, was listed nowhere, and lay in the way."""
    made = options(UnsyncedFiles())
    store = RaftLogStore(tmp_path / STORE, attrs.evolve(made, max_wal_bytes=1 << 20,
                                                        log=attrs.evolve(made.log, policy=SeedPolicy(max_sources=2))))

    with store:
        log = store.log("a")
        log.append([(index, 1, b"old") for index in range(16)])
        store.flush()
        overwrite(log, [(index, 2, b"new") for index in range(8, 28)])
        log.snapshot(26, [1, 5, 9, 13, 17, 21, 25])
        outcome = log.compact(policy=log.policy, executor=Flushing(store, "after it"))
        assert isinstance(outcome, Done)
        assert [group.members for group in outcome.stats.done] == [(1, 2), (3,)]
        log.append([(index, 3, b"more") for index in range(28, 36)])
        store.flush()
        log.snapshot(34, [1, 5, 9, 25, 33])
        assert isinstance(log.compact(policy=SeedPolicy()), Done)
        assert indexes(log) == [1, 5, 9, 25, 33, 35]
        assert log.read(9) == Entry(9, 2, b"new")
        store.audit()


def test_a_damaged_segment_with_a_pinned_entry_keeps_no_other_from_being_compacted(tmp_path: Path) -> None:
    made = options(UnsyncedFiles())
    with open_log(tmp_path, attrs.evolve(made, log=attrs.evolve(made.log, max_open_segments=1))) as log:
        log.append([(index, 1, b"some bytes") for index in range(1, 42)])
        log.flush()
        log.snapshot(40, [5, 9, 13, 21, 25, 29, 33])
        pin = log.pin(IndexSet.range(21, 21))
        flip_byte(next(tmp_path.rglob(segment_name(6))), native.INDEX_START)
        log.read(5)
        outcome = log.compact(policy=SeedPolicy())
        assert isinstance(outcome, CompactionFailed)
        assert isinstance(outcome.error, CorruptData)
        assert [failed.members for failed in outcome.report.failed] == [(6,)]
        assert [group.members for group in outcome.report.done] == [(2, 3, 4), (7, 8, 9)]
        assert [entry.index for entry in pin.entries()] == [21]


def test_segments_that_are_taken_back_while_a_compaction_looks_are_not_damaged(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = attrs.evolve(options(UnsyncedFiles()), max_wal_bytes=1 << 20)
    with RaftLogStore(tmp_path / STORE, settings) as store:
        store.log("a").append([(index, 1, b"old") for index in range(16)])
        store.flush()
    with RaftLogStore(tmp_path / STORE, settings) as store:
        log = store.log("a")
        overwrite(log, [(index, 2, b"new") for index in range(20)])
        log.snapshot(18, [0, 5, 7, 9, 13])
        looks: list[int] = []

        def looks_after_a_flush(folder: str, number: int) -> int:
            looks.append(number)
            if looks == [number]:
                store.flush()
            return file_bytes(folder, number)

        monkeypatch.setattr(statistics, "file_bytes", looks_after_a_flush)
        outcome = log.compact(policy=log.policy)
        assert looks
        assert not isinstance(outcome, Failed), outcome
        assert [entry.index for entry in log.entries()] == [0, 5, 7, 9, 13, 19]
        store.audit()


# -- a folder of snapshots


def snapshot_life(folder: Path, files: RecordingFiles, rounds: int = 2) -> None:
    """A checkpoint that is promoted, a snapshot, and one that is received; acknowledges what is in force."""
    snapshots = SnapshotFolder(folder / SNAPSHOTS, files=files)

    def promise() -> int:
        found = snapshots.latest()
        index = -1 if found is None else found.index
        files.acknowledge(index)
        return index

    # Checkpoints may be further: the life before was killed before it had put one in force.
    last = max(promise(), *(each.index for each in snapshots.checkpoints), -1)
    for start in range(last, last + 10 * rounds, 10):
        snapshots.write_checkpoint(SnapshotMeta(start + 2, 1, IndexSet.from_sorted([max(start, 0)])), [b"checkpoint"])
        snapshots.promote(start + 2)
        promise()
        snapshots.write(SnapshotMeta(start + 4, 1, IndexSet()), [b"state", bytes(start % 5)])
        promise()
        snapshots.remove_older()
        manifest = SnapshotManifest.of(start + 6, 2, IndexSet(), state_bytes=8, state_crc=RECEIVED_CRC)
        staged = snapshots.staged()
        keep = staged.state_bytes if staged is not None and staged.meta == manifest else 0
        incoming = snapshots.receive(manifest, keep_bytes=keep)
        incoming.write(keep, b"received"[keep:])
        snapshots.adopt(incoming, IndexSet())
        promise()
        snapshots.remove_older()


RECEIVED_CRC = crc32(b"received")


def require_snapshot_kept(folder: Path, acknowledged: Sequence[int]) -> None:
    if acknowledged:
        snapshots = SnapshotFolder(folder / SNAPSHOTS, files=UnsyncedFiles())
        found = snapshots.latest()
        assert (-1 if found is None else found.index) >= acknowledged[-1]
        snapshots.audit()


def snapshot_kills(max_states: int, limit_per_point: int, rounds: int = 2) -> int:
    work = partial(snapshot_life, rounds=rounds)
    return explore_kills(work, work, require_snapshot_kept, prepare=make_host, max_states=max_states,
                         limit_per_point=limit_per_point)


def test_killed_while_snapshots_are_put_in_force_another_and_then_no_power() -> None:
    assert snapshot_kills(250, 2) >= 250


@pytest.mark.soak
def test_soak_killed_while_snapshots_are_put_in_force_another_and_then_no_power() -> None:
    assert snapshot_kills(30_000, 300, rounds=4) >= 30_000


# ------------------------------------------------------------------------------------------------------------- a fork


def test_a_fork_may_not_write_what_its_parent_has_open(tmp_path: Path) -> None:
    def append(log: RaftLog) -> None:
        log.append([(log.last_index + 1, 1, b"entry")])
        log.sync()
        log.append([(log.last_index + 1, 1, b"not synced, waits in memory")])

    def audit(log: RaftLog) -> None:
        assert log.last_index == 5
        log.flush()
        log.audit()

    refused = check_fork(lambda: open_log(tmp_path / STORE), append, RaftLog.close, audit=audit)
    assert isinstance(refused, Closed)


# ------------------------------------------------------------------------------------------------ under other settings

SETTINGS = [
    StoreOptions(
        log=LogOptions(limits=SegmentLimits(max_entries=entries, max_bytes=size), files=UnsyncedFiles(),
                       keep_links_seconds=keep, max_open_segments=many, trigger=trigger, policy=CostPolicy()),
        max_wal_bytes=wal, max_unflushed_files=files, max_queued_bytes=queued, max_memtable_entries=memory,
        background=background, sync_by_itself=by_itself)
    for (entries, size, keep, many, trigger, wal, files, queued, memory, background, by_itself) in [
        (4, 300, 0.0, 8, EveryNMinors(0), 900, 4, 1 << 20, 1000, False, False),
        (1, 1, 60.0, 1, Manual(), 1, 0, 0, 10, False, False),
        (4096, 1 << 20, 0.0, 64, EveryNMinors(2), 1 << 20, 8, 1 << 20, 100_000, False, False),
        (3, 50, 60.0, 2, EveryNMinors(0), 200, 1, 100, 12, True, False),
        (7, 1000, 0.0, 3, EveryNMinors(1), 500, 0, 1 << 20, 1000, True, True),
    ]
]
OPERATIONS = [kind for kind in KINDS if kind != "reopen"]


class Store:
    """A store's folder, what was done in it, and what of that was acknowledged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.models = {name: RaftModel() for name in LOGS}
        # How many states of each log, if the last life was killed.
        self.promised: dict[str, int] | None = None


def settings_life(world: Store, chosen: StoreOptions, rng: random.Random) -> None:
    killed_at = rng.randrange(10, 120) if rng.random() < 0.5 else None
    if killed_at is not None:
        # Without threads, so that it ends where the disk does.
        files = FailingFiles(UnsyncedFiles(), faults=lambda number: Fault.CRASH_BEFORE if number == killed_at else None)
        chosen = attrs.evolve(chosen, background=False, sync_by_itself=False, log=attrs.evolve(chosen.log, files=files))
    promised = dict.fromkeys(LOGS, 0)
    try:
        lived = World(world.path, models=world.models, options=chosen, acknowledge=promised.update)
        try:
            for _ in range(rng.randrange(4, 16)):
                lived.perform((rng.choice(OPERATIONS), rng.randrange(2), rng.randrange(100), rng.randrange(100)))
            lived.check()
        except BaseException:
            # Without a promise: what was begun last may not have happened.
            lived.store.close()
            raise
        lived.close()
    except (Crash, LogStopped):
        # Closing what was interrupted says that it has stopped.
        assert killed_at is not None
        world.promised = promised


def settings_audit(world: Store, chosen: StoreOptions) -> None:
    with RaftLogStore(world.path, chosen) as store:
        if world.promised is not None:
            for name, model in world.models.items():
                found = found_state(store.log(name), model.history, world.promised[name])
                world.models[name] = RaftModel(History([PlainLog(dict(found.entries), found.snapshot, found.gap)]),
                                               model.term + 100)
            world.promised = None
        for name, model in world.models.items():
            check_log(store.log(name), model.now)
        store.audit()
        store.flush()
        for name, model in world.models.items():
            check_log(store.log(name), model.now)


def histories(folder: Path, count: int, first_seed: int) -> int:
    paths = map(folder.joinpath, map(str, itertools.count()))

    def opened() -> Store:
        path = next(paths)
        shutil.rmtree(path.parent / str(int(path.name) - 1), ignore_errors=True)
        return Store(path)

    report = check_settings(opened, SETTINGS, settings_life, settings_audit, histories=count, first_seed=first_seed)
    return report.changes


def test_nothing_acknowledged_changes_under_other_settings(tmp_path: Path) -> None:
    assert histories(tmp_path, 10, 0) > 20


@pytest.mark.soak
@pytest.mark.parametrize("first_seed", [1000, 2000, 3000, 4000])
def test_soak_nothing_acknowledged_changes_under_other_settings(first_seed: int, tmp_path: Path) -> None:
    assert histories(tmp_path, 250, first_seed) > 500
