# SPDX-License-Identifier: Apache-2.0
"""Writers that add their word to what a key holds, over a store that loses answers while others write, commit, compact.

And others that commit and merge: what each is told that it has made, is its own.

Each addition has a word of its own. So what the keys hold in the end says of each how often it was made: once if it was
acknowledged, at most once if its outcome is unknown, never if it was refused.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError
from compactlib.kv import EXISTS, MemoryStore, OutcomeUnknown
from compactlib.objects import MemoryObjects
from compactlib.outcome import Done
from compactlib.staging import (
    Branch,
    CommittedRanges,
    PreconditionFailed,
    Record,
    RecordNotFound,
    Repository,
    StagingOptions,
)
from compactlib.staging.compaction.reclaim.cleanup import TokenCleaner
from tests.harness.faulty_store import FaultyStore, KVFault, KVOperation
from tests.staging.world import NOW

KEYS = (b"a", b"b")
_OPTIONS = StagingOptions(first_backoff_seconds=0)


class AppendWorld:
    """One life, drawn from a seed: an operation of one writer at a time, and others between any two of its requests.

    Attributes:
        told: what each addition was told: `"done"`, `"unknown"` or `"refused"`.
        story: the same in order, with the errors.
    """

    def __init__(self, seed: int, make_store: Callable[[], MemoryStore] = MemoryStore) -> None:
        self.rng = random.Random(seed)
        self.store = make_store()
        self.clock = ManualClock(1000.0)
        self.objects = MemoryObjects(clock=self.clock)
        self.told: dict[bytes, str] = {}
        self.story: list[str] = []
        self._words = 0
        self._depth = 0
        repo = self._repo(self.store)
        self.main = repo.create_branch("main")
        self.source, self.target = repo.create_branch("source"), repo.create_branch("target")

    def live(self, steps: int) -> None:
        """Write, and look after each step whether every addition is there as often as it was told."""
        for _ in range(steps):
            self._step()
            self.check()

    def check(self) -> None:
        """Compare what was told with what is there."""
        held = [word for key in KEYS for word in _words(_held(self.main, key))]
        for word, told in self.told.items():
            count = held.count(word)
            wrong = count != 1 if told == "done" else count > (told == "unknown")
            assert not wrong, f"{word!r} is {told}, and {count} times in {held}"
        assert set(held) <= set(self.told)

    def _repo(self, store: object) -> Repository:
        names = random.Random(self.rng.getrandbits(64))
        committed = CommittedRanges(self.objects, clock=self.clock, new_name=lambda: f"{names.getrandbits(64):016x}")
        return Repository(store, committed, clock=self.clock, rng=names, options=_OPTIONS)  # type: ignore[arg-type]

    def _step(self) -> None:
        """One operation, with faults, and between its requests the operations of others."""
        self._depth += 1
        rng, depth = self.rng, self._depth

        def choose(operation: KVOperation) -> KVFault | None:
            if depth < 3 and rng.random() < 0.08:
                self._step()
            if rng.random() < 0.12:
                return rng.choice([KVFault.UNKNOWN_DONE, KVFault.UNKNOWN_LOST, KVFault.UNKNOWN_LATE, KVFault.FAIL,
                                   KVFault.SLOW_DOWN, KVFault.CONFLICT])
            return None

        faulty = FaultyStore(self.store, choose)
        work = rng.choice([self._update] * 5 + [self._put_if] * 3 + [self._settle] * 2
                          + [self._merge] * 2)
        try:
            work(self._repo(faulty), rng.choice(KEYS))
        finally:
            faulty.settle()
            self._depth -= 1

    def _adding(self, key: bytes, add: Callable[[bytes], None]) -> None:
        self._words += 1
        word = b"%d " % self._words
        self.told[word] = "unknown"
        try:
            add(word)
        except OutcomeUnknown as error:
            self.story.append(f"{word!r} to {key!r}: {error}")
        except CompactlibError as error:
            # A store that can only compare and set may refuse what others have seen for a while.
            is_sure = self.store.limits.max_transact or not isinstance(error, PreconditionFailed)
            self.told[word] = "refused" if is_sure else "unknown"
            self.story.append(f"{word!r} to {key!r}: {error}")
        else:
            self.told[word] = "done"
            self.story.append(f"{word!r} to {key!r}: done")

    def _update(self, repo: Repository, key: bytes) -> None:
        branch = repo.branch("main")
        self._adding(key, lambda word: branch.update(key, lambda found: (found.data if found else b"") + word))

    def _put_if(self, repo: Repository, key: bytes) -> None:
        branch = repo.branch("main")

        def add(word: bytes) -> None:
            found = _held(self.main, key)
            branch.put_if(key, (b"" if found is None else found.data) + word, found)

        self._adding(key, add)

    def _settle(self, repo: Repository, key: bytes) -> None:
        """What changes nothing that is read: a commit, a compaction, a cleanup."""
        try:
            how = self.rng.randrange(4)
            if how == 0:
                self._require_own(repo.branch("main"), lambda branch, word: branch.commit(word))
            elif how == 1:
                repo.compact(policy=NOW)
            elif how == 2:
                self.clock.advance(10.0)
                TokenCleaner(repo.context, grace_seconds=5).run()
            else:
                repo.branch("main").delete_if(key + b"-gone", EXISTS)
        except PreconditionFailed:
            pass
        except CompactlibError as error:
            self.story.append(f"settling: {error}")


    def _merge(self, repo: Repository, key: bytes) -> None:
        """What the source has got since comes into the target, by one of those who merge it, or by each in part."""
        self._words += 1
        self.source.put(key, b"%d" % self._words)
        self.source.commit("for a merge")
        try:
            self._require_own(repo.branch("target"), lambda branch, word: branch.merge("source", word))
        except CompactlibError as error:
            self.story.append(f"merging: {error}")

    def _require_own(self, branch: Branch, make: Callable[[Branch, str], object]) -> None:
        """Make a commit; if it is told to be made, the one that is told is it."""
        self._words += 1
        word = f"commit {self._words}"
        outcome = make(branch, word)
        self.story.append(f"{word}: {outcome}")
        if isinstance(outcome, Done):
            assert self._repo(self.store).commit(outcome.stats.commit_id).message == word


def _held(branch: Branch, key: bytes) -> Record | None:
    try:
        return branch.get(key)
    except RecordNotFound:
        return None


def _words(record: Record | None) -> list[bytes]:
    return [] if record is None else [word + b" " for word in record.data.split()]
