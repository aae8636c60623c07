"""`Committed`: what the branch protocol needs of the committed layer. `CommittedRanges` is ours.

A metarange is an immutable sorted set of records, named by its content. Where a metarange may be `None`, that means
"nothing was ever committed" and reads as an empty one; an EMPTY metarange has an id like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, Protocol, Self, TypeAlias

from compactlib.report import VerifyReport
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer
from compactlib.staging.model.values import (
    Applied,
    Changes,
    Collected,
    Difference,
    LiveMetaRanges,
    MetaRangeId,
    RangeEntry,
    Record,
    StoredFile,
)

MergeStrategy: TypeAlias = Literal["fail", "source_wins", "destination_wins"]
"""What a merge does about a key that both sides changed differently."""


class RecordScan(Protocol):
    """Records in ascending order of their keys, from a position that can be moved. For one thread."""

    def __iter__(self) -> Self: ...

    def __next__(self) -> tuple[bytes, Record]: ...

    def seek(self, key: bytes) -> None:
        """Go on with the first key >= `key`, forwards or backwards, also after the end. Opens a range only at need."""


class DifferenceScan(Protocol):
    """Differences in ascending order of their keys, from a position that can be moved. For one thread."""

    def __iter__(self) -> Self: ...

    def __next__(self) -> Difference: ...

    def seek(self, key: bytes) -> None:
        """Go on with the first difference of a key >= `key`, forwards or backwards, also after the end."""


class Committed(Protocol):
    """Immutable metaranges: apply changes, read, compare, merge, collect. Threads and processes may share one store.

    Every method that reads raises `MetaRangeNotFound`, `RangeNotFound`, `DamagedRange` or `NewerFormat` when a file is
    not what it should be, and what the object store raises (`ObjectStoreFailed`, `StorageError`): never a
    shorter answer.
    """

    def apply(self, base: MetaRangeId | None, changes: Changes, *, budget: Budget | None = None,
              observer: Observer | None = None) -> Applied:
        """The metarange that has `base`'s records with `changes` made to them; durable when this returns.

        A tombstone of an unknown key changes nothing. A record of the same identity as the base's changes nothing: the
        base's data stays. The result's id depends on the resulting records alone, so it is `base` if nothing changed.
        The observer is notified how many of the base's ranges are done.

        Raises:
            UnsortedKeys: the keys do not ascend strictly. Nothing is published.
            NilValue: a change is neither a `Record` nor `TOMBSTONE`.
            BudgetSpent: the budget ran out; nothing is published.
        """

    def get(self, metarange_id: MetaRangeId | None, key: bytes) -> Record | None:
        """The record of a key, or `None` if there is none. Opens at most one range."""

    def get_many(self, metarange_id: MetaRangeId | None, keys: Iterable[bytes]) -> dict[bytes, Record]:
        """The records of those keys that have one. Opens each range at most once."""

    def scan(self, metarange_id: MetaRangeId | None, start: bytes = b"") -> RecordScan:
        """All records from the first key >= `start` on. Opens each range as it gets there."""

    def diff(self, left: MetaRangeId | None, right: MetaRangeId | None, start: bytes = b"") -> DifferenceScan:
        """What changed from `left` to `right`, from the first key >= `start` on. Equal ranges are not opened."""

    def merge(self, base: MetaRangeId | None, source: MetaRangeId | None, destination: MetaRangeId | None,
              strategy: MergeStrategy = "fail", *, budget: Budget | None = None) -> Applied:
        """`destination` with what changed from `base` to `source`; counts are against `destination`.

        Raises:
            MergeConflict: keys were changed differently on both sides, and the strategy is `"fail"`.
            BudgetSpent: as for `apply`.
        """

    def ranges_of(self, metarange_id: MetaRangeId | None) -> Sequence[RangeEntry]:
        """The ranges of a metarange, in order of their keys. Opens none of them."""

    def claim(self, metarange_id: MetaRangeId) -> None:
        """Keep a metarange that perhaps nothing names from `collect`, until what names it is written.

        For a caller that uses an old one again: the claim counts for the collections' grace period.

        Raises:
            MetaRangeNotFound: it was collected.
            BeingCollected: it is being collected at this moment.
        """

    def available_bytes(self) -> int | None:
        """How much room there is for more ranges now; `None` where it is unknown."""

    def list_ranges(self) -> Iterator[StoredFile]:
        """Every range file of the store, reachable or not."""

    def list_metaranges(self) -> Iterator[StoredFile]:
        """Every metarange file of the store, reachable or not."""

    def verify(self, live: LiveMetaRanges, *, budget: Budget | None = None) -> VerifyReport:
        """Read all ranges of these metaranges, check them more deeply than a read does, and list what is wrong.

        Args:
            live: which metaranges; one of the history that is not there is an `orphan`, which is harmless.
            budget: asked before each file.

        Raises:
            BudgetSpent: the budget ran out.
        """

    def collect(self, live: Callable[[], LiveMetaRanges], *, grace_seconds: float,
                budget: Budget | None = None) -> Collected:
        """Delete the files that no live metarange needs and that are older than the grace period. See `Collected`.

        Args:
            live: gives every metarange that a commit or a branch record names, as it is at the time of the call. It
                is called a second time before anything is deleted, because branches may move between looking and
                deleting; that call should also keep those from writing who have read a branch before.
            grace_seconds: files younger than this stay; must exceed the longest operation and the longest scan.
            budget: asked before each metarange is read, and before each file is deleted.

        Raises:
            BudgetSpent: the budget ran out; what was deleted before it was garbage.
        """
