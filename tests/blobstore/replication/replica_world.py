# SPDX-License-Identifier: Apache-2.0
"""Three replicas of unlike settings live a random life, and what is promised of them is checked after each step."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from compactlib.blobstore import (
    Blob,
    BlobPolicy,
    BlobReader,
    BlobStore,
    BlobStoreConfig,
    CompactAll,
    CostBenefit,
    DChoices,
    Deleted,
    GetOptions,
    Greedy,
    Hybrid,
    Questions,
    RecordKind,
    ReplicationToken,
    StatsBased,
    StoreFull,
)
from compactlib.blobstore.errors import BlobConflict, BlobMissing, WritesStopped
from compactlib.blobstore.model.placement import ByAge, ByEnd
from compactlib.blobstore.model.values import Answer, IndexEntry, RecordFlag, milliseconds
from compactlib.blobstore.store.copying import copy_store
from compactlib.blobstore.store.hard_delete import HardDeleter
from compactlib.blobstore.store.replication import ReplicaEntry
from compactlib.blobstore.validity.verdicts import BlobEnd
from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent, CompactlibError, DiskFull, StorageError
from compactlib.files import LocalFiles
from compactlib.outcome import Done, Failed
from compactlib.runtime import Budget
from tests.tools.faults.plan import Crash, FailingFiles, Fault

PEERS = 3
IDS = [b"%d" % number for number in range(6)]
WILD = b"wild"
OTHER_CONTAINER = 7
_PLAIN = GetOptions()
EVERYTHING = GetOptions(include_deleted=True, include_expired=True)
_DELETED = GetOptions(include_deleted=True)
_POLICIES: list[BlobPolicy] = [
    CompactAll(min_used_fraction=0.0), CompactAll(min_used_fraction=0.0), StatsBased(min_used_fraction=0.0),
    Greedy(min_used_fraction=0.0), CostBenefit(min_used_fraction=0.0), DChoices(seed=3, min_used_fraction=0.0),
    Hybrid(usual=StatsBased(min_used_fraction=0.0), thorough=CompactAll(min_used_fraction=0.0), every_seconds=20.0)]
_State: TypeAlias = tuple[bytes, float, float | None, int, int] | None


def take_over(peer: BlobStore, store: BlobStore, entry: ReplicaEntry) -> None:
    """As `docs/blobstore.md` has it: the blob's state now, as the records that lead to it."""
    told: dict[str, Any] = {"life_version": entry.life_version, "permanent": entry.is_permanent,
                            "expires_at": entry.expires_at, "account": entry.account, "container": entry.container}
    blob = peer.get(entry.id, EVERYTHING)
    if isinstance(blob, Blob):
        if blob.info.changed_at != entry.changed_at:
            return
        store.append_replicated(RecordKind.PUT, entry.id, blob.content, op_time=blob.info.put_at, **told)
    if entry.permanent_at is not None:
        store.append_replicated(RecordKind.TTL_UPDATE, entry.id, op_time=entry.permanent_at, **told)
    if entry.is_deleted:
        store.append_replicated(RecordKind.DELETE, entry.id, op_time=entry.changed_at, **told)
    elif entry.life_version:
        store.append_replicated(RecordKind.UNDELETE, entry.id, op_time=entry.changed_at, **told)


class OneRefusal:
    """Refuses one change of the disk, chosen ahead."""

    def __init__(self) -> None:
        self.left = 0
        self.fault = Fault.REFUSED

    def __call__(self, number: int) -> Fault | None:
        """See `FileFaultChoice`."""
        self.left -= 1
        return self.fault if self.left == 0 else None


class Meanwhile(ManualClock):
    """A clock during whose next sleep something happens."""

    then: Callable[[], object] | None = None

    def sleep(self, seconds: float) -> None:
        """Pass the time, and do what is to be done meanwhile."""
        super().sleep(seconds)
        then, self.then = self.then, None
        if then is not None:
            then()


class Hears:
    """A fence behind which a replica hears of a peer, where a blob may just have been undeleted."""

    def __init__(self, world: World, replica: Replica) -> None:
        self.world = world
        self.replica = replica

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """See `CommitFence`."""
        self.hear()
        yield

    def hear(self) -> None:
        """Follow a peer."""
        world, replica = self.world, self.replica
        other = world.rng.choice([each for each in world.replicas if each is not replica])
        for key in world.ids:
            with contextlib.suppress(BlobConflict, BlobMissing):
                world.do_undelete(other, key)
        world.follow(replica, other)


