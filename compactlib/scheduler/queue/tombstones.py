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

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Set
from itertools import islice

import attrs
from sortedcontainers import SortedDict

from compactlib._arguments import refuses_misfits
from compactlib.errors import AuditFailed, InvalidInput
from compactlib.scheduler.model.values import BlockMeta, BlockTombstones, Command, ShardTombstone, Tombstone

_Order = tuple[int, int]


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


def _order_of(entry: TombstoneEntry) -> _Order:
    return entry.index, entry.position


class Tombstones:
    """All tombstones that are not confirmed, oldest first. A call costs O(log n) a tombstone, unless it says more.

    Args:
        cleanup_delay_seconds: how old a tombstone must be before it is due, >= 0.

    Raises:
        InvalidInput: the delay is negative.
    """

    @refuses_misfits
    def __init__(self, cleanup_delay_seconds: float = 900.0) -> None:
        if not cleanup_delay_seconds >= 0:
            raise InvalidInput(f"cleanup_delay_seconds is {cleanup_delay_seconds}; give 0 or more")
        self._delay = cleanup_delay_seconds
        self._clear()

    def _clear(self) -> None:
        self._entries: dict[str, TombstoneEntry] = {}
        # Those without a lease, oldest first, and the others by the end of their leases.
        self._free: OrderedDict[str, TombstoneEntry] = OrderedDict()
        self._leased: SortedDict[tuple[float, _Order], TombstoneEntry] = SortedDict()
        # How many tombstones name a block: two may, if two workers wrote the same outputs and both came too late.
        self._blocks: dict[tuple[str, int], dict[str, int]] = {}
        self._spans: dict[tuple[str, int], dict[str, ShardTombstone]] = {}
        self._last_index = self._last_position = -1

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[TombstoneEntry]:
        """All entries, the oldest first."""
        return iter(self._entries.values())

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    @refuses_misfits
    def add(self, command: Command, tombstone: Tombstone) -> bool:
        """Keep a tombstone; `False` if there is one of this name, and nothing changed (a command applied twice).

        Args:
            command: whose index and time the tombstone gets; indexes must not go back.
            tombstone: what is to be deleted; its name must never be used for anything else.
        """
        name, index = tombstone.name, command.index
        if name in self._entries:
            return False
        position = self._last_position + 1 if index == self._last_index else 0
        self._last_index, self._last_position = index, position
        self._entries[name] = self._free[name] = TombstoneEntry(index, position, command.appended_at, tombstone)
        self._protect(tombstone)
        return True

    @refuses_misfits
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
            self._last_index, self._last_position = _order_of(entry)
            self._entries[entry.tombstone.name] = entry
            self._enter_queue(entry)
            self._protect(entry.tombstone)

    @refuses_misfits
    def covers(self, block: BlockMeta) -> bool:
        """Whether the block is to be deleted: by its id, or because its `min_time` lies in a span that goes.

        Cost: O(spans that wait for deletion in the block's tenant and shard).
        """
        return self.first_covered((block,)) is not None

    @refuses_misfits
    def first_covered(self, blocks: Iterable[BlockMeta]) -> BlockMeta | None:
        """The first of these blocks that `covers` says is to be deleted, if any is."""
        for block in blocks:
            key = block.tenant, block.shard
            counts = self._blocks.get(key)
            if counts is not None and block.id in counts:
                return block
            spans = self._spans.get(key) if self._spans else None
            if spans is not None and any(span.timestamp <= block.min_time < span.timestamp + span.duration
                                         for span in spans.values()):
                return block
        return None

    @refuses_misfits
    def exists(self, tenant: str, shard: int, block_id: str) -> bool:
        """Whether a tombstone names the block. O(1)."""
        counts = self._blocks.get((tenant, shard))
        return counts is not None and block_id in counts

    @refuses_misfits
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
        for name, entry in self._free.items():
            # Commands come in the order of their indexes, but a new leader's clock may stand behind the old one's:
            # like the first entry that is too young, that ends the search, and costs nothing but time.
            if len(found) >= limit or not entry.appended_at < before:
                break
            if name not in skip:
                found.append(entry.tombstone)
        for entry in self._leased.values():
            if len(found) >= limit or not entry.leased_until < now:
                break
            if entry.tombstone.name not in skip:
                found.append(entry.tombstone)
        return tuple(found)

    @refuses_misfits
    def lease(self, name: str, until: float) -> None:
        """A worker deletes it until then, seconds. Unknown names are ignored: it was confirmed meanwhile."""
        entry = self._entries.get(name)
        if entry is not None:
            self._leave_queue(entry)
            entry.leased_until = until
            self._enter_queue(entry)

    @refuses_misfits
    def confirm(self, name: str) -> bool:
        """Its objects are gone: forget it. `False` if there is none of this name. O(log n + its blocks)."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return False
        self._leave_queue(entry)
        tombstone = entry.tombstone
        key = tombstone.tenant, tombstone.shard
        if isinstance(tombstone, BlockTombstones) and tombstone.blocks:
            self._unprotect(key, tombstone.blocks)
        elif isinstance(tombstone, ShardTombstone):
            del self._spans[key][name]
            if not self._spans[key]:
                del self._spans[key]
        return True

    def drop_oldest(self) -> Tombstone:
        """Forget one that is not confirmed; there must be one. O(log n + its blocks).

        The oldest of those without a lease, or the one whose lease ends first if that is older still.
        """
        first = [*islice(self._free.values(), 1), *islice(self._leased.values(), 1)]
        tombstone = min(first, key=_order_of).tombstone
        self.confirm(tombstone.name)
        return tombstone

    @refuses_misfits
    def cut(self, now: float, lease_end: float) -> None:
        """No tombstone is younger than `now`, and no lease ends after `lease_end`, seconds. O(n)."""
        for entry in self:
            entry.appended_at = min(entry.appended_at, now)
            if entry.leased_until and entry.leased_until > lease_end:
                self.lease(entry.tombstone.name, lease_end)

    def _unprotect(self, key: tuple[str, int], block_ids: Iterable[str]) -> None:
        counts = self._blocks[key]
        for block_id in set(block_ids):
            counts[block_id] -= 1
            if not counts[block_id]:
                del counts[block_id]
        if not counts:
            del self._blocks[key]

    def _protect(self, tombstone: Tombstone) -> None:
        """What it names is refused from now on."""
        key = tombstone.tenant, tombstone.shard
        if isinstance(tombstone, ShardTombstone):
            self._spans.setdefault(key, {})[tombstone.name] = tombstone
            return
        blocks = tombstone.blocks
        counts = self._blocks.get(key)
        if counts is None and blocks:
            counts = self._blocks[key] = {}
        if counts is not None:
            for block_id in blocks if len(blocks) == 1 else set(blocks):
                counts[block_id] = counts.get(block_id, 0) + 1

    def _enter_queue(self, entry: TombstoneEntry) -> None:
        if entry.leased_until:
            self._leased[entry.leased_until, _order_of(entry)] = entry
            return
        self._free[entry.tombstone.name] = entry
        if _order_of(entry) < (self._last_index, self._last_position):
            # Not the youngest of all: its lease was cut to nothing.
            self._free = OrderedDict(sorted(self._free.items(), key=lambda item: _order_of(item[1])))

    def _leave_queue(self, entry: TombstoneEntry) -> None:
        if entry.leased_until:
            del self._leased[entry.leased_until, _order_of(entry)]
        else:
            del self._free[entry.tombstone.name]

    def audit(self) -> None:
        """Check that all parts agree. Reads everything.

        Raises:
            AuditFailed: they do not; the message has the numbers.
        """
        queued = sorted([*self._free, *(entry.tombstone.name for entry in self._leased.values())])
        if queued != sorted(self._entries):
            raise AuditFailed(f"{len(self._entries)} tombstones are kept, {len(queued)} are queued")
        orders = [_order_of(entry) for entry in self._free.values()]
        if orders != sorted(orders):
            raise AuditFailed(f"{len(orders)} tombstones wait, and not in the order in which they came")
        counts: Counter[tuple[str, int, str]] = Counter()
        spans = 0
        for name, entry in self._entries.items():
            tombstone = entry.tombstone
            if name != tombstone.name:
                raise AuditFailed(f"the tombstone {tombstone.name!r} is kept as {name!r}")
            if isinstance(tombstone, BlockTombstones):
                counts.update((tombstone.tenant, tombstone.shard, block_id) for block_id in set(tombstone.blocks))
            else:
                spans += 1
        kept = {(*key, block_id): count for key, blocks in self._blocks.items() for block_id, count in blocks.items()}
        if kept != counts or spans != sum(map(len, self._spans.values())):
            raise AuditFailed(f"the tombstones name {len(counts)} blocks and {spans} spans; {len(kept)} and "
                                  f"{sum(map(len, self._spans.values()))} are protected")

    def __repr__(self) -> str:
        return f"Tombstones({len(self._free)} waiting, {len(self._leased)} leased)"
