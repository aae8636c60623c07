# SPDX-License-Identifier: Apache-2.0
"""What a compaction has done so far, as a value that moves through phases; `compaction_file` makes it durable.

A compaction goes through its victims in cycles. Each cycle fills at most so many new segments as there are swaps:

```
PREPARE --start_copy--> COPY --copied*--> COPY --start_commit--> COMMIT --start_cleanup--> CLEANUP --end_cycle--+
   ^                                                                                                            |
   +------------------------------- victims are left -----------------------------------------------------------+
                                                                          no victim is left: DONE <-------------+
```

The step to COMMIT is the commit: before it the victims count, from it on the new segments.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from copy import copy
from typing import Any

import attrs

from compactlib.blobstore.errors import CompactionOutOfOrder
from compactlib.blobstore.model.names import LogPosition, SegmentName
from compactlib.errors import AuditFailed, InvalidInput
from compactlib.report import Printed


class Phase(enum.Enum):
    """Where a compaction stands; see the module."""

    PREPARE = "prepare"
    COPY = "copy"
    COMMIT = "commit"
    CLEANUP = "cleanup"
    DONE = "done"


@attrs.frozen
class Target:
    """A new segment that a cycle has written, durable under its private name.

    Attributes:
        name: the segment's name once it is in force.
        end: the offset behind its last record.
        entries: how many records it holds.
        crc32: CRC-32 over the checksums of its records in order; shows whether a file is the one that was written.
        index_starts: the offsets at which its index segments begin.
    """

    name: SegmentName
    end: int
    entries: int
    crc32: int
    index_starts: tuple[int, ...]


@attrs.frozen(kw_only=True)
class Cycle:
    """One round of copying.

    Attributes:
        sources: the segments that go when it is done.
        partial: the place up to which one more segment was copied; that segment stays for the next cycle.
        planned: names of the segments to write, in order; not all need to be written.
        targets: those that were written.
        copied_bytes: bytes of the records copied.
        copy_started_ms: when it began, milliseconds since the epoch.
        commit_started_ms: when its targets were put in force, `None` before.
        cleanup_started_ms: when its sources began to go, `None` before.
        ended_ms: when they were gone, `None` before.
    """

    sources: tuple[SegmentName, ...]
    partial: LogPosition | None
    planned: tuple[SegmentName, ...]
    targets: tuple[Target, ...] = ()
    copied_bytes: int = 0
    copy_started_ms: int
    commit_started_ms: int | None = None
    cleanup_started_ms: int | None = None
    ended_ms: int | None = None

    @property
    def phase(self) -> Phase:
        """COPY, COMMIT, CLEANUP or, once it has ended, DONE."""
        if self.commit_started_ms is None:
            return Phase.COPY
        if self.cleanup_started_ms is None:
            return Phase.COMMIT
        return Phase.CLEANUP if self.ended_ms is None else Phase.DONE


@attrs.frozen(kw_only=True, repr=False)
class CompactionLog(Printed):
    """A compaction, as far as it has come. Each step returns the next value and refuses to come out of order.

    Attributes:
        number: of its first cycle; cycles that were committed are numbered from 1 on while the store is open.
        started_ms: milliseconds since the epoch.
        reference_ms: deletes made strictly before it are in effect, unless the retention has become longer since.
        is_full: whether the plan took every eligible segment.
        swap_segments: how many segments a cycle may write, >= 1.
        victims: the segments to compact, in the order in which they are copied.
        cycles: those begun, oldest first.
        left_out: victims that turned out to be damaged, which stay as they are.
        dropped: whether the attempt was given up; what earlier cycles did stays.
        turns: for each victim that is not left out, as which of them it is copied, counted from 0.

    Raises:
        InvalidInput: a number is out of range, or the victims are none, or not each once.
    """

    number: int
    started_ms: int
    reference_ms: int
    is_full: bool
    swap_segments: int
    victims: tuple[SegmentName, ...]
    cycles: tuple[Cycle, ...] = ()
    left_out: tuple[SegmentName, ...] = ()
    dropped: bool = False
    turns: Mapping[SegmentName, int] = attrs.field(init=False, eq=False)
    _names: tuple[SegmentName, ...] = attrs.field(init=False, eq=False)
    _taken: int = attrs.field(init=False, eq=False)

    def __attrs_post_init__(self) -> None:
        if min(self.number, self.swap_segments) < 1 or self.reference_ms < 0:
            raise InvalidInput(f"compaction {self.number} with {self.swap_segments} swap segments and reference time "
                               f"{self.reference_ms} ms: give a number and swaps >= 1, and a time >= 0")
        if not self.victims or len(set(self.victims)) < len(self.victims):
            raise InvalidInput(f"a compaction needs segments, each once; found {_named(self.victims)}")
        names = self.victims
        if self.left_out:
            names = tuple(name for name in names if name not in self.left_out)
        object.__setattr__(self, "_names", names)
        object.__setattr__(self, "turns", {name: turn for turn, name in enumerate(names)})
        # Each cycle has taken the first of those that remained.
        object.__setattr__(self, "_taken", sum(len(cycle.sources) for cycle in self.cycles))

    @property
    def cycle(self) -> Cycle | None:
        """The cycle under way; `None` between cycles and at the end."""
        return self.cycles[-1] if self.cycles and self.cycles[-1].ended_ms is None else None

    @property
    def phase(self) -> Phase:
        """Where it stands."""
        cycle = self.cycle
        if cycle is not None:
            return cycle.phase
        return Phase.PREPARE if self._taken < len(self._names) and not self.dropped else Phase.DONE

    @property
    def remaining(self) -> tuple[SegmentName, ...]:
        """The victims that later cycles have to take."""
        return self._names[self._taken:]

    @property
    def copied_before(self) -> LogPosition | None:
        """The place up to which the first of the remaining victims was copied by an earlier cycle."""
        ended = self.cycles[:-1] if self.cycle is not None else self.cycles
        partial = ended[-1].partial if ended else None
        return partial if partial is not None and self._following(1) == (partial.segment,) else None

    @property
    def committed(self) -> tuple[Cycle, ...]:
        """The cycles whose new segments are in force."""
        return self.cycles[:-1] if self.cycles and self.cycles[-1].commit_started_ms is None else self.cycles

    @property
    def next_number(self) -> int:
        """The number that the next compaction gets."""
        return self.number + len(self.cycles) - (bool(self.cycles) and self.cycles[-1].commit_started_ms is None)

    @property
    def copied_bytes(self) -> int:
        """Bytes of records that committed cycles copied."""
        return sum(cycle.copied_bytes for cycle in self.committed)

    def start_copy(self, sources: tuple[SegmentName, ...], partial: LogPosition | None,
                   planned: tuple[SegmentName, ...], now_ms: int) -> CompactionLog:
        """PREPARE to COPY: the next cycle takes `sources` whole, and one more segment up to `partial`.

        Raises:
            CompactionOutOfOrder: the phase is not PREPARE.
            InvalidInput: the sources are not the first of the remaining victims, or too many segments are planned.
        """
        self._must_be(Phase.PREPARE, "start to copy")
        following = self._following(len(sources) + 1)
        if following[:len(sources)] != sources or not (sources or partial) or (
                partial is not None and following[len(sources):] != (partial.segment,)) or (
                len(planned) > self.swap_segments):
            raise InvalidInput(f"a cycle of {_named(sources)} up to {partial} into {len(planned)} segments does not "
                               f"fit the victims that remain ({_named(self.remaining)}) and {self.swap_segments} swaps")
        cycle = Cycle(sources=sources, partial=partial, planned=planned, copy_started_ms=now_ms)
        return self._with((*self.cycles, cycle), taken=self._taken + len(sources))

    def restart_copy(self) -> CompactionLog:
        """COPY back to PREPARE: what the cycle had written is not used, because the store has moved on.

        Raises:
            CompactionOutOfOrder: the phase is not COPY.
        """
        self._must_be(Phase.COPY, "start copying anew")
        return self._with(self.cycles[:-1], taken=self._taken - len(self.cycles[-1].sources))

    def leave_out(self, segment: SegmentName) -> CompactionLog:
        """In PREPARE: go on without one of the remaining victims.

        Raises:
            CompactionOutOfOrder: the phase is not PREPARE, or the segment is not a remaining victim.
        """
        self._must_be(Phase.PREPARE, f"leave out {segment}")
        if segment not in self.remaining:
            raise CompactionOutOfOrder(f"{segment} is none of the victims that remain ({_named(self.remaining)})",
                                       phase=self.phase.value)
        return attrs.evolve(self, left_out=(*self.left_out, segment))

    def copied(self, target: Target) -> CompactionLog:
        """The safe point moves on: one more segment is written and durable.

        Raises:
            CompactionOutOfOrder: the phase is not COPY, or it is not the next of the planned segments.
        """
        cycle = self._must_be(Phase.COPY, f"note that {target.name} is written")
        done = len(cycle.targets)
        if cycle.planned[done:done + 1] != (target.name,):
            raise CompactionOutOfOrder(f"segment {target.name} is not the next to be written; planned are "
                                       f"{_named(cycle.planned)}, written {done}", phase=self.phase.value)
        return self._now(attrs.evolve(cycle, targets=(*cycle.targets, target)))

    def start_commit(self, copied_bytes: int, now_ms: int) -> CompactionLog:
        """COPY to COMMIT: from here on the new segments count.

        Raises:
            CompactionOutOfOrder: the phase is not COPY, or a planned segment is not written yet.
        """
        cycle = self._must_be(Phase.COPY, "commit")
        if len(cycle.targets) != len(cycle.planned):
            raise CompactionOutOfOrder(f"{len(cycle.targets)} of {len(cycle.planned)} segments are written; copy the "
                                       f"rest before the commit", phase=self.phase.value)
        return self._now(attrs.evolve(cycle, copied_bytes=copied_bytes, commit_started_ms=now_ms))

    def start_cleanup(self, now_ms: int) -> CompactionLog:
        """COMMIT to CLEANUP: the new segments have their names.

        Raises:
            CompactionOutOfOrder: the phase is not COMMIT.
        """
        return self._now(attrs.evolve(self._must_be(Phase.COMMIT, "clean up"), cleanup_started_ms=now_ms))

    def end_cycle(self, now_ms: int) -> CompactionLog:
        """CLEANUP to PREPARE of the next cycle, or to DONE.

        Raises:
            CompactionOutOfOrder: the phase is not CLEANUP.
        """
        return self._now(attrs.evolve(self._must_be(Phase.CLEANUP, "end the cycle"), ended_ms=now_ms))

    def drop(self) -> CompactionLog:
        """Give the attempt up, from PREPARE or COPY; what earlier cycles did stays.

        Raises:
            CompactionOutOfOrder: a commit is under way, which can only be finished; or everything is done.
        """
        if self.phase not in (Phase.PREPARE, Phase.COPY):
            raise CompactionOutOfOrder(f"compaction {self.number} is in phase {self.phase.value} and cannot be dropped "
                                       f"any more; finish it with resume()", phase=self.phase.value)
        cycles = self.cycles[:-1] if self.phase is Phase.COPY else self.cycles
        return attrs.evolve(self, cycles=cycles, dropped=True)

    def _must_be(self, phase: Phase, step: str) -> Cycle:
        if self.phase is not phase:
            raise CompactionOutOfOrder(f"compaction {self.number} is in phase {self.phase.value} and cannot {step}, "
                                       f"which needs phase {phase.value}", phase=self.phase.value)
        # In PREPARE there is none, and none is read.
        return self.cycles[-1] if self.cycles else _NO_CYCLE

    def _following(self, count: int) -> tuple[SegmentName, ...]:
        return self._names[self._taken:self._taken + count]

    def _now(self, cycle: Cycle) -> CompactionLog:
        return self._with((*self.cycles[:-1], cycle), taken=self._taken)

    def _with(self, cycles: tuple[Cycle, ...], *, taken: int) -> CompactionLog:
        """As `attrs.evolve`, without a look at the victims, which stay: there may be many, and many steps."""
        made = copy(self)
        object.__setattr__(made, "cycles", cycles)
        object.__setattr__(made, "_taken", taken)
        return made

    def audit(self) -> None:
        """Check the invariants that the steps keep; for logs that come from a file.

        Raises:
            AuditFailed: a cycle that is not the last is not ended, the cycles take other segments than the victims
                or in another order, or times and targets do not fit the phase; the message names the cycle.
        """
        left = tuple(name for name in self.victims if name not in self.left_out)
        for number, cycle in enumerate(self.cycles, 1):
            times = (cycle.copy_started_ms, cycle.commit_started_ms, cycle.cleanup_started_ms, cycle.ended_ms)
            reached = [time for time in times if time is not None]
            after = left[len(cycle.sources):]
            fits = (
                tuple(reached) == times[:len(reached)]
                and (cycle.ended_ms is not None or number == len(self.cycles))
                and left[:len(cycle.sources)] == cycle.sources
                and (cycle.partial is None or cycle.partial.segment in (*after[:1], *self.left_out))
                and tuple(target.name for target in cycle.targets) == cycle.planned[:len(cycle.targets)]
                and (cycle.commit_started_ms is None or len(cycle.targets) == len(cycle.planned))
                and len(cycle.planned) <= self.swap_segments
            )
            if not fits:
                raise AuditFailed(f"cycle {number} of compaction {self.number} does not fit the others: {cycle}")
            left = after

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row a cycle."""
        return [{
            "cycle": number, "phase": cycle.phase.value, "sources": _named(cycle.sources),
            "partial": None if cycle.partial is None else str(cycle.partial),
            "targets": _named(target.name for target in cycle.targets),
            "records": sum(target.entries for target in cycle.targets), "copied_bytes": cycle.copied_bytes,
            "copy_started_ms": cycle.copy_started_ms, "commit_started_ms": cycle.commit_started_ms,
            "cleanup_started_ms": cycle.cleanup_started_ms, "ended_ms": cycle.ended_ms,
        } for number, cycle in enumerate(self.cycles, 1)]

    def _summary(self) -> str:
        state = "dropped" if self.dropped else self.phase.value
        return (f"compaction {self.number} of {len(self.victims)} segments: {state}, {len(self.committed)} cycles "
                f"committed, {len(self.remaining)} segments left")


_NO_CYCLE = Cycle(sources=(), partial=None, planned=(), copy_started_ms=0)


def _named(names: Any) -> str:
    return ", ".join(map(str, names))
