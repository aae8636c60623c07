# SPDX-License-Identifier: Apache-2.0
"""The driver of a staging `Repository`: over stores in memory, over SQLite, and with its ranges in a folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from random import Random
from typing import Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

import attrs

from compactlib.clock import Clock
from compactlib.errors import CompactlibError
from compactlib.kv import EXISTS, KVStore, MemoryStore, Retries
from compactlib.objects import LocalObjects, MemoryObjects, ObjectRef, ObjectStore
from compactlib.staging import (
    AlwaysPolicy,
    BranchNotFound,
    CommittedRanges,
    ParquetFormat,
    PlainFormat,
    PreconditionFailed,
    Record,
    RecordNotFound,
    Repository,
    SplitRule,
    StagingOptions,
)
from compactlib.staging.errors import BeingCollected
from compactlib.testing import Driver, HostLock, Journal, World, WorldClock
from tests.promises.drivers import branches as tried
from tests.promises.drivers.kv_sqlite import Settings as SqliteSettings, SqliteInFront
from tests.promises.drivers.possible import possible_states

KEYS = (b"a", b"a/1", b"a/2", b"b", b"b/1", b"\0", b"\xff", b"\xff\xff")
WEEK = 7 * 86_400.0
_DAMAGED = "damaged"

Where: TypeAlias = Literal["memory", "values", "sqlite", "folder"]


@attrs.frozen
class Settings:
    """The settings of an opening."""

    options: StagingOptions
    rule: SplitRule
    cache_bytes: int = 1 << 20
    range_format: ParquetFormat | PlainFormat = attrs.field(factory=PlainFormat)
    sqlite: SqliteSettings = attrs.field(factory=SqliteSettings)


class DatedObjects(LocalObjects):
    """Objects in a folder with times of the clock of a world."""

    def __init__(self, world: World) -> None:
        super().__init__(world.folder, files=world.files)
        self._world = world

    def create(self, key: str, data: bytes | memoryview) -> ObjectRef:
        ref = super().create(key, data)
        now = self._world.clock.now()
        os.utime(os.path.join(self.folder, key), (now, now))
        return ref


@attrs.define(eq=False)
class Opened:
    """An open repository with its stores."""

    repository: Repository
    committed: CommittedRanges
    kv: KVStore
    clock: WorldClock
    opening: int
    host: HostLock = attrs.field(factory=HostLock)

    def compact(self, *, policy: AlwaysPolicy, branch: str = "main") -> object:
        return self.repository.compact(branch=branch, policy=policy)

    def close(self) -> None:
        self.repository.close()
        self.kv.close()


class RepositoryDriver(Driver[Opened]):
    """Branches that are written, committed, merged, reset, compacted and collected.

    Args:
        where: `"memory"`: both stores are in memory; `"values"`: likewise, and the key-value store compares values;
            `"sqlite"`: the key-value store is a file; `"folder"`: the ranges are files.
    """

    has_peers = True

    def __init__(self, where: Where = "memory") -> None:
        self._where = where
        self._reclaims: WeakKeyDictionary[Clock, int] = WeakKeyDictionary()

    def settings(self) -> Sequence[Settings]:
        ours = StagingOptions(owns_ranges=True, retries=Retries(10, 0))
        return [Settings(ours, SplitRule(raggedness=3)),
                Settings(attrs.evolve(ours, max_scanned=4),
                         SplitRule(raggedness=1000), 0, PlainFormat(), SqliteSettings("full", 2)),
                Settings(attrs.evolve(ours, owns_ranges=False, grace_seconds=0), SplitRule(max_bytes=200, min_bytes=0),
                         range_format=ParquetFormat() if self._where == "folder" else PlainFormat())]

    def policy(self) -> AlwaysPolicy:
        return AlwaysPolicy(window_seconds=0)

    def open(self, world: World, settings: Settings) -> Opened:
        kv: KVStore
        if self._where == "sqlite":
            kv = SqliteInFront.opened(world, settings.sqlite)
        elif self._where == "values":
            kv = world.keyed("kv", lambda: MemoryStore(predicates="value"))
        else:
            kv = world.keyed("kv", MemoryStore)
        objects: ObjectStore
        if self._where == "folder":
            objects = DatedObjects(world)
        else:
            objects = world.objects("objects", lambda: MemoryObjects(clock=world.clock))
        opening = world.kept["opened"] = world.kept.get("opened", 0) + 1
        names = Random(f"names {opening}")
        committed = CommittedRanges(objects, rule=settings.rule, range_format=settings.range_format,
                                    cache_bytes=settings.cache_bytes, clock=world.clock,
                                    new_name=lambda: f"{names.getrandbits(128):032x}")
        try:
            repository = Repository(kv, committed, options=settings.options, clock=world.clock,
                                    rng=Random(f"tokens {opening}"))
        except BaseException:
            kv.close()
            raise
        return Opened(repository, committed, kv, world.clock, opening)

    def halves(self, what: tried.Change) -> Iterator[tuple[tried.Change, tried.Change]]:
        """Yield the halves of a write that may happen before and after all changes of another owner."""
        if not isinstance(what, tried.Write):
            return
        for taken in product([False, True], repeat=len(what.items)):
            first, second = ([item for item, is_first in zip(what.items, taken, strict=True) if is_first == half]
                             for half in (True, False))
            yield attrs.evolve(what, items=tuple(first)), attrs.evolve(what, items=tuple(second))

    # --- acts

    def act(self, store: Opened, rng: Random, journal: Journal) -> None:
        kind = rng.choice(["merge", "reclaim", "delete", "put", "hard reset", "commit", "import", "reclaim", "put",
                           "again", "if", "compact", "reset", "compact"])
        for _ in range(4):
            try:
                self._do(store, kind, rng, journal)
                return
            except BeingCollected:
                # The marks of a running or an interrupted collection refuse writers until they are old.
                if self._reclaims.get(store.clock):
                    return
                self._reclaim(store, journal)
        raise AssertionError("writers are turned away by the marks of a collection, weeks later")

    def _do(self, store: Opened, kind: str, rng: Random, journal: Journal) -> None:
        if kind == "compact":
            with journal.trying(tried.Upkeep(store.opening)), contextlib.suppress(BranchNotFound):
                store.compact(policy=self.policy(), branch=rng.choice(["main", "main", "dev"]))
        elif kind == "reclaim":
            self._reclaim(store, journal)
        else:
            with store.host:  # the outcome of concurrent changes of a key or a HEAD is not promised
                _Host(store, rng, journal).do(kind)

    def _reclaim(self, store: Opened, journal: Journal) -> None:
        """Let a week pass, longer than a collection takes, and free unreachable ranges."""
        with store.host:
            if not self._reclaims.get(store.clock):
                store.clock.advance(WEEK)
            self._reclaims[store.clock] = self._reclaims.get(store.clock, 0) + 1
        try:
            with journal.trying(tried.Upkeep(store.opening)):
                if store.repository.status().ranges_refused:
                    store.repository.adopt_ranges()  # ranges written before an owner was known
                store.repository.reclaim()
        finally:
            with store.host:
                self._reclaims[store.clock] -= 1

    # --- checks

    def check(self, store: Opened, journal: Journal, *, damage: str) -> None:
        possible = possible_states(journal, tried.Repo(), lambda repo, what: what.ways(repo),
                                   lambda repo, what: what.partly(repo))
        found, report = _Found.of(store.repository), store.repository.verify()
        if any(found.agrees(repo) for repo in possible):
            assert not found.is_damaged or damage, found
            assert not found.is_damaged or report.findings, f"verify() did not find the damage of {found}"
        else:
            # A read may miss a row of SQLite whose tree is damaged; the audit finds the damage.
            assert damage, f"found {found}, possible is one of {possible}"
            assert self._where == "sqlite", f"found {found}, possible is one of {possible}"
            with contextlib.suppress(CompactlibError):
                _audit(store.kv)
                raise AssertionError(f"found {found}, and the audit found nothing; possible is one of {possible}")
        if not damage:
            assert report.is_sound, report
            if self._where == "sqlite":
                _audit(store.kv)


def _audit(store: Any) -> None:
    """Audit an SQLite store, which may stand behind another one."""
    store.audit()


class _Host:
    """The changes on branches `main` and `dev`, one after the other."""

    def __init__(self, store: Opened, rng: Random, journal: Journal) -> None:
        self.opening, self.repository, self.committed = store.opening, store.repository, store.committed
        self.rng, self.journal = rng, journal

    def do(self, kind: str) -> None:
        self.require_branch("main", None)
        name = self.rng.choice(["main", "main", "dev"])
        if name == "dev" or kind == "merge":
            self.require_branch("dev", "main")
        if kind == "merge":
            self.write("dev")
            self.commit("dev")
            self.merge()
            if self.rng.random() < 0.5:
                self.drop()
        elif kind == "again":
            self.again(name)
        elif kind == "import":
            self.import_contents(name)
        elif kind == "hard reset":
            self.hard_reset(name)
        else:
            self.write(name)
            also = {"commit": self.commit, "delete": self.delete, "if": self.write_if, "reset": self.reset}.get(kind)
            if also is not None:
                also(name)

    def require_branch(self, name: str, source: str | None) -> None:
        if not any(branch.name == name for branch in self.repository.branches()):
            change = tried.Create(self.opening, name, source=source, seen=self.head(source) if source else "")
            with self.journal.trying(change):
                self.repository.create_branch(name, source)

    def drop(self) -> None:
        with self.journal.trying(tried.Drop(self.opening, "dev")):
            self.repository.delete_branch("dev")

    def write(self, name: str) -> None:
        items = {key: self.data() for key in self.rng.sample(KEYS, self.rng.randint(1, 3))}
        if len(items) == 1 and self.rng.random() < 0.5:
            self.append(name, next(iter(items)))
            return
        with self.journal.trying(tried.Write(self.opening, name, items=tuple(items.items()))):
            if len(items) == 1:
                self.repository.branch(name).put(*next(iter(items.items())))
            else:
                self.repository.branch(name).put_many(items)

    def delete(self, name: str) -> None:
        keys = self.rng.sample(KEYS, self.rng.randint(1, 3))
        with self.journal.trying(tried.Write(self.opening, name, items=tuple((key, None) for key in keys))):
            self.repository.branch(name).delete_many(keys)

    def write_if(self, name: str) -> None:
        branch, key, data = self.repository.branch(name), self.rng.choice(KEYS), self.data()
        with contextlib.suppress(PreconditionFailed), self.journal.trying(tried.Upkeep(self.opening)):
            branch.put_if(key, data, Record.of(b"was never there"))
            raise AssertionError("a condition that does not hold was passed")
        found = branch.get_many([key]).get(key)
        way = "put" if found is None else self.rng.choice(["put", "delete"])
        new = None if way == "delete" else data
        with self.journal.trying(tried.Write(self.opening, name, items=((key, new),))):
            if way == "delete":
                branch.delete_if(key, EXISTS)
            else:
                branch.put_if(key, data, found)

    def append(self, name: str, key: bytes) -> None:
        word = b"%08x;" % self.rng.getrandbits(32)
        with self.journal.trying(tried.Append(self.opening, name, seen=self.head(name), key=key, word=word)):
            self.repository.branch(name).update(key, lambda record: (b"" if record is None else record.data) + word)

    def reset(self, name: str) -> None:
        branch, way = self.repository.branch(name), self.rng.choice(["all", "prefix", "key"])
        prefix = {"all": b"", "prefix": self.rng.choice([b"a", b"a/", b"\xff"]), "key": self.rng.choice(KEYS)}[way]
        change = tried.Reset(self.opening, name, seen=self.head(name), prefix=prefix, is_key=way == "key")
        with self.journal.trying(change):
            if way == "all":
                branch.reset()
            elif way == "prefix":
                branch.reset_prefix(prefix)
            else:
                branch.reset_key(prefix)

    def commit(self, name: str) -> None:
        message = self.message()
        with self.journal.trying(tried.Commit(self.opening, name, message=message)):
            self.require_own(self.repository.branch(name).commit(message), message)

    def merge(self) -> None:
        self.clean("main")
        change = tried.Merge(self.opening, "main", source="dev", seen=self.head("dev"), message=self.message(),
                             strategy=self.strategy())
        with self.journal.trying(change):
            made = self.repository.branch("main").merge("dev", change.message, strategy=change.strategy)
            self.require_own(made, change.message)

    def require_own(self, report: Any, message: str) -> None:
        """Require that the commit of a report has the caller's message."""
        if not report.is_empty:
            found = self.repository.commit(report.commit_id).message
            assert found == message, f"commit {message} was made, and {found} was told"

    def again(self, name: str) -> None:
        self.write(name)
        self.commit(name)
        commit_id, commit = self.rng.choice(list(self.repository.branch(name).log())[:3])
        way: Literal["revert", "cherry_pick"] = self.rng.choice(["revert", "revert", "cherry_pick"])
        change = tried.Again(self.opening, name, of=commit.message, way=way, message=self.message(),
                             strategy=self.strategy())
        with self.journal.trying(change):
            getattr(self.repository.branch(name), way)(commit_id, change.message, strategy=change.strategy)

    def import_contents(self, name: str) -> None:
        self.clean(name)
        items = {key: self.data() for key in sorted(self.rng.sample(KEYS, 4))}
        change = tried.Commit(self.opening, name, message=self.message(), contents=frozenset(items.items()))
        with self.journal.trying(change):
            made = self.committed.apply(None, [(key, Record.of(data)) for key, data in items.items()])
            self.repository.branch(name).commit_metarange(made.metarange_id, change.message)

    def hard_reset(self, name: str) -> None:
        log = list(self.repository.branch(name).log())
        if not log:
            self.write(name)
            self.commit(name)
            return
        commit_id, commit = self.rng.choice(log[:3])
        with self.journal.trying(tried.HardReset(self.opening, name, to=commit.message)):
            self.repository.branch(name).hard_reset(commit_id, discard=True)

    def clean(self, name: str) -> None:
        if self.repository.branch(name).is_dirty():
            self.commit(name)

    def head(self, name: str) -> str:
        return next((commit.message for _, commit in self.repository.branch(name).log()), "")

    def data(self) -> bytes:
        return self.rng.choice([b"", b"same", *[b"%08x" % self.rng.getrandbits(32)] * 4]) * self.rng.choice([1, 9])

    def message(self) -> str:
        return f"{self.rng.getrandbits(64):016x}"

    def strategy(self) -> tried.Strategy:
        return "source_wins" if self.rng.random() < 0.5 else "destination_wins"


