# SPDX-License-Identifier: Apache-2.0
"""A repository that is opened again and again with other settings, by two at once, while clocks jump.

What was acknowledged under one opening is there under the next, whatever formats, sizes, limits and graces it has, also
if one works while the other stands still in a compaction or reclaim; and what nothing needs is gone at last.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from compactlib.clock import ManualClock
from compactlib.kv import Condition, Delete, MemoryStore, Put
from compactlib.kv.store import Cell, Versioned
from compactlib.objects import MemoryObjects
from compactlib.outcome import Done, Failed
from compactlib.staging import (
    AlwaysPolicy,
    Branch,
    CommittedRanges,
    DirtyBranch,
    PreconditionFailed,
    Record,
    RecordNotFound,
    Repository,
    SplitRule,
    StagingOptions,
)
from compactlib.staging.errors import (
    BeingCollected,
    BranchExists,
    BranchNotFound,
    MergeConflict,
    MetaRangeNotFound,
    RangeNotFound,
)
from compactlib.staging.model.names import CommitId, token_partition
from tests.harness.faulty_store import FaultyStore, KVFault, KVOperation
from tests.staging.committed.range_formats import FORMATS
from tests.tools.faults.objects_faults import FaultyObjects, ObjectRequest
from tests.tools.faults.plan import Crash, Fault

Contents = dict[bytes, bytes]
NAMES = ("main", "dev", "old")
_DAY = 86_400.0
_START = 1_000_000.0


class Cells(MemoryStore):
    """A store that says which of its partitions hold anything."""

    def partitions(self) -> set[bytes]:
        return {name for name, cells in self._partitions.items() if cells}


class Reopened:
    """A store as one opening has it: with limits of its own, which are kept to."""

    def __init__(self, store: MemoryStore, *, page_size: int, max_transact: int, max_get_many: int) -> None:
        self.limits = attrs.evolve(store.limits, max_transact=max_transact, max_get_many=max_get_many)
        self._store = store
        self._page_size = page_size

    def transact(self, conditions: Sequence[Condition] = (), puts: Sequence[Put] = (),
                 deletes: Sequence[Delete] = ()) -> None:
        assert len(conditions) + len(puts) + len(deletes) <= self.limits.max_transact
        self._store.transact(conditions, puts, deletes)

    def get_many(self, cells: Sequence[Cell]) -> list[Versioned | None]:
        assert len(cells) <= self.limits.max_get_many
        return self._store.get_many(cells)

    def scan(self, partition: bytes, start: bytes = b"", *, page_size: int | None = None, **options: Any) -> Any:
        return self._store.scan(partition, start, page_size=min(page_size or 1000, self._page_size), **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@attrs.define
class Model:
    """What a branch holds, and its HEAD."""

    now: Contents
    head: Contents
    commit: CommitId | None = None


class SettingsWorld:
    """One life, drawn from a seed.

    Attributes:
        story: what was done, in order.
    """

    def __init__(self, seed: int, *, jumps: bool = True) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock(_START)
        self.objects = MemoryObjects(clock=self.clock)
        self.near = MemoryObjects(clock=self.clock)
        self.story: list[str] = []
        self.models = {"main": Model({}, {})}
        self.commits: dict[CommitId, Contents] = {}
        self.reading: list[tuple[Iterator[tuple[bytes, Record]], list[tuple[bytes, bytes]]]] = []
        self._jumps = jumps
        self._words = 0
        self._faults = 0.0
        self._died = False
        self._requests_left = 0
        self._is_beside = False
        self.store = Cells(page_size=self.rng.choice([2, 7, 1000]))
        self.open()
        self.repo().create_branch("main")

    def live(self, openings: int, steps: int) -> None:
        """Open anew, look at everything, then a few operations."""
        for _ in range(openings):
            self.open()
            self.check_all()
            for _ in range(self.rng.randrange(1, steps)):
                self.step()
                self.check(self.rng.choice(list(self.models)))
        self.end()

    # --- openings

    def open(self) -> None:
        """Two repositories over the same stores, each with settings of its own."""
        self.repos = [self._opened() for _ in range(2)]

    def repo(self) -> Repository:
        return self.rng.choice(self.repos)

    def _opened(self) -> Repository:
        rng = self.rng
        store: Any = Reopened(self.store, page_size=rng.choice([1, 2, 3, 7, 1000]),
                              max_transact=rng.choice([0, 1, 2, 3, 5, 8, 100]), max_get_many=rng.choice([0, 1, 2, 100]))
        names = random.Random(rng.getrandbits(64))
        rule = rng.choice([SplitRule(), SplitRule(raggedness=2), SplitRule(raggedness=3, min_bytes=100),
                           SplitRule(max_bytes=90), SplitRule(raggedness=1)])
        committed = CommittedRanges(
            FaultyObjects(self.objects, self._object_fault), range_format=rng.choice(FORMATS), rule=rule,
            cache_bytes=rng.choice([0, 1, 300, 1 << 20]),
            clock=self.clock, new_name=lambda: f"{names.getrandbits(64):016x}",
            near=rng.choice([None, self.near]), near_bytes=rng.choice([1, 500, 1 << 20]))
        options = StagingOptions(
            first_backoff_seconds=0, max_scanned=rng.choice([1, 2, 5, 100]),
            diff_cache_bytes=rng.choice([0, 500, 1 << 20]),
            on_new_sealed=rng.choice(["abort", "keep"]), grace_seconds=rng.choice([0, 3600.0]),
            orphan_seconds=rng.choice([0, _DAY]), owns_ranges=rng.random() < 0.8,
            range_grace_seconds=rng.choice([0, 0, 3600.0, _DAY]))
        self.story.append(f"open {store.limits.max_transact} {committed!r} {options}")

        def choose(operation: KVOperation) -> KVFault | None:
            self._counted()
            if self.rng.random() < self._faults:
                return self.rng.choice([KVFault.UNKNOWN_DONE, KVFault.UNKNOWN_LOST, KVFault.FAIL, KVFault.SLOW_DOWN,
                                        KVFault.CONFLICT, KVFault.CRASH_BEFORE, KVFault.CRASH_AFTER])
            return None

        # All openings are one repository's, and the first ranges may be of one that does not own them.
        Repository(self.store, CommittedRanges(self.objects), clock=self.clock).adopt_ranges()
        faults, self._faults = self._faults, 0.0
        left, self._requests_left = self._requests_left, 0
        opened = Repository(FaultyStore(store, choose), committed, clock=self.clock, rng=names, options=options)
        self._faults, self._requests_left = faults, left
        return opened

    def _object_fault(self, request: ObjectRequest) -> Fault | None:
        self._counted()
        if self.rng.random() < self._faults:
            return self.rng.choice([Fault.REFUSED, Fault.UNKNOWN_DONE, Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
        return None

    def _counted(self) -> None:
        """A request; before one of them, the other repository does a few things."""
        if not self._requests_left:
            return
        self._requests_left -= 1
        if self._requests_left:
            return
        faults, self._faults, self._is_beside = self._faults, 0.0, True
        for _ in range(self.rng.randrange(1, 5)):
            self.step()
            self.check(self.rng.choice(list(self.models)))
        self._faults, self._is_beside = faults, False

    # --- looking

    def check_all(self) -> None:
        for repo in self.repos:
            for name in self.models:
                self.check(name, repo)
            report = repo.verify()
            assert report.is_sound, report
            repo.audit()
            repo.context.committed.audit()
            for commit_id in self.reachable():
                found = dict(repo.at(commit_id).records())
                assert {key: record.data for key, record in found.items()} == self.commits[commit_id], commit_id

    def check(self, name: str, repo: Repository | None = None) -> None:
        branch, model, rng = (repo or self.repo()).branch(name), self.models[name], self.rng
        limit = rng.choice([1, 2, 1000])
        listed = [(one.key, one.record and one.record.data) for one in branch.entries(page_limit=limit)]
        assert listed == sorted(model.now.items()), (name, listed, model.now)
        folded = [one.key for one in branch.entries(delimiter=b"/", page_limit=limit)]
        assert folded == sorted({key[:key.find(b"/") + 1] or key for key in model.now}), (name, folded, model.now)
        keys = sorted({*model.now, *model.head, b"none"})
        assert {key: record.data for key, record in branch.get_many(keys).items()} == model.now
        for key in rng.sample(keys, min(2, len(keys))):
            assert _held(branch, key) == model.now.get(key)
        wanted = [(key, model.head.get(key), model.now.get(key)) for key in sorted({*model.now, *model.head})
                  if model.head.get(key) != model.now.get(key)]
        found = [(one.key, one.left and one.left.data, one.right and one.right.data)
                 for one in branch.differences(page_limit=limit)]
        assert found == wanted, (name, found, wanted)
        assert branch.is_dirty() == bool(wanted)
        assert {key: record.data for key, record in branch.head().records()} == model.head
        assert branch.record().commit_id == model.commit

    def reachable(self) -> set[CommitId]:
        found: set[CommitId] = set()
        for name in self.models:
            found.update(commit_id for commit_id, _ in self.repo().branch(name).log())
        return found

    # --- operations

    def step(self) -> None:
        rng = self.rng
        name = rng.choice(list(self.models))
        work = rng.choice([self.put] * 4 + [self.delete] * 3 + [self.commit] * 3 + [self.compact] * 4
                          + [self.reclaim] * 3
                          + [self.reset, self.reset_prefix, self.reset_key, self.merge, self.merge, self.revert,
                             self.cherry_pick, self.hard_reset, self.branch_off, self.branch_off, self.drop, self.wait,
                             self.wait, self.put_if, self.read, self.read, self.read_on, self.read_on])
        self.story.append(f"{work.__name__} {name}")
        try:
            work(self.repo().branch(name), self.models[name])
        except BeingCollected:
            # A collection that died has left its marks, or one is under way.
            assert self._died or self._is_beside
            self.story.append("  being collected")

    def _keys(self) -> list[bytes]:
        keys = [b"%s%02d" % (self.rng.choice([b"a", b"b", b"b/", b"c/"]), self.rng.randrange(30))
                for _ in range(self.rng.choice([1, 1, 3, 15]))]
        # Some are themselves what others are folded to.
        return [key[:2] if key.endswith(b"0") and b"/" in key else key for key in keys]

    def put(self, branch: Branch, model: Model) -> None:
        self._words += 1
        items = {key: self.rng.choice([b"0", b"%d" % self._words]) for key in self._keys()}
        branch.put_many(items)
        model.now.update(items)

    def put_if(self, branch: Branch, model: Model) -> None:
        key = self._keys()[0]
        try:
            branch.put_if(key, b"if", None)
        except PreconditionFailed:
            assert key in model.now
        else:
            assert key not in model.now
            model.now[key] = b"if"

    def delete(self, branch: Branch, model: Model) -> None:
        keys = self._keys() + self.rng.sample(sorted(model.now), len(model.now) // 2)
        branch.delete_many(keys)
        for key in keys:
            model.now.pop(key, None)

    def _moved(self, branch: Branch, model: Model, head: Contents) -> None:
        model.commit = branch.record().commit_id
        model.head = dict(head)
        if model.commit is not None:
            assert self.commits.setdefault(model.commit, dict(head)) == head

    def commit(self, branch: Branch, model: Model) -> None:
        outcome = branch.commit("settings")
        if isinstance(outcome, Done):
            self._moved(branch, model, model.now)
        else:
            assert model.now == model.head

    def compact(self, branch: Branch, model: Model) -> None:
        self._settling(lambda repo: repo.compact(branch=branch.name, policy=AlwaysPolicy(window_seconds=0)))

    def reclaim(self, branch: Branch, model: Model) -> None:
        if self.rng.random() < 0.3:
            self.clock.advance(self.rng.choice([1.0, 2 * _DAY]))
        self._settling(lambda repo: repo.reclaim())

    def _settling(self, work: Callable[[Repository], object]) -> None:
        """What changes nothing that is read, whatever the store answers."""
        if self._is_beside:
            self.story.append(f"  beside: {work(self.repo())!r:.300}")
            return
        self._faults = self.rng.choice([0.0, 0.0, 0.1])
        self._requests_left = self.rng.choice([0, self.rng.randrange(1, 10), self.rng.randrange(1, 60)])
        repos, repo, is_alone = self.repos, self.repo(), not self._requests_left
        self.repos = [each for each in repos if each is not repo]
        try:
            outcome = work(repo)
        except Crash:
            self.story.append("  died")
            self._died = True
            self.reading.clear()
            self.open()
            return
        except BranchNotFound:
            assert not is_alone
            outcome = None
        finally:
            self._requests_left = 0
            is_faulty, self._faults = self._faults > 0, 0.0
        self.repos = repos
        self.story.append(f"  {outcome!r:.300}")
        if isinstance(outcome, Failed) and not is_faulty:
            # Without a grace, a collection takes what a compaction has just made.
            assert not is_alone, outcome
            assert isinstance(outcome.error, BeingCollected | BranchNotFound), outcome

    def reset(self, branch: Branch, model: Model) -> None:
        branch.reset()
        model.now = dict(model.head)

    def reset_prefix(self, branch: Branch, model: Model) -> None:
        prefix = self.rng.choice([b"a", b"b", b"b/", b"b0", b""])
        branch.reset_prefix(prefix)
        model.now = {key: value for key, value in model.now.items() if not key.startswith(prefix)}
        model.now.update((key, value) for key, value in model.head.items() if key.startswith(prefix))

    def reset_key(self, branch: Branch, model: Model) -> None:
        key = self._keys()[0]
        branch.reset_key(key)
        model.now.pop(key, None)
        if key in model.head:
            model.now[key] = model.head[key]

    def _moving(self, branch: Branch, model: Model, base: Contents, source: Contents,
                move: Callable[[str], object], strategy: str) -> None:
        """A merge of what changed from `base` to `source`."""
        changed = {key: source.get(key) for key in {*base, *source} if base.get(key) != source.get(key)}
        conflicts = {key for key, value in changed.items()
                     if model.head.get(key) != base.get(key) and model.head.get(key) != value}
        wanted = dict(model.head)
        for key, value in changed.items():
            if key in conflicts and strategy == "destination_wins":
                continue
            wanted.pop(key, None)
            if value is not None:
                wanted[key] = value
        try:
            move(strategy)
        except DirtyBranch:
            assert model.now != model.head
            return
        except MergeConflict:
            assert conflicts
            assert strategy == "fail"
            return
        assert model.now == model.head
        assert not (conflicts and strategy == "fail")
        self._moved(branch, model, wanted)
        model.now = dict(wanted)

    def merge(self, branch: Branch, model: Model) -> None:
        source = self.rng.choice(list(self.models))
        base = self.repo().context.commits.merge_base(model.commit, self.models[source].commit)
        before = {} if base is None else self.commits[base]
        strategy = self.rng.choice(["fail", "source_wins", "destination_wins"])
        if self.models[source].commit is not None:
            self._moving(branch, model, before, self.models[source].head,
                         lambda how: branch.merge(source, strategy=how), strategy)  # type: ignore[arg-type]

    def _picked(self) -> tuple[CommitId, Contents, Contents] | None:
        found = sorted(self.reachable())
        if not found:
            return None
        commit_id = self.rng.choice(found)
        parents = self.repo().commit(commit_id).parents
        return commit_id, self.commits[parents[0]] if parents else {}, self.commits[commit_id]

    def revert(self, branch: Branch, model: Model) -> None:
        if picked := self._picked():
            commit_id, before, after = picked
            self._moving(branch, model, after, before, lambda how: branch.revert(commit_id, strategy=how),  # type: ignore[arg-type]
                         self.rng.choice(["fail", "source_wins", "destination_wins"]))

    def cherry_pick(self, branch: Branch, model: Model) -> None:
        if picked := self._picked():
            commit_id, before, after = picked
            self._moving(branch, model, before, after, lambda how: branch.cherry_pick(commit_id, strategy=how),  # type: ignore[arg-type]
                         self.rng.choice(["fail", "source_wins", "destination_wins"]))

    def hard_reset(self, branch: Branch, model: Model) -> None:
        """Also to commits that nothing reaches any more, which are there as they were, or gone by name."""
        if not self.commits:
            return
        commit_id = self.rng.choice(sorted(self.commits))
        is_reachable = commit_id in self.reachable()
        try:
            branch.hard_reset(commit_id, discard=True)
        except MetaRangeNotFound:
            assert not is_reachable
            return
        self._moved(branch, model, self.commits[commit_id])
        model.now = dict(model.head)

    def branch_off(self, branch: Branch, model: Model) -> None:
        name = self.rng.choice(NAMES)
        source = branch.name if model.commit is not None else None
        try:
            self.repo().create_branch(name, source)
        except BranchExists:
            assert name in self.models
        else:
            head = model.head if source else {}
            self.models[name] = Model(dict(head), dict(head), model.commit if source else None)

    def drop(self, branch: Branch, model: Model) -> None:
        if len(self.models) > 1:
            self.repo().delete_branch(branch.name)
            del self.models[branch.name]

    def wait(self, branch: Branch, model: Model) -> None:
        if self._jumps and self.rng.random() < 0.4:
            self.clock.set_now(self.clock.now() + self.rng.choice([-50, -2, 2, 50, 400]) * _DAY)
        else:
            self.clock.advance(self.rng.choice([1.0, 3600.0, 2 * _DAY]))

    # --- readers that are left half-way

    def read(self, branch: Branch, model: Model) -> None:
        """Begin to read HEAD."""
        self.reading.append((branch.head().records(), sorted(model.head.items())))

    def read_on(self, branch: Branch, model: Model) -> None:
        """Go on a little, whatever happened meanwhile."""
        if not self.reading:
            return
        at = self.rng.randrange(len(self.reading))
        records, left = self.reading[at]
        for _ in range(self.rng.choice([1, 3, 100])):
            try:
                found = next(records, None)
            except (MetaRangeNotFound, RangeNotFound):
                # Of a commit that no branch has any more, or the collections have no grace.
                del self.reading[at]
                return
            wanted = left.pop(0) if left else None
            assert (found and (found[0], found[1].data)) == wanted
            if found is None:
                del self.reading[at]
                return

    # --- the end

    def end(self) -> None:
        """Once the clock is right again and all graces are over, nothing is there that nothing needs."""
        self.reading.clear()
        self.clock.set_now(_START + 10_000 * _DAY)
        repo = Repository(self.store, CommittedRanges(self.objects, clock=self.clock), clock=self.clock,
                          options=StagingOptions(owns_ranges=True))
        repo.adopt_ranges()
        for _ in range(3):
            repo.reclaim()
            self.clock.advance(3 * _DAY)
        self.repos = [repo]
        self.check_all()
        records = [repo.branch(name).record() for name in self.models]
        named = {token_partition(token) for record in records for token in record.tokens}
        assert {name for name in self.store.partitions() if name.startswith(b"stg-")} <= named
        metaranges = {repo.commit(commit_id).metarange_id for commit_id in self.reachable()}
        metaranges |= {record.compacted_metarange_id for record in records if record.compacted_metarange_id is not None}
        committed = repo.context.committed
        assert {file.id for file in committed.list_metaranges()} == metaranges
        assert {file.id for file in committed.list_ranges()} == {
            entry.range_id for metarange in metaranges for entry in committed.ranges_of(metarange)}
        left = {info.key.rpartition("/")[0] for info in self.objects.list()}
        assert left <= {"ranges", "metaranges", "doomed", "owner"}, left


def _held(branch: Branch, key: bytes) -> bytes | None:
    try:
        return branch.get(key).data
    except RecordNotFound:
        return None