class Replica:
    """One store, and what its world knows of it."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.clock = Meanwhile(1_000_000.0 + world.rng.choice([0.0, 0.0, 0.0, 2.0, 7.0]))
        self.folder = world.folder / f"{number}-0"
        self.lives = 0
        self.refusal = OneRefusal()
        self.config = world.config()
        self.tokens: dict[int, ReplicationToken | None] = {}
        self.waiting: dict[int, tuple[deque[ReplicaEntry], ReplicationToken]] = {}
        self.peers: dict[int, ReplicationToken | None] = {}
        self.reader: BlobReader | None = None
        self.seen: dict[bytes, Answer] = {}
        self.deleter: HardDeleter | None = None
        self.open()

    def open(self) -> None:
        """Open the store with the settings that it is to have now."""
        self.policy = self.world.rng.choice(_POLICIES)
        self.store = BlobStore(self.folder, self.config, clock=self.clock, policy=self.policy, name="store",
                               files=FailingFiles(LocalFiles(), faults=self.refusal))
        assert not self.store.recovery.damage, self.store.recovery
        self.deleter = None
        # A retention that was shorter before may have cost contents that a longer one keeps.
        self.since = self.clock.now()
        self.store.questions = Questions(seen_by_all_peers=self.have_seen)

    def have_seen(self, entry: IndexEntry) -> bool:
        """Whether all peers have asked with a token that reaches this record."""
        tokens = [self.peers.get(other) for other in range(PEERS) if other != self.number]
        return all(token is not None and token.incarnation == self.store.incarnation
                   and token.sequence >= entry.sequence for token in tokens)

    def answers(self, options: GetOptions = _PLAIN) -> dict[bytes, Answer]:
        """What each id answers."""
        return {key: self.store.get(key, options) for key in IDS}


class World:
    """Three replicas in a folder.

    Args:
        folder: new.
        seed: of all that is random.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.rng = random.Random(seed)
        self.used: set[bytes] = set()
        self.ended: dict[bytes, set[int]] = {key: set() for key in IDS}
        self.began: dict[bytes, int] = {}
        self.unsure: set[bytes] = set()
        self.may_end: set[bytes] = set()
        self.trace: list[str] = []
        self.ids = IDS[:self.rng.choice([1, 2, 3, 6])]
        self.refuses = self.rng.random() < 0.5
        self.skews_containers = self.rng.random() < 0.4
        self.replicas = [Replica(self, number) for number in range(PEERS)]

    def config(self) -> BlobStoreConfig:
        """Settings at random, of what a host may change between two openings."""
        one_of = self.rng.choice
        return BlobStoreConfig(
            capacity_bytes=96 << 10, segment_bytes=1 << 10, durability=one_of(["each", "group", "interval"]),
            journal_max_entries=one_of([0, 1, 4]),
            index_max_entries=one_of([3, 100]), find_max_entries=one_of([1, 3, 100]),
            deleted_retention_seconds=one_of([5.0, 10.0, 20.0]), swap_segments=one_of([1, 2, 3]),
            placement=one_of([None, None, ByAge(), ByEnd()]), hard_delete=one_of([False, True]),
            purge_tombstones=one_of([False, True, True]),
            ttl_update_buffer_seconds=one_of([0.0, 2.0]), stats_bucket_count=one_of([None, 0, 8]),
            stats_bucket_seconds=5.0, max_open_segments=one_of([1, 100]), max_blob_bytes=0, pace=None,
            close_active_segment=one_of([False, True]), stats_entries_per_second=None,
            hard_delete_bytes_per_second=None,
            index_max_bytes=one_of([500, 1 << 20]))

    # ------------------------------------------------------------------------------------------------ the steps

    def run(self, steps: int) -> None:
        """Live so many steps, and then look whether the replicas come to agree."""
        for _ in range(steps):
            self.step()
        self.agree()

    def step(self) -> None:
        """One step of one replica, and its checks."""
        replica = self.rng.choice(self.replicas)
        word = self.rng.choices(list(_WORDS), weights=list(_WORDS.values()))[0]
        key = self.rng.choice(self.ids)
        crashed = False
        if self.refuses and self.rng.random() < 0.1:
            replica.refusal.left = self.rng.randrange(1, self.rng.choice([12, 60]))
            replica.refusal.fault = self.rng.choice([
                Fault.REFUSED, Fault.TORN, Fault.UNKNOWN_DONE, Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
        self.trace.append(f"{replica.number} {word} {key!r} refusal={replica.refusal.left}")
        before = replica.answers(), replica.answers(_DELETED)
        began, retention = replica.clock.now(), replica.config.deleted_retention_seconds
        try:
            getattr(self, "do_" + word.replace(" ", "_"))(replica, key)
            failed = False
        except (BlobConflict, BlobMissing, StoreFull) as error:
            self.trace.append(f"  {error!r:.150}")
            failed = True
        except WritesStopped as error:
            self.unsure.add(key)
            self.trace.append(f"  {error!r:.150}")
            failed = True
            self.open_again(replica)
        except (StorageError, DiskFull, BudgetSpent) as error:
            self.unsure.add(key)
            self.trace.append(f"  {error!r:.150}")
            failed = True
        except Crash as error:
            self.trace.append(f"  {error!r:.150}")
            failed = crashed = True
            self.unsure.add(key)
            self.do_kill(replica, key)
        replica.refusal.left = 0
        changes = word in _HEARS or (
            word in ("put", "replace", "delete", "undelete", "keep") and (crashed or not failed))
        self.check(replica, key if word not in _HEARS else None, before, began, changes=changes,
                   retention=min(retention, replica.config.deleted_retention_seconds))

    def do_put(self, replica: Replica, key: bytes, *, replace: bool = False) -> None:
        known = replica.store.snapshot().history(key)
        if not known and key in self.used:
            # An id of which all trace is gone here may be deleted in its first life elsewhere.
            return
        self.used.add(key)
        if key in self.may_end:
            # In the place of what has expired, perhaps, and is deleted elsewhere: that delete may expire, too.
            self.unsure.add(key)
        size = self.rng.choice([0, 10, 10, 100, 300])
        content = b"%d of %d " % (len(self.trace), replica.number) + self.rng.randbytes(size)
        container = self.rng.choice([0, OTHER_CONTAINER]) if self.skews_containers else 0
        ttl = self.rng.choice([None, None, 40.0, 300.0])
        if ttl is not None:
            self.may_end.add(key)
        info = replica.store.put(key, content, ttl_seconds=ttl, replace=replace, container=container)
        self.began[key] = max(self.began.get(key, 0), info.life_version)
        found = replica.store.get(key)
        assert isinstance(found, Blob)
        assert found.content == content

    def do_replace(self, replica: Replica, key: bytes) -> None:
        self.do_put(replica, key, replace=True)

    def do_delete(self, replica: Replica, key: bytes) -> None:
        deleted = replica.store.delete(key)
        self.ended[key].add(deleted.life_version)
        assert isinstance(replica.store.get(key), Deleted)

    def do_undelete(self, replica: Replica, key: bytes) -> None:
        before = replica.store.get(key, _DELETED)
        info = replica.store.undelete(key)
        self.began[key] = max(self.began.get(key, 0), info.life_version)
        found = replica.store.get(key)
        assert isinstance(found, Blob)
        assert isinstance(before, Blob)
        assert (found.content, found.info.expires_at) == (before.content, before.info.expires_at)

    def do_keep(self, replica: Replica, key: bytes) -> None:
        replica.store.ttl_update(key)
        info = replica.store.get(key)
        assert isinstance(info, Blob)
        assert info.info.expires_at is None

    def do_wait(self, replica: Replica, key: bytes) -> None:
        seconds = self.rng.choice([0.001, 0.5, 1.0, 6.0, 12.0])
        for each in self.replicas:
            each.clock.advance(seconds)

    def do_pull(self, replica: Replica, key: bytes) -> None:
        """Ask a peer for a piece of its entries, if the last piece has been taken over."""
        other = self.rng.choice([each for each in self.replicas if each is not replica])
        if other.number in replica.waiting:
            return
        token = replica.tokens.get(other.number)
        other.peers[replica.number] = token
        found = other.store.entries_since(token, max_bytes=self.rng.choice([None, 1, 300]))
        replica.waiting[other.number] = deque(found.entries), found.token
        if self.rng.random() < 0.7:
            self.take(replica, other.number, len(found.entries))

    def do_take(self, replica: Replica, key: bytes) -> None:
        if replica.waiting:
            self.take(replica, self.rng.choice(sorted(replica.waiting)), self.rng.randrange(1, 4))

    def do_pull_all(self, replica: Replica, key: bytes) -> None:
        """All that a peer has, perhaps from its first record on."""
        other = self.rng.choice([each for each in self.replicas if each is not replica])
        if self.rng.random() < 0.3:
            replica.tokens.pop(other.number, None)
            replica.waiting.pop(other.number, None)
        self.follow(replica, other)

    def follow(self, replica: Replica, other: Replica) -> None:
        """All that a peer has since the token."""
        self.take(replica, other.number, 1_000)
        while True:
            token = replica.tokens.get(other.number)
            other.peers[replica.number] = token
            found = other.store.entries_since(token)
            replica.waiting[other.number] = deque(found.entries), found.token
            self.take(replica, other.number, 1_000)
            if found.at_end:
                other.peers[replica.number] = replica.tokens[other.number]
                return

    def take(self, replica: Replica, other: int, count: int) -> None:
        """Take over some of the entries that wait; those that changed meanwhile are taken as they are now."""
        if other not in replica.waiting:
            return
        entries, token = replica.waiting[other]
        for _ in range(min(count, len(entries))):
            take_over(self.replicas[other].store, replica.store, entries[0])
            entries.popleft()
        if not entries:
            del replica.waiting[other]
            replica.tokens[other] = token

    def do_compact(self, replica: Replica, key: bytes) -> None:
        if self.rng.random() < 0.6:
            replica.store.close_active_segment()
        policy = self.rng.choice(_POLICIES)
        total = self.rng.choice([None, None, 200, 600, 1_500])
        outcome = replica.store.compact(policy=policy, budget=Budget(total_bytes=total))
        self.trace.append(f"  {outcome!s:.200}")
        if isinstance(outcome, Failed):
            assert isinstance(outcome.error, BudgetSpent | StorageError), outcome
            if self.rng.random() < 0.3:
                # Of what a refused step has left, a reclaim takes nothing that counts.
                self.do_reclaim(replica, key)

    def do_compact_beside(self, replica: Replica, key: bytes) -> None:
        """A compaction at each of whose commits a peer is heard."""
        hears = Hears(self, replica)
        replica.store.close_active_segment()
        outcome = replica.store.compact(policy=_POLICIES[0], budget=Budget(), fence=hears)
        self.trace.append(f"  {outcome!s:.200}")
        if isinstance(outcome, Failed):
            assert isinstance(outcome.error, BudgetSpent | StorageError), outcome
            if self.rng.random() < 0.3:
                # Of what a refused step has left, a reclaim takes nothing that counts.
                self.do_reclaim(replica, key)

    def do_erase_beside(self, replica: Replica, key: bytes) -> None:
        """A hard delete during whose wait a peer is heard."""
        replica.clock.then = lambda: Hears(self, replica).hear()
        try:
            outcome = replica.store.hard_delete(budget=Budget(bytes_per_second=50.0, clock=replica.clock))
        finally:
            replica.clock.then = None
        self.trace.append(f"  {outcome!s:.200}")
        if isinstance(outcome, Failed):
            assert isinstance(outcome.error, StorageError), outcome

    def do_resume(self, replica: Replica, key: bytes) -> None:
        outcome = replica.store.resume(budget=Budget())
        if isinstance(outcome, Failed):
            assert isinstance(outcome.error, BudgetSpent | StorageError), outcome

    def do_drop(self, replica: Replica, key: bytes) -> None:
        replica.store.drop_compaction()

    def do_reclaim(self, replica: Replica, key: bytes) -> None:
        outcome = replica.store.reclaim(budget=Budget())
        if isinstance(outcome, Failed):
            assert isinstance(outcome.error, StorageError), outcome

    def do_erase(self, replica: Replica, key: bytes) -> None:
        """The whole hard delete, anew or by one that remembers what it has looked at, and nothing is left that may go.
        """
        store = replica.store
        if replica.deleter is None or self.rng.random() < 0.3:
            replica.deleter = HardDeleter(store)
        in_effect_ms = milliseconds(store.clock.now() - store.config.deleted_retention_seconds)
        outcome = replica.deleter.run(budget=Budget(), most_batches=self.rng.choice([None, 1]))
        self.trace.append(f"  {outcome!s:.200}")
        if isinstance(outcome, Failed):
            assert isinstance(outcome.error, StorageError), outcome
        if isinstance(outcome, Done) and outcome.stats.is_whole:
            snapshot = store.snapshot()
            for each in (*IDS, WILD):
                history = snapshot.history(each)
                puts = [entry for entry in history if entry.kind == RecordKind.PUT]
                if BlobEnd.of(history).deleted_ms < in_effect_ms and all(
                        put.segment != snapshot.segments[-1].name for put in puts):
                    assert all(put.flags & RecordFlag.ERASED for put in puts), f"{each!r} is left: {history}"

    def do_wild_delete(self, replica: Replica, key: bytes) -> None:
        """A delete by a clock ahead of all others, but not so far that it would pass for a jump of theirs."""
        for kind, ahead in ((RecordKind.PUT, 0.0), (RecordKind.DELETE, 50.0)):
            replica.store.append_replicated(kind, WILD, op_time=replica.clock.now() + ahead)

    def do_look(self, replica: Replica, key: bytes) -> None:
        """A reader beside the store: it sees what the store answers, and goes on to until it looks again."""
        if replica.reader is not None:
            for each, old in replica.seen.items():
                found = replica.reader.get(each, EVERYTHING)
                # Where a compaction has removed a segment, the reader looks again by itself.
                assert found == old or not isinstance(old, Blob) or not isinstance(found, Blob) or (
                    (found.info.changed_at, found.info.life_version) != (old.info.changed_at, old.info.life_version)
                ), f"a reader saw {old}, and now {found}"
        self.forget_reader(replica)
        replica.store.flush()
        replica.reader = BlobReader(replica.folder, replica.config, clock=replica.clock)
        replica.seen = {each: replica.reader.get(each, EVERYTHING) for each in IDS}
        # After a hard delete that was refused on its way the folder may say that more contents are gone than the store.
        assert all(replica.seen[each] == answer or getattr(replica.seen[each], "content_gone", False)
                   for each, answer in replica.answers(EVERYTHING).items())

    def do_reopen(self, replica: Replica, key: bytes) -> None:
        replica.refusal.left = 0
        replica.config = self.config()
        self.open_again(replica)

    def do_kill(self, replica: Replica, key: bytes) -> None:
        """The process ends; what it had written reaches the disk."""
        replica.refusal.left = 0
        replica.lives += 1
        again = self.folder / f"{replica.number}-{replica.lives}"
        shutil.copytree(replica.folder, again)
        with contextlib.suppress(StorageError, Crash):
            replica.store.close()
        self.forget_reader(replica)
        shutil.rmtree(replica.folder)
        replica.folder = again
        replica.config = self.config()
        replica.open()

    def do_jump(self, replica: Replica, key: bytes) -> None:
        """The clock is wrong while the store is opened and compacted, and put right again."""
        off = self.rng.choice([500.0, -500.0, 1e6, -1e5])
        right = replica.clock.now()
        replica.refusal.left = 0
        replica.clock.set_now(right + off)
        if self.rng.random() < 0.7:
            replica.config = self.config()
            self.open_again(replica)
        self.do_compact(replica, key)
        if self.rng.random() < 0.5:
            self.do_erase(replica, key)
        replica.clock.set_now(right)
        self.open_again(replica)

    def do_copy(self, replica: Replica, key: bytes) -> None:
        """The store moves into a new folder, with other segments; its peers begin again."""
        replica.refusal.left = 0
        replica.lives += 1
        again = self.folder / f"{replica.number}-{replica.lives}"
        replica.config = self.config()
        copy_store(replica.store, again, attrs.evolve(replica.config, capacity_bytes=128 << 10, segment_bytes=2 << 10))
        with contextlib.suppress(StorageError):
            replica.store.close()
        self.forget_reader(replica)
        replica.folder, replica.peers = again, {}
        replica.open()
        for other in self.replicas:
            other.waiting.pop(replica.number, None)

    def open_again(self, replica: Replica) -> None:
        """Close and open."""
        replica.refusal.left = 0
        with contextlib.suppress(StorageError):
            replica.store.close()
        replica.open()

    def forget_reader(self, replica: Replica) -> None:
        """End the reader beside a store."""
        if replica.reader is not None:
            replica.reader.close()
            replica.reader = None

    # ------------------------------------------------------------------------------------------------ the checks

    def check(self, replica: Replica, key: bytes | None, before: tuple[dict[bytes, Answer], dict[bytes, Answer]],
              began: float, *, changes: bool, retention: float) -> None:
        """No step changes an answer that is not its own to change; `retention` is the shortest that was in force."""
        store = replica.store
        store.audit()
        now = replica.clock.now()
        after = replica.answers()
        for each in IDS:
            if changes and key in (None, each):
                continue
            old, new = before[0][each], after[each]
            if isinstance(old, Blob):
                end = old.info.expires_at
                assert new == old or (end is not None and end < now), f"{each!r}: {old} has become {new}"
            else:
                assert not isinstance(new, Blob), f"{each!r}: {old} has become {new}"
            kept = before[1][each]
            if isinstance(kept, Blob) and isinstance(old, Deleted):
                until = old.deleted_at + retention
                end = kept.info.expires_at
                if until > now and (end is None or end >= now) and replica.since <= began:
                    found = store.get(each, _DELETED)
                    assert found == kept, f"{each!r}: {kept} could be undeleted, and is {found}"
        if self.rng.random() < 0.1:
            # A segment that was refused is taken again when the next one begins.
            findings = [each for each in store.verify().findings if each.kind != "leftover" or not self.refuses]
            assert not findings, findings

    def agree(self) -> None:
        """Each follows all others by its tokens; then all answer the same, and beginning again writes nothing."""
        for replica in self.replicas:
            self.open_again(replica)
        pairs = [(here, there) for here in self.replicas for there in self.replicas if here is not there]
        for _ in range(4):
            for here, there in pairs:
                self.follow(here, there)
        self.compare()
        for _ in range(3):
            for here, there in pairs:
                here.tokens.pop(there.number)
                self.follow(here, there)
        self.compare()
        records = [replica.store.status().records for replica in self.replicas]
        for here, there in pairs:
            here.tokens.pop(there.number)
            self.follow(here, there)
        assert records == [replica.store.status().records for replica in self.replicas]
        for replica in self.replicas:
            for policy in _POLICIES[:2]:
                replica.store.close_active_segment()
                outcome = replica.store.compact(policy=policy, budget=Budget())
                assert not isinstance(outcome, Failed), outcome
            assert not replica.store.verify().findings
            replica.store.audit()
        self.compare()

    def compare(self) -> None:
        """All replicas answer the same, and what was acknowledged last."""
        latest = max(replica.clock.now() for replica in self.replicas)
        for key in IDS:
            answers = [replica.store.get(key) for replica in self.replicas]
            states = {self.state(answer, latest) for answer in answers}
            assert len(states) == 1, f"{key!r}: {answers}"
            if key in self.unsure:
                continue
            life = self.began.get(key)
            (state,) = states
            if life is None or life in self.ended[key]:
                assert state is None, f"{key!r} was deleted in life {life}: {answers}"
            else:
                assert state is not None or key in self.may_end, f"{key!r} lives its life {life}: {answers}"

    def state(self, answer: Answer, latest: float) -> _State:
        """What replicas have to agree in."""
        if not isinstance(answer, Blob):
            return None
        info = answer.info
        if info.expires_at is not None and info.expires_at < latest + 10:
            return None
        return answer.content, info.put_at, info.expires_at, info.life_version, info.container

    def close(self) -> None:
        """Give the folders up."""
        for replica in self.replicas:
            self.forget_reader(replica)
            replica.refusal.left = 0
            with contextlib.suppress(CompactlibError):
                replica.store.close()


_WORDS = {"put": 10, "replace": 4, "delete": 7, "undelete": 5, "keep": 4, "wait": 10, "pull": 14, "take": 8,
          "pull all": 5, "compact": 12, "resume": 2, "drop": 1, "reclaim": 3, "erase": 6, "look": 2,
          "reopen": 3, "kill": 2, "jump": 1, "copy": 1,
          "compact beside": 5, "erase beside": 3, "wild delete": 3}
_HEARS = ("pull", "take", "pull all", "compact beside", "erase beside")
