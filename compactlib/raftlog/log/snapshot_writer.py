# SPDX-License-Identifier: Apache-2.0
"""`SnapshotWriter`: has a log's worker write snapshots and checkpoints of the host's machine, when one is due.

The host says how far its machine is, and gives a copy of it when asked; the rest is `RaftLog.snapshot` and
`RaftLog.checkpoint`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import attrs

from compactlib.budget import Budget
from compactlib.errors import InvalidInput, Stale
from compactlib.indexset import IndexSet
from compactlib.raftlog.arguments import index_set
from compactlib.raftlog.model.snapshot_meta import SnapshotMeta
from compactlib.report import Printed

if TYPE_CHECKING:
    from typing_extensions import Buffer

SnapshotKind: TypeAlias = Literal["snapshot", "checkpoint"]


class SnapshotLog(Protocol):
    """What a writer uses of a `RaftLog`."""

    @property
    def state(self) -> SnapshotMeta: ...

    def snapshot(self, index: int, live: IndexSet, state: Iterable[Buffer], /) -> None: ...

    def checkpoint(self, index: int, live: IndexSet, state: Iterable[Buffer], /) -> None: ...


@attrs.frozen
class Applied:
    """A snapshot or checkpoint is due after so many entries, or after some time if any was applied.

    Attributes:
        entries: applied since the last one, at least 1.
        seconds: since the last one, > 0; `None`: time alone brings none.

    Raises:
        InvalidInput: one of them is out of its range.
    """

    entries: int = 10_000
    seconds: float | None = None

    def __attrs_post_init__(self) -> None:
        if self.entries < 1:
            raise InvalidInput(f"entries is {self.entries}; give at least 1")
        if self.seconds is not None and not self.seconds > 0:
            raise InvalidInput(f"seconds is {self.seconds}; give more than 0, or None")

    def is_due(self, entries: int, seconds: float) -> bool:
        """Whether one is, so many entries and seconds after the last one."""
        return entries >= self.entries or (self.seconds is not None and seconds >= self.seconds)


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
class SnapshotReport(Printed):
    """What an attempt at a snapshot came to.

    Attributes:
        kind: `"snapshot"` or `"checkpoint"`; `None` if none was written.
        index: its last entry, -1 if none was written.
        live: how many live entries it names.
        state_bytes: how large the machine's state is.
        why: what asked for it, or held it back.
    """

    kind: SnapshotKind | None = None
    index: int = -1
    live: int = 0
    state_bytes: int = 0
    why: str

    @property
    def is_empty(self) -> bool:
        """Whether none was written."""
        return self.kind is None

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row."""
        return [attrs.asdict(self)]


class SnapshotWriter:
    """See the module; given to a `LogCompactionWorker`, which calls it at each flush and every `every_seconds`. One
    writer serves one worker.

    A host that takes a snapshot or checkpoint itself may go on to: one excludes the other, and both triggers count from
    the newest.

    Args:
        log: whose snapshots are written.
        applied: returns the last index that the machine has applied, -1 if none; called in the worker's thread, from
            its start on.
        copy: makes a copy of the machine, in the worker's thread: it holds what excludes `apply` while it copies, and
            no longer.
        when: a snapshot is written; `None`: only when the host asks for one.
        checkpoint_when: a checkpoint is written, unless a snapshot is; `None`: never.
        every_seconds: how often that is decided though nothing is flushed, > 0; `None`: at flushes alone.
    """

    def __init__(self, log: SnapshotLog, *, applied: Callable[[], int], copy: Callable[[], MachineCopy],
                 when: Applied | None = Applied(), checkpoint_when: Applied | None = None,
                 every_seconds: float | None = 5.0) -> None:
        self._log = log
        self._applied = applied
        self._copy = copy
        self._triggers: tuple[tuple[SnapshotKind, Applied | None], ...] = (
            ("snapshot", when), ("checkpoint", checkpoint_when))
        self.every_seconds: float | None = every_seconds
        # For each kind: the index of the newest one, and when it was seen first.
        self._newest: dict[SnapshotKind, tuple[int, float]] = {}

    def write(self, now: float, budget: Budget, *, is_asked: bool = False) -> SnapshotReport:
        """Write what is due.

        Args:
            now: seconds on any clock that does not go back.
            budget: asked for each piece of a state.
            is_asked: write a snapshot although none is due.

        Raises:
            BudgetSpent: the budget refused; nothing has changed.
            InvalidInput, LiveIndexMissing, StorageError, Closed: as `RaftLog.snapshot`.
            Exception: what `applied` or `copy` raised.
        """
        applied, row = self._applied(), self._log.state.index
        self._seen("snapshot", row, now)
        self._seen("checkpoint", row, now)
        if applied <= row:
            return SnapshotReport(why=f"the machine has applied {applied}, and the snapshot {row} is in force")
        kind: SnapshotKind | None = "snapshot" if is_asked else None
        why = "the host asked for it"
        for each, trigger in self._triggers:
            since, at = self._newest[each]
            if kind is None and trigger is not None and applied > since and trigger.is_due(applied - since, now - at):
                kind, why = each, f"{applied - since} entries were applied in {now - at:.0f} seconds: {trigger}"
        if kind is None:
            since, at = self._newest["snapshot"]
            return SnapshotReport(why=f"none is due: {applied - since} entries were applied in {now - at:.0f} seconds "
                                      f"since {since if since >= 0 else 'the start'}, when={self._triggers[0][1]}")
        copied, sizes = self._copy(), list[int]()

        def paced() -> Iterator[Buffer]:
            for piece in copied.pieces:
                sizes.append(memoryview(piece).nbytes)
                budget.spend(sizes[-1])
                yield piece

        live = index_set("the live indexes", copied.live)
        try:
            (self._log.snapshot if kind == "snapshot" else self._log.checkpoint)(copied.index, live, paced())
        except Stale as error:
            # The host was faster.
            self._seen(kind, copied.index, now)
            return SnapshotReport(why=str(error))
        self._seen(kind, copied.index, now)
        self._seen("checkpoint", copied.index, now)
        return SnapshotReport(kind=kind, index=copied.index, live=live.count, state_bytes=sum(sizes), why=why)

    def _seen(self, kind: SnapshotKind, index: int, now: float) -> None:
        """One of this index is there."""
        if kind not in self._newest or index > self._newest[kind][0]:
            self._newest[kind] = index, now
