# SPDX-License-Identifier: Apache-2.0
"""Delayed deletion: what is to be deleted, kept until a worker has confirmed that it is gone.

A completed job leaves a tombstone with its sources' ids. Once that is old enough for no reader to need the objects, it
is leased to a worker: along with a job, or alone. The worker deletes the objects and confirms by the tombstone's name;
if no confirmation comes before the lease ends, the tombstone is due again. Deleting twice does no harm.

As long as a tombstone is here, its blocks are refused by the metadata index: a late retry of an `AddBlocks` must not
bring back a block whose object is about to go.

Pure state, changed by commands alone. See `docs/design/scheduler.md`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Set
from itertools import chain, islice

import attrs
from sortedcontainers import SortedDict

from compactlib.errors import AuditFailed, InvalidInput
from compactlib.scheduler.model.values import BlockMeta, BlockTombstones, Command, ShardTombstone, Tombstone

_Order = tuple[int, int]
_SMALL = 64
_new = object.__new__


@attrs.define
class TombstoneEntry:
    """A tombstone and its progress so far: all that is stored.

    Attributes:
        index: log index of the command that added it.
        position: its place among those that the same command added, >= 0.
        appended_at: that command's time, seconds.
        tombstone: what is to be deleted.
        leased_until: end of the lease under which a worker deletes it, seconds; 0 if none ever did.
    """

    index: int
    position: int
    appended_at: float
    tombstone: Tombstone
    leased_until: float = 0.0


@attrs.define(eq=False)
class _Kept:
    """An entry as it is kept, in a third of the memory of the values, which are made when they are asked for."""

    index: int
    position: int
    appended_at: float
    name: str
    tenant: str
    shard: int
    level: int
    blocks: tuple[str, ...]
    span: ShardTombstone | None = None
    leased_until: float = 0.0

    @property
    def tombstone(self) -> Tombstone:
        """What is to be deleted."""
        return self.span if self.span is not None else BlockTombstones(
            name=self.name, tenant=self.tenant, shard=self.shard, level=self.level, blocks=self.blocks)


def _kept(entry: TombstoneEntry) -> _Kept:
    tombstone = entry.tombstone
    span = None if isinstance(tombstone, BlockTombstones) else tombstone
    level, blocks = (tombstone.level, tombstone.blocks) if isinstance(tombstone, BlockTombstones) else (0, ())
    return _Kept(entry.index, entry.position, entry.appended_at, tombstone.name, tombstone.tenant, tombstone.shard,
                 level, blocks, span, entry.leased_until)


def _order_of(entry: TombstoneEntry | _Kept) -> _Order:
    return entry.index, entry.position


class Tombstones:
    """All tombstones that are not confirmed, oldest first. A call costs O(log n) a tombstone, unless it says more.

    Args:
        cleanup_delay_seconds: how old a tombstone must be before it is due, >= 0.

    Raises:
        InvalidInput: the delay is negative.
    """

    def __init__(self, cleanup_delay_seconds: float = 900.0) -> None:
        if not cleanup_delay_seconds >= 0:
            raise InvalidInput(f"cleanup_delay_seconds is {cleanup_delay_seconds}; give 0 or more")
        self._delay = cleanup_delay_seconds
        self._clear()

    def _clear(self) -> None:
        self._entries: dict[str, _Kept] = {}
        # Those without a lease, oldest first; some that have one, or are gone, may stand among them, though not in
        # front. The others by the end of their leases.
        self._free: deque[_Kept] = deque()
        self._leased: SortedDict[tuple[float, _Order], _Kept] = SortedDict()
        # The blocks that tombstones name by tenant and shard, and how many more tombstones than one name a block: two
        # may, if two workers wrote the same outputs and both came too late.
        self._blocks: dict[str, dict[int, set[str]]] = {}
        self._again: Counter[tuple[str, int, str]] = Counter()
        self._spans: dict[tuple[str, int], dict[str, ShardTombstone]] = {}
        self._last_index = self._last_position = -1

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[TombstoneEntry]:
        """All entries, the oldest first."""
        return (TombstoneEntry(kept.index, kept.position, kept.appended_at, kept.tombstone, kept.leased_until)
                for kept in self._entries.values())

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def add(self, command: Command, tombstone: Tombstone) -> bool:
        """Keep a tombstone; `False` if there is one of this name, and nothing changed (a command applied twice).

        Args:
            command: whose index and time the tombstone gets; indexes must not go back.
            tombstone: what is to be deleted; its name must never be used for anything else.
        """
        if isinstance(tombstone, BlockTombstones):
            return self._add_blocks(command, tombstone.name, tombstone.tenant, tombstone.shard, tombstone.level,
                                    tombstone.blocks)
        return self._add_blocks(command, tombstone.name, tombstone.tenant, tombstone.shard, 0, (), span=tombstone)

    def _add_blocks(self, command: Command, name: str, tenant: str, shard: int, level: int,
                    blocks: tuple[str, ...], *, span: ShardTombstone | None = None) -> bool:
        """As `add`, of a tombstone of blocks that has these fields; or of a span, which has no blocks."""
        index = command.index
        if name in self._entries:
            return False
        position = self._last_position + 1 if index == self._last_index else 0
        # Field by field: a call of the class costs more than all of this.
        kept = _new(_Kept)
        kept.index = index
        kept.position = position
        kept.appended_at = command.appended_at
        kept.name = name
        kept.tenant = tenant
        kept.shard = shard
        kept.level = level
        kept.blocks = blocks
        kept.span = span
        kept.leased_until = 0.0
        self._insert(kept)
        return True

    def restore(self, entries: Iterable[TombstoneEntry]) -> None:
        """Replace everything by stored entries, in any order.

        Raises:
            InvalidInput: two have the same name, or the same index and position.
        """
        self._clear()
        for entry in sorted(entries, key=_order_of):
            if entry.tombstone.name in self or _order_of(entry) == (self._last_index, self._last_position):
                raise InvalidInput(f"the tombstone {entry.tombstone.name!r} of command {entry.index}, position "
                                   f"{entry.position}, is stored twice, or shares its place with another one")
            self._insert(_kept(entry))

    def covers(self, block: BlockMeta) -> bool:
        """Whether the block is to be deleted: by its id, or because its `min_time` lies in a span that goes.

        Cost: O(spans that wait for deletion in the block's tenant and shard).
        """
        return self._first_covered((block,)) is not None

    def _first_covered(self, blocks: Iterable[BlockMeta]) -> BlockMeta | None:
        """The first of these blocks that `covers` says is to be deleted, if any is."""
        for block in blocks:
            shards = self._blocks.get(block.tenant)
            named = None if shards is None else shards.get(block.shard)
            if named is not None and block.id in named:
                return block
            spans = self._spans.get((block.tenant, block.shard)) if self._spans else None
            first = block.min_time
            if spans is not None and first is not None and any(
                    span.timestamp <= first < span.timestamp + span.duration for span in spans.values()):
                return block
        return None

    def exists(self, tenant: str, shard: int, block_id: str) -> bool:
        """Whether a tombstone names the block. O(1)."""
        return block_id in self._blocks.get(tenant, {}).get(shard, ())

    def due(self, now: float, limit: int, skip: Set[str] = frozenset()) -> tuple[Tombstone, ...]:
        """What may be leased at `now`: older than the delay, and under no lease (both strictly). Changes nothing.

        Those whose lease has run out come after those that never had one. Cost: O(answer + skipped).

        Args:
            now: the command's time, seconds.
            limit: how many at most.
            skip: names that this plan has leased already.
        """
        found: list[Tombstone] = []
        if limit <= 0:
            return ()
        before = now - self._delay
        for kept in filter(self._is_free, self._free):
            # Commands come in the order of their indexes, but a new leader's clock may stand behind the old one's:
            # like the first one that is too young, that ends the search, and costs nothing but time.
            if len(found) >= limit or not kept.appended_at < before:
                break
            if kept.name not in skip:
                found.append(kept.tombstone)
        for kept in self._leased.values():
            if len(found) >= limit or not kept.leased_until < now:
                break
            if kept.name not in skip:
                found.append(kept.tombstone)
        return tuple(found)

    def lease(self, name: str, until: float) -> None:
        """A worker deletes it until then, seconds. Unknown names are ignored: it was confirmed meanwhile."""
        kept = self._entries.get(name)
        if kept is None:
            return
        before, kept.leased_until = kept.leased_until, until
        if before:
            del self._leased[before, _order_of(kept)]
        if until:
            self._leased[until, _order_of(kept)] = kept
        elif before:
            # Not the youngest of all: its lease was cut to nothing.
            self._line_up(sorted(self._entries.values(), key=_order_of))
        self._tidy()

    def confirm(self, name: str) -> bool:
        """Its objects are gone: forget it. `False` if there is none of this name. O(log n + its blocks)."""
        kept = self._entries.pop(name, None)
        if kept is None:
            return False
        if kept.leased_until:
            del self._leased[kept.leased_until, _order_of(kept)]
        self._tidy()
        key = kept.tenant, kept.shard
        if kept.span is not None:
            del self._spans[key][name]
            if not self._spans[key]:
                del self._spans[key]
        elif kept.blocks:
            self._unprotect(kept.tenant, kept.shard, kept.blocks)
        return True

    def drop_oldest(self) -> Tombstone:
        """Forget one that is not confirmed; there must be one. O(log n + its blocks).

        The oldest of those without a lease, or the one whose lease ends first if that is older still.
        """
        oldest = min([*islice(self._free, 1), *islice(self._leased.values(), 1)], key=_order_of)
        self.confirm(oldest.name)
        return oldest.tombstone

    def cut(self, now: float, lease_end: float) -> None:
        """No tombstone is younger than `now`, and no lease ends after `lease_end`, seconds. O(n)."""
        for kept in self._entries.values():
            kept.appended_at = min(kept.appended_at, now)
            if kept.leased_until and kept.leased_until > lease_end:
                self.lease(kept.name, lease_end)

    def _insert(self, kept: _Kept) -> None:
        """Keep the youngest of all: what it names is refused from now on."""
        self._entries[kept.name] = kept
        self._last_index, self._last_position = kept.index, kept.position
        if kept.leased_until:
            self._leased[kept.leased_until, _order_of(kept)] = kept
        else:
            self._free.append(kept)
        tenant, shard, blocks = kept.tenant, kept.shard, kept.blocks
        if kept.span is not None:
            self._spans.setdefault((tenant, shard), {})[kept.name] = kept.span
            return
        shards = self._blocks.get(tenant)
        named = None if shards is None else shards.get(shard)
        if named is None:
            if blocks:
                self._blocks.setdefault(tenant, {})[shard] = set(blocks)
            return
        if not named.isdisjoint(blocks):
            self._again.update((tenant, shard, block_id) for block_id in named.intersection(blocks))
        named.update(blocks)

    def _unprotect(self, tenant: str, shard: int, block_ids: Iterable[str]) -> None:
        shards, again = self._blocks[tenant], self._again
        named = shards[shard]
        if not again:
            named.difference_update(block_ids)
        else:
            for block_id in set(block_ids):
                place = tenant, shard, block_id
                if place in again:
                    again[place] -= 1
                    if not again[place]:
                        del again[place]
                else:
                    named.discard(block_id)
        if not named:
            del shards[shard]
            if not shards:
                del self._blocks[tenant]

    def _is_free(self, kept: _Kept) -> bool:
        return not kept.leased_until and self._entries.get(kept.name) is kept

    def _tidy(self) -> None:
        """Nothing but what is free stands in front of the free ones, nor more than half among them. O(1) amortized."""
        line = self._free
        while line and not self._is_free(line[0]):
            line.popleft()
        if len(line) > _SMALL and len(line) > 2 * (len(self._entries) - len(self._leased)):
            self._line_up(line)

    def _line_up(self, kept: Iterable[_Kept]) -> None:
        self._free = deque(filter(self._is_free, kept))

    def audit(self) -> None:
        """Check that all parts agree. Reads everything.

        Raises:
            AuditFailed: they do not; the message has the numbers.
        """
        free = list(filter(self._is_free, self._free))
        queued = sorted(kept.name for kept in chain(free, self._leased.values()))
        if queued != sorted(self._entries):
            raise AuditFailed(f"{len(self._entries)} tombstones are kept, {len(queued)} are queued")
        if free != sorted(free, key=_order_of) or list(self._free)[:1] != free[:1]:
            raise AuditFailed(f"{len(free)} tombstones wait, and not in the order in which they came, from the front")
        if len(self._free) > max(_SMALL, 2 * len(free)):
            raise AuditFailed(f"{len(self._free)} places are kept for the {len(free)} tombstones that wait")
        counts: Counter[tuple[str, int, str]] = Counter()
        spans = 0
        for name, kept in self._entries.items():
            if name != kept.name:
                raise AuditFailed(f"the tombstone {kept.name!r} is kept as {name!r}")
            counts.update((kept.tenant, kept.shard, block_id) for block_id in set(kept.blocks))
            spans += kept.span is not None
        named = Counter((tenant, shard, block_id) for tenant, shards in self._blocks.items()
                        for shard, blocks in shards.items() for block_id in blocks)
        spanned = sum(map(len, self._spans.values()))
        is_tidy = all(shards and all(shards.values()) for shards in self._blocks.values())
        if named + self._again != counts or not is_tidy or spans != spanned:
            raise AuditFailed(f"the tombstones name {len(counts)} blocks and {spans} spans; {len(named)} and "
                              f"{spanned} are protected")

    def __repr__(self) -> str:
        return f"Tombstones({len(self) - len(self._leased)} waiting, {len(self._leased)} leased)"