@attrs.frozen
class _Found:
    """The content read from a repository; `"damaged"` in place of a value whose read raised.

    Attributes:
        branches: by name: the messages of its log, the contents of HEAD, and its contents.
        commits: by message: the contents.
    """

    branches: Mapping[str, tuple[object, object, object]] | str
    commits: Mapping[str, object]

    @classmethod
    def of(cls, repository: Repository) -> _Found:
        commits: dict[str, object] = {}
        branches = _answer(lambda: [branch.name for branch in repository.branches()])
        if isinstance(branches, str):
            return cls(_DAMAGED, commits)
        found = {}
        for name in branches:
            branch = repository.branch(name)
            log = _answer(lambda: list(branch.log()))  # noqa: B023
            for commit_id, commit in [] if log == _DAMAGED else log:
                if commit.message not in commits:
                    commits[commit.message] = _answer(lambda: _contents(repository.at(commit_id)))  # noqa: B023
            head, now = _answer(lambda: _contents(branch.head())), _answer(lambda: _contents(branch))  # noqa: B023
            if _DAMAGED not in (log, head, now):
                _require_agreement(branch, dict(head), dict(now))
            found[name] = (log if log == _DAMAGED else {commit.message for _, commit in log}), head, now
        return cls(found, commits)

    @property
    def is_damaged(self) -> bool:
        return _DAMAGED in (self.branches, *self.commits.values(), *(
            answer for answers in dict(self.branches if not isinstance(self.branches, str) else {}).values()
            for answer in answers))

    def agrees(self, repo: tried.Repo) -> bool:
        commits = dict(repo.commits)
        if not all(message in commits and contents in (_DAMAGED, commits[message].contents)
                   for message, contents in self.commits.items()):
            return False
        if isinstance(self.branches, str):
            return True
        return self.branches.keys() == dict(repo.branches).keys() and all(
            log in (_DAMAGED, repo.history(head)) and contents in (_DAMAGED, commits[head].contents)
            and held in (_DAMAGED, now)
            for name, (head, now) in repo.branches for log, contents, held in [self.branches[name]])


def _answer(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except CompactlibError:
        return _DAMAGED


def _contents(view: Any) -> tried.Contents:
    return frozenset((entry.key, entry.record.data) for entry in _entries(view))


def _entries(view: Any) -> Iterator[Any]:
    after = None
    while True:
        page = view.list(after=after, limit=5)
        yield from page.entries
        if (after := page.next_after) is None:
            return


def _require_agreement(branch: Any, head: dict[bytes, bytes], now: dict[bytes, bytes]) -> None:
    """Require that the other ways to read a branch agree with its listings."""
    differs = {key for key in {*head, *now} if head.get(key) != now.get(key)}
    assert {each.key for each in branch.differences(page_limit=5)} == differs, (branch, head, now)
    assert branch.is_dirty() == bool(differs), (branch, head, now)
    assert {key: record.data for key, record in branch.get_many(KEYS).items()} == now, (branch, now)
    for key in (*sorted(differs)[:1], KEYS[1]):
        for view, contents in ((branch, now), (branch.head(), head)):
            try:
                found = view.get(key).data
            except RecordNotFound:
                found = None
            assert found == contents.get(key), (branch, key, found)
