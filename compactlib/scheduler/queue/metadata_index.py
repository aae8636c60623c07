# SPDX-License-Identifier: Apache-2.0
"""Which blocks there are: by id, tenant, shard and time.

Blocks of one tenant and shard are kept in partitions of time, by their oldest data. A list of a span of time looks at
the partitions that can hold something of it, and retention removes whole partitions. A partition is put into the order
of time when somebody asks for it: most blocks are compacted before that.

Pure state, changed by commands alone. See `docs/design/scheduler.md`.
"""

from __future__ import annotations

import enum
import heapq
import math
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

import attrs
from sortedcontainers import SortedDict

from compactlib.errors import AuditFailed, InvalidInput
from compactlib.scheduler.model.values import ANONYMOUS_TENANT, BlockMeta, ShardTombstone, check_span
from compactlib.scheduler.queue.tombstones import Tombstones

PARTITION_SECONDS = 6 * 3600
"""The span of one partition, unless another is given."""


class AddOutcome(enum.Enum):
    """The outcome of a block that was added."""

    ADDED = "added"
    DUPLICATE = "duplicate"
    """Its id is known in this tenant and shard; that block stays as it is."""
    TOMBSTONED = "tombstoned"
    """It is waiting for deletion, or retention has removed what is as old; it was not added."""


@attrs.frozen
class Replaced:
    """The sources are gone and the new blocks are there, in one step.

    Attributes:
        removed: the sources, as they were.
        added: the new blocks, without those whose ids were known.
    """

    removed: tuple[BlockMeta, ...]
    added: tuple[BlockMeta, ...]


@attrs.frozen
class SourcesMissing:
    """Nothing was changed, because these sources are not there."""

    missing: tuple[str, ...]


ReplaceOutcome: TypeAlias = Replaced | SourcesMissing
"""What a replacement ended in."""

_FEW_CHANGES = 32
"""So many are made to the order of a partition one by one."""

_TIMELESS = math.inf
"""The number of the partition of blocks without times: it stands behind all others, and retention leaves it."""


def _min_time(block: BlockMeta) -> float:
    return math.inf if block.min_time is None else block.min_time


def _by_time(block: BlockMeta) -> tuple[float, str]:
    return _min_time(block), block.id


def _by_time_and_place(block: BlockMeta) -> tuple[float, str, int, str]:
    return _min_time(block), block.tenant, block.shard, block.id


def _seconds_of(block: BlockMeta) -> float:
    return 0.0 if block.min_time is None or block.max_time is None else block.max_time - block.min_time


class _Partition:
    """The blocks of one tenant and shard that begin in one span of time."""

    __slots__ = ("_changed", "_in_order", "blocks")

    def __init__(self) -> None:
        self.blocks: dict[str, BlockMeta] = {}
        self._in_order: list[BlockMeta] = []
        # What has come or gone since they were put in order; `None`: they are in none.
        self._changed: list[BlockMeta] | None = None

    def add(self, block: BlockMeta) -> None:
        """Add a block that is not there."""
        self.blocks[block.id] = block
        self._note(block)

    def remove(self, block: BlockMeta) -> None:
        """Remove a block that is there."""
        del self.blocks[block.id]
        self._note(block)

    def _note(self, block: BlockMeta) -> None:
        if self._changed is not None:
            self._changed.append(block)
            if len(self._changed) > _FEW_CHANGES:
                self._changed, self._in_order = None, []

    def in_order(self) -> list[BlockMeta]:
        """By time, then by id. O(log n) a change since the last call; after more than a few of them, O(n log n)."""
        if self._changed is None:
            self._in_order, self._changed = sorted(self.blocks.values(), key=_by_time), []
        elif self._changed:
            for key in map(_by_time, self._changed):
                start = bisect_left(self._in_order, key, key=_by_time)
                end = bisect_right(self._in_order, key, start, key=_by_time)
                block = self.blocks.get(key[1])
                self._in_order[start:end] = [block] if block is not None and _by_time(block) == key else []
            # Once all are made, so that one that was interrupted is made again.
            self._changed = []
        return self._in_order


