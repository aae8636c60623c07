# SPDX-License-Identifier: Apache-2.0
"""`SnapshotWriter`: has a log's worker write snapshots and checkpoints of the host's machine, when a trigger wants one.

```
looked at ──▶ how far is the machine? ──▶ does a trigger want one? ──▶ a copy of the machine ──▶ written, piece by piece
```

The host says how far its machine is, and gives a copy of it when asked; the rest is `RaftLog.snapshot` and
`RaftLog.checkpoint`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

import attrs

from compactlib.errors import InvalidInput, Stale
from compactlib.indexset.index_set import IndexSet
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog.arguments import index_set, whole
from compactlib.raftlog.model.snapshot_meta import SnapshotMeta
from compactlib.raftlog.snapshots.files_format import SnapshotKind
from compactlib.runtime.budget import Budget

if TYPE_CHECKING:
    from typing_extensions import Buffer


def _require_seconds(name: str, seconds: object) -> None:
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0):
        raise InvalidInput(f"{name} is {seconds!r}; give seconds, more than 0")


class SnapshotTrigger(Protocol):
    """Decides when a snapshot, or a checkpoint, is written."""

    def wants_snapshot(self, entries: int, seconds: float) -> str | None:
        """The reason why one should be, with the numbers in it, or `None`. Pure and quick.

        Args:
            entries: applied since the last one, > 0.
            seconds: since then, or since the worker first looked.
        """


@attrs.frozen
class Applied:
    """Wants one after so many entries, or after some time if any was applied.

    Attributes:
        entries: applied since the last one, at least 1.
        seconds: since the last one, > 0; `None`: time alone brings none.

    Raises:
        InvalidInput: one of them is out of its range.
    """

    entries: int = 10_000
    seconds: float | None = None

    def __attrs_post_init__(self) -> None:
        if whole("entries", self.entries) < 1:
            raise InvalidInput(f"entries is {self.entries}; give at least 1")
        _require_seconds("seconds", self.seconds)

    def wants_snapshot(self, entries: int, seconds: float) -> str | None:
        """See `SnapshotTrigger.wants_snapshot`."""
        if entries >= self.entries:
            return f"{entries} entries were applied, at least {self.entries}"
        if self.seconds is not None and seconds >= self.seconds:
            return f"{entries} entries in {seconds:.0f} seconds, at least {self.seconds:g}"
        return None


@attrs.frozen
class MachineCopy:
    """What a snapshot is written from.

    Attributes:
        index: the entry that the machine had applied last.
        live: the indexes <= `index` that the log must keep; a set, or strictly ascending numbers.
        pieces: the state, in pieces of any size, asked for one by one while later entries are applied: those of a copy,
            or of values that do not change.
    """

    index: int
    live: IndexSet | Iterable[int]
    pieces: Iterable[Buffer]


@attrs.frozen(kw_only=True)
class SnapshotWritten:
    """A snapshot or checkpoint that was written.

    Attributes:
        kind: which of both.
        index: its last entry.
        live: how many live entries it names.
        state_bytes: how large the machine's state is; 0 for one that was there as a checkpoint, whose state is kept.
        why: what asked for it.
    """

    kind: SnapshotKind
    index: int
    live: int
    state_bytes: int
    why: str


class SnapshotTaker(Protocol):
    """What a `SnapshotWriter` uses of a `RaftLog`."""

    @property
    def state(self) -> SnapshotMeta:
        """See `RaftLog.state`."""

    def snapshot(self, index: int, live: IndexSet | Iterable[int] = (), state: Iterable[Buffer] | None = None) -> None:
        """See `RaftLog.snapshot`."""

    def checkpoint(self, index: int, live: IndexSet | Iterable[int], state: Iterable[Buffer]) -> None:
        """See `RaftLog.checkpoint`."""


class SnapshotWriter:
    """See the module; given to a `LogCompactionWorker`, which asks it at each flush and every `look_seconds`. One
    writer serves one worker.

    A host that takes a snapshot or checkpoint itself may go on to: one excludes the other, and both triggers count from
    the newest.

    Args:
        log: the `RaftLog`, which has a snapshot store (`RaftLog.attach`).
        applied: asked for the last index that the machine has applied, -1 if none; in the worker's thread, from its
            start on.
        copy: makes a copy of the machine, in the worker's thread: it holds what excludes `apply` while it copies, and
            no longer.
        when: a snapshot is written; `None`: only when the host asks for one.
        checkpoint_when: a checkpoint is written, unless a snapshot is; `None`: never.
        look_seconds: how often the triggers are asked though nothing is flushed, > 0; `None`: at flushes alone.

    Raises:
        InvalidInput: one of them is not what it should be.
    """

    def __init__(self, log: SnapshotTaker, *, applied: Callable[[], int], copy: Callable[[], MachineCopy],
                 when: SnapshotTrigger | None = Applied(), checkpoint_when: SnapshotTrigger | None = None,
                 look_seconds: float | None = 5.0) -> None:
        _require_seconds("look_seconds", look_seconds)
        self._log = log
        self._applied = applied
        self._copy = copy
        self._triggers: tuple[tuple[SnapshotKind, SnapshotTrigger | None], ...] = (
            ("snapshot", when), ("checkpoint", checkpoint_when))
        self.look_seconds: float | None = look_seconds
        # For each kind: the index of the newest one, and when it was seen first.
        self._newest: dict[SnapshotKind, tuple[int, float]] = {}

    def write(self, now: float, budget: Budget, *, is_asked: bool = False
              ) -> Done[SnapshotWritten] | Skipped | Failed:
        """Write what is due.

        Args:
            now: seconds on any clock that does not go back.
            budget: asked for each piece of a state.
            is_asked: write a snapshot although no trigger wants one.

        Returns:
            `Done` with what was written; `Skipped` if nothing is due, or the host or another member was faster.

        Raises:
            BudgetSpent: the budget refused; nothing has changed.
            InvalidInput, LiveIndexMissing, StorageError, LogStopped, Closed: as `RaftLog.snapshot`.
            Exception: what `applied`, `copy` or a trigger raised.
        """
        applied = whole("the last index applied", self._applied())
        row = self._log.state.index
        self._seen("snapshot", row, now)
        self._seen("checkpoint", row, now)
        if applied <= row:
            return Skipped(f"the machine has applied {applied}, and the snapshot {row} is in force")
        wanted = self._wanted(applied, now, is_asked)
        if wanted is None:
            since, at = self._newest["snapshot"]
            return Skipped(f"no trigger wants a snapshot: {applied - since} entries were applied and {now - at:.0f} "
                           f"seconds passed since {f'snapshot {since}' if since >= 0 else 'none'}; see when=, or ask "
                           f"for one")
        kind, why = wanted
        copied = self._copy()
        pieces = _Paced(copied.pieces, budget)
        live = index_set("the live indexes", copied.live)
        try:
            (self._log.snapshot if kind == "snapshot" else self._log.checkpoint)(copied.index, live, pieces)
        except Stale as error:
            # The same again would come to the same.
            self._seen(kind, copied.index, now)
            return Skipped(str(error))
        self._seen(kind, copied.index, now)
        self._seen("checkpoint", copied.index, now)
        return Done(SnapshotWritten(kind=kind, index=copied.index, live=live.count, state_bytes=pieces.bytes_given,
                                    why=why))

    def _wanted(self, applied: int, now: float, is_asked: bool) -> tuple[SnapshotKind, str] | None:
        """What is due, a snapshot before a checkpoint, and why."""
        if is_asked:
            return "snapshot", "the host asked for it"
        for kind, trigger in self._triggers:
            since, at = self._newest[kind]
            if trigger is not None and applied > since:
                why = trigger.wants_snapshot(applied - since, now - at)
                if why is not None:
                    return kind, why
        return None

    def _seen(self, kind: SnapshotKind, index: int, now: float) -> None:
        """One of this index is there."""
        if kind not in self._newest or index > self._newest[kind][0]:
            self._newest[kind] = index, now


class _Paced:
    """Pieces of a state, for each of which the budget is asked."""

    def __init__(self, pieces: Iterable[Buffer], budget: Budget) -> None:
        self._pieces = pieces
        self._budget = budget
        self.bytes_given: int = 0

    def __iter__(self) -> Iterator[Buffer]:
        for piece in self._pieces:
            size = memoryview(piece).nbytes
            self._budget.spend(size)
            self.bytes_given += size
            yield piece

