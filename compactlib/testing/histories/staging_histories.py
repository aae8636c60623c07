# SPDX-License-Identifier: Apache-2.0
"""What a host does to a branch of a repository, as values, and a check of the stores that it is built on.

>>> from compactlib.kv import MemoryStore
>>> from compactlib.objects import MemoryObjects
>>> check_staging_backend(MemoryStore, MemoryObjects, max_examples=10)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TypeAlias

import attrs

from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError, MissingDependency
from compactlib.kv.store import KVStore
from compactlib.objects.store import ObjectStore
from compactlib.outcome import Failed
from compactlib.staging.committed.committed_ranges import CommittedRanges
from compactlib.staging.committed.formats.rows import RangeFormat
from compactlib.staging.committed.formats.split import SplitRule
from compactlib.staging.compaction.policies import AlwaysPolicy
from compactlib.staging.operations.branch import Branch
from compactlib.staging.options import StagingOptions
from compactlib.staging.repository.repository import Repository
from compactlib.testing.kit.examples import as_always, histories_of

try:
    from hypothesis import given, note, strategies as st
except ImportError:
    raise MissingDependency(package="hypothesis", extra="testing", purpose="random histories of a branch") from None

KEYS: tuple[bytes, ...] = (b"a", b"a/1", b"a/2", b"a/\xff", b"b", b"\x00", b"\xff", b"\xff\xff")
"""The keys of random histories: prefixes of each other, both ends of the order."""
_MAIN = "main"


@attrs.frozen
class Write:
    """Put records, or delete them.

    Attributes:
        items: data by key; `None` deletes.
    """

    items: Mapping[bytes, bytes | None]


@attrs.frozen
class Commit:
    """Commit what is staged; nothing if that changes nothing."""


@attrs.frozen
class ResetBranch:
    """Throw away what is staged."""


@attrs.frozen
class CompactBranch:
    """Compact what is staged. No reader may notice."""


@attrs.frozen
class CleanTokens:
    """Delete what no branch needs any more. No reader may notice."""


@attrs.frozen
class ReopenRepository:
    """Forget everything that is in memory, and open the repository anew over new handles of the stores."""


StagingStep: TypeAlias = Write | Commit | ResetBranch | CompactBranch | CleanTokens | ReopenRepository
"""One thing that a host does to a branch."""


def staging_steps() -> st.SearchStrategy[StagingStep]:
    """Single steps. Shrinks to a write of nothing."""
    values = st.sampled_from([b"", b"1", b"three"])
    writes = st.dictionaries(st.sampled_from(KEYS), values | st.none(), max_size=4)
    return st.one_of(st.builds(Write, writes), st.builds(Write, writes), st.just(CompactBranch()), st.just(Commit()),
                     st.just(CleanTokens()), st.just(ResetBranch()), st.just(ReopenRepository()))


def staging_histories(*, max_steps: int = 20) -> st.SearchStrategy[tuple[StagingStep, ...]]:
    """Histories of one branch: writes, deletes, commits, resets, with compactions and cleanups in between.

    Shrinks to the fewest steps, and each write to the fewest keys.

    Args:
        max_steps: the most steps.
    """
    return histories_of(staging_steps(), max_steps)


class StagingHistory:
    """A real repository with one branch that lives through steps, beside two plain dictionaries. Single-threaded.

    Args:
        open_store: gives a handle of the key-value store, the same store each time.
        open_objects: gives a handle of the object store, the same store each time.
        range_format: of the files of ranges; the plain one if not given.

    Attributes:
        head: what is committed, by key.
        now: what is there now, by key.
    """

    def __init__(self, open_store: Callable[[], KVStore], open_objects: Callable[[], ObjectStore], *,
                 range_format: RangeFormat | None = None) -> None:
        self.head: dict[bytes, bytes] = {}
        self.now: dict[bytes, bytes] = {}
        self._clock = ManualClock(1_000_000.0)
        self._open_store = open_store
        self._open_objects = open_objects
        self._format = range_format
        self._opened = 0
        self._open()
        self._repository.create_branch(_MAIN)

    def _open(self) -> None:
        self._opened += 1
        committed = CommittedRanges(self._open_objects(), rule=SplitRule(raggedness=3), clock=self._clock,
                                    range_format=self._format)
        self._repository = Repository(self._open_store(), committed, clock=self._clock, rng=random.Random(self._opened),
                                      options=StagingOptions(grace_seconds=0))

    @property
    def branch(self) -> Branch:
        """The branch."""
        return self._repository.branch(_MAIN)

    def step(self, step: StagingStep) -> None:
        """Carry out one step, and compare everything that can be read.

        Raises:
            AssertionError: the branch does not hold what was written.
        """
        outcome: object = None
        try:
            match step:
                case Write():
                    self._write(step.items)
                case Commit():
                    outcome = self.branch.commit("a step")
                    self.head = dict(self.now)
                case ResetBranch():
                    outcome = self.branch.reset()
                    self.now = dict(self.head)
                case CompactBranch():
                    outcome = self._repository.compact(branch=_MAIN, policy=AlwaysPolicy(window_seconds=0))
                case CleanTokens():
                    outcome = self._repository.reclaim()
                case ReopenRepository():
                    self._open()
        except CompactlibError as error:
            raise AssertionError(f"{step} ended in {error!r}, though nothing was wrong") from error
        assert not isinstance(outcome, Failed), f"{step} failed, though nothing was wrong: {outcome!r}"
        self.check(step)

    def check(self, after: object = "") -> None:
        """Compare what is committed and what is there now; `after` is for the message.

        Raises:
            AssertionError: as for `step`.
        """
        found = {entry.key: entry.record.data for entry in self.branch.entries() if entry.record is not None}
        assert found == self.now, f"after {after} the branch holds {_few(found)}, and {_few(self.now)} was written"
        committed = {key: record.data for key, record in self.branch.head().records()}
        assert committed == self.head, (
            f"after {after} HEAD holds {_few(committed)}, and {_few(self.head)} was committed")
        self._repository.audit()

    def _write(self, items: Mapping[bytes, bytes | None]) -> None:
        puts = {key: value for key, value in items.items() if value is not None}
        self.branch.put_many(puts)
        self.branch.delete_many([key for key in items if key not in puts])
        self.now = {key: value for key, value in {**self.now, **items}.items() if value is not None}


def check_staging_backend(make_store: Callable[[], KVStore], make_objects: Callable[[], ObjectStore], *,
                          range_format: RangeFormat | None = None, max_examples: int = 50) -> None:
    """Try stores of your own, or a file format, under a repository that lives through random histories.

    Whatever is written, committed, compacted and cleaned up, the branch must hold what a dictionary holds. This finds
    what is wrong with stores together; `check_kv_store`, `check_object_store` and `check_range_format` say more clearly
    what is wrong with one.

    Args:
        make_store: makes an empty key-value store.
        make_objects: makes an empty object store.
        range_format: of the files of ranges; the plain one if not given.
        max_examples: how many histories.

    Raises:
        AssertionError: the branch holds something else; the message says after which step, and Hypothesis shows the
            shortest history with which that happens.
    """
    @as_always(max_examples)
    @given(staging_histories())
    def branches_hold_what_was_written(history: tuple[StagingStep, ...]) -> None:
        store, objects = make_store(), make_objects()
        note(f"over {store!r} and {objects!r}")
        try:
            branch = StagingHistory(lambda: store, lambda: objects, range_format=range_format)
            for step in history:
                branch.step(step)
        except Exception as error:
            told = str(error) if isinstance(error, AssertionError) else f"a step ended in {error!r}"
            raise AssertionError(
                f"{told}. The stores do not keep what the repository was promised; try each one alone with "
                f"check_kv_store, check_object_store, check_range_format") from error
        finally:
            store.close()
            objects.close()

    branches_hold_what_was_written()


def _few(contents: Mapping[bytes, bytes]) -> str:
    return repr(dict(sorted(contents.items())))