class _Group:
    """The blocks of one tenant and shard."""

    __slots__ = ("by_id", "longest", "partitions")

    def __init__(self) -> None:
        self.by_id: dict[str, BlockMeta] = {}
        self.partitions: SortedDict[float, _Partition] = SortedDict()
        # No block reaches further than this beyond its oldest data; removals leave it as it is.
        self.longest = 0.0


class MetadataIndex:
    """All blocks, up to some millions. One thread at a time: a list, too, may put a partition in order.

    Args:
        partition_seconds: the span of one partition of time, whole seconds >= 1: what retention removes at once.

    Raises:
        InvalidInput: the span is less than 1.
    """

    def __init__(self, partition_seconds: int = PARTITION_SECONDS) -> None:
        if partition_seconds < 1:
            raise InvalidInput(f"partition_seconds is {partition_seconds}; give whole seconds >= 1")
        self._span = partition_seconds
        self._groups: SortedDict[tuple[str, int], _Group] = SortedDict()
        self._dropped_until: dict[tuple[str, int], float] = {}
        # The same over all tenants of a shard.
        self._shard_dropped_until: dict[int, float] = {}
        self._size = 0

    @property
    def partition_seconds(self) -> int:
        """The span of one partition."""
        return self._span

    def __len__(self) -> int:
        return self._size

    def get(self, tenant: str, shard: int, block_id: str) -> BlockMeta | None:
        """The block of this id, if there is one. O(1)."""
        group = self._groups.get((tenant, shard))
        return None if group is None else group.by_id.get(block_id)

    def find(self, tenant: str, shard: int, block_ids: Iterable[str]) -> tuple[BlockMeta, ...]:
        """The blocks of these ids, in the order given; those that are not there are left out. O(ids)."""
        group = self._groups.get((tenant, shard))
        known = {} if group is None else group.by_id
        return tuple([known[block_id] for block_id in block_ids if block_id in known])

    def missing(self, tenant: str, shard: int, block_ids: Iterable[str]) -> tuple[str, ...]:
        """Those of the ids that are not there, in the order given. O(ids)."""
        group = self._groups.get((tenant, shard))
        known = {} if group is None else group.by_id
        return tuple([block_id for block_id in block_ids if block_id not in known])

    def add(self, block: BlockMeta, tombstones: Tombstones | None = None) -> AddOutcome:
        """Add a block, unless its id is known, or it waits for deletion, or it is too old. O(log n).

        Too old is what begins before the end of a span that was dropped, also once its tombstone is confirmed: the
        deletion of the span may have met the object of a block that was on its way. A block of several tenants is too
        old as soon as any tenant of its shard has lost that time: what a job makes of it would lie in a span that some
        worker, long after its lease, may still be deleting.

        Args:
            block: the block.
            tombstones: what waits for deletion; without it, the block is added whatever its age (a job's output).

        Raises:
            InvalidInput: its times are not finite.
        """
        key = block.tenant, block.shard
        if tombstones is not None and (_min_time(block) < self._refused_until(*key) or tombstones.covers(block)):
            return AddOutcome.TOMBSTONED
        group = self._groups.get(key)
        if group is not None and block.id in group.by_id:
            return AddOutcome.DUPLICATE
        number = self._partition(block)
        if group is None:
            group = self._groups[key] = _Group()
        partition = group.partitions.get(number)
        if partition is None:
            partition = group.partitions[number] = _Partition()
        partition.add(block)
        group.by_id[block.id] = block
        group.longest = max(group.longest, _seconds_of(block))
        self._size += 1
        return AddOutcome.ADDED

    def _refused_until(self, tenant: str, shard: int) -> float:
        """What begins before is too old to be added."""
        if tenant == ANONYMOUS_TENANT:
            return self._shard_dropped_until.get(shard, -math.inf)
        return self._dropped_until.get((tenant, shard), -math.inf)

    def remove(self, tenant: str, shard: int, block_ids: Iterable[str]) -> tuple[BlockMeta, ...]:
        """Remove the blocks that are there; returns them. O(log n) a block."""
        group = self._groups.get((tenant, shard))
        if group is None:
            return ()
        removed = []
        for block_id in block_ids:
            block = group.by_id.pop(block_id, None)
            if block is not None:
                number = self._partition(block)
                partition = group.partitions[number]
                partition.remove(block)
                if not partition.blocks:
                    del group.partitions[number]
                removed.append(block)
        if not group.by_id:
            del self._groups[tenant, shard]
        self._size -= len(removed)
        return tuple(removed)

    def replace(self, tenant: str, shard: int, source_blocks: Iterable[str],
                new_blocks: Iterable[BlockMeta]) -> ReplaceOutcome:
        """Put new blocks in place of others, all or nothing. O(log n) a block.

        A new block may have another tenant (the sources held several tenants' data), and may have a source's id.

        Raises:
            InvalidInput: a new block is in another shard, or its times are not finite; nothing was changed.
        """
        sources, fresh = tuple(dict.fromkeys(source_blocks)), tuple(new_blocks)
        for block in fresh:
            self._partition(block)
            if block.shard != shard:
                raise InvalidInput(f"block {block.id!r} of shard {block.shard} cannot replace blocks of shard {shard}")
        missing = self.missing(tenant, shard, sources)
        if missing:
            return SourcesMissing(missing)
        removed = self.remove(tenant, shard, sources)
        added = tuple(block for block in fresh if self.add(block) is AddOutcome.ADDED)
        return Replaced(removed, added)

    def blocks(self, *, tenant: str | None = None, shard: int | None = None, start: float = -math.inf,
               end: float = math.inf) -> Iterator[BlockMeta]:
        """The blocks that may have data between `start` and `end` (both inclusive, seconds), oldest first.

        Those without times may have some in any span: they are always among them, in the end.

        Ordered by `min_time`, then tenant, shard and id. The index must not change meanwhile. Cost: O(log n) a tenant
        and shard that is looked at, O(log of these) a block, the blocks that begin before `start` by no more than the
        longest one lasts, and O(n log n) of a partition that has changed more than a little since it was listed.

        Args:
            tenant: of this tenant only.
            shard: of this shard only.
            start: leave out blocks that end before.
            end: leave out blocks that begin after.
        """
        keys: Iterable[tuple[str, int]]
        if tenant is None:
            keys = self._groups.keys() if shard is None else [key for key in self._groups if key[1] == shard]
        elif shard is None:
            keys = self._groups.irange((tenant, -1), (tenant, sys.maxsize))
        else:
            keys = [(tenant, shard)] if (tenant, shard) in self._groups else []
        found = [self._of_group(self._groups[key], start, end) for key in keys]
        return heapq.merge(*found, key=_by_time_and_place)

    def _of_group(self, group: _Group, start: float, end: float) -> Iterator[BlockMeta]:
        earliest = start - group.longest
        first = None if earliest == -math.inf else self._number(earliest)
        last = None if end == math.inf else self._number(end)
        for number in group.partitions.irange(first, last):
            if number == _TIMELESS:
                continue
            times = group.partitions[number].in_order()
            first_of, end_of = bisect_left(times, earliest, key=_min_time), bisect_right(times, end, key=_min_time)
            for block in times[first_of:end_of]:
                if block.max_time is None or block.max_time >= start:
                    yield block
        if _TIMELESS in group.partitions:
            yield from group.partitions[_TIMELESS].in_order()

    def expired(self, before: float, limit: int = 32, *, name_suffix: str = "") -> tuple[ShardTombstone, ...]:
        """The partitions that retention removes: those that end before `before`, like all their data. Changes nothing.

        Removed whole, by `drop`, and their objects by the tombstone: whatever lies in the tenant and shard and begins
        in the span. A partition stays as long as the shard has a block of several tenants that begins before its end,
        from which a job may yet make blocks that lie in it; those blocks expire themselves, or are compacted. Blocks
        without times are never removed; as long as one of several tenants has none, no tenant of its shard loses a
        partition.
        Cost: O(tenants and shards + blocks of the partitions that are looked at).

        Args:
            before: data newer than this stays, seconds.
            limit: how many partitions at most, oldest first within each tenant and shard.
            name_suffix: makes the names unique for all time, for example by the command's index.
        """
        found: list[ShardTombstone] = []
        for (tenant, shard), group in self._groups.items():
            ends_by = before if tenant == ANONYMOUS_TENANT else min(before, self._anonymous_from(shard))
            for number, partition in group.partitions.items():
                start = number * self._span
                if len(found) >= limit or number == _TIMELESS or not start + self._span <= ends_by:
                    break
                if all(block.max_time is not None and block.max_time < before
                       for block in partition.blocks.values()):
                    name = f"{start} ({self._span}s)-T{tenant}-S{shard}{name_suffix}"
                    found.append(ShardTombstone(name=name, tenant=tenant, shard=shard, timestamp=float(start),
                                                duration=float(self._span)))
        return tuple(found)

    def _anonymous_from(self, shard: int) -> float:
        """The beginning of the shard's oldest block of several tenants; one without times may begin at any."""
        group = self._groups.get((ANONYMOUS_TENANT, shard))
        if group is None:
            return math.inf
        return -math.inf if _TIMELESS in group.partitions else _min_time(group.partitions.peekitem(0)[1].in_order()[0])

    def drop(self, span: ShardTombstone) -> tuple[BlockMeta, ...]:
        """Remove every block of the tenant and shard that begins in the span; returns them. O(log n) a block.

        From now on, blocks that begin before the end of the span are refused.
        """
        key, end = (span.tenant, span.shard), span.timestamp + span.duration
        self._note_dropped(key, end)
        group = self._groups.get(key)
        if group is None:
            return ()
        gone = [block.id for number in group.partitions.irange(self._number(span.timestamp), self._number(end))
                for block in group.partitions[number].in_order() if span.timestamp <= _min_time(block) < end]
        return self.remove(span.tenant, span.shard, gone)

    def dropped_until(self) -> dict[tuple[str, int], float]:
        """For each tenant and shard that has lost something to retention: up to when, seconds. To be stored."""
        return dict(self._dropped_until)

    def restore_dropped_until(self, dropped: Mapping[tuple[str, int], float]) -> None:
        """What `dropped_until` gave."""
        self._dropped_until, self._shard_dropped_until = {}, {}
        for key, end in dropped.items():
            self._note_dropped(key, end)

    def _note_dropped(self, key: tuple[str, int], end: float) -> None:
        shard = key[1]
        self._dropped_until[key] = max(end, self._dropped_until.get(key, -math.inf))
        self._shard_dropped_until[shard] = max(end, self._shard_dropped_until.get(shard, -math.inf))

    def _partition(self, block: BlockMeta) -> float:
        first, last = block.min_time, block.max_time
        if first is None or last is None or not -math.inf < first <= last < math.inf:
            check_span(block)
            return _TIMELESS
        return self._number(first)

    def _number(self, time: float) -> int:
        # Exact, other than a division that is rounded: a block must lie in the span of its partition.
        return int(time // self._span)

    def audit(self) -> None:
        """Check that all parts agree. Reads everything.

        Raises:
            AuditFailed: they do not; the message has the numbers.
        """
        total = 0
        for (tenant, shard), group in self._groups.items():
            listed = 0
            for number, partition in group.partitions.items():
                listed += len(partition.blocks)
                self._audit_partition((tenant, shard, number), group, partition)
            if listed != len(group.by_id) or not listed:
                raise AuditFailed(f"tenant {tenant!r}, shard {shard}: {len(group.by_id)} blocks by id, {listed} by "
                                      f"time")
            total += listed
        if total != self._size:
            raise AuditFailed(f"the index counts {self._size} blocks and holds {total}")

    def _audit_partition(self, place: tuple[str, int, float], group: _Group, partition: _Partition) -> None:
        tenant, shard, number = place
        for block_id, block in partition.blocks.items():
            belongs = (block.tenant, block.shard, self._partition(block), block.id) == (*place, block_id)
            known = group.by_id.get(block_id) is block and _seconds_of(block) <= group.longest
            if not belongs or not known:
                raise AuditFailed(f"{block!r} is kept in tenant {tenant!r}, shard {shard}, partition {number}, "
                                  f"where it does not belong")
        in_order = partition.in_order()
        if not in_order:
            raise AuditFailed(f"tenant {tenant!r}, shard {shard} keeps the empty partition {number}")
        if in_order != sorted(partition.blocks.values(), key=_by_time):
            raise AuditFailed(f"tenant {tenant!r}, shard {shard} lists the {len(partition.blocks)} blocks of partition "
                              f"{number} in another order than theirs, or others")

    def __repr__(self) -> str:
        return f"MetadataIndex({self._size} blocks in {len(self._groups)} tenants and shards)"
