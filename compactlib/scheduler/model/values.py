# SPDX-License-Identifier: Apache-2.0
"""The frozen values of the compaction scheduler: commands, blocks, jobs, results and tombstones.

Times are seconds since the epoch as `float`, taken from commands and never from a clock. Most field
names are Pyroscope's (`docs/design/scheduler.md`).

What is made for every poll is without slots: frozen classes are made in less than half the time so.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from typing import TypeAlias, TypeVar

import attrs

from compactlib.errors import InvalidInput
from compactlib.scheduler.model.frozen import made_quickly

ANONYMOUS_TENANT = ""
"""The tenant of blocks that hold several tenants' data (level 0); their compaction may split them by tenant."""

MAX_ID_CHARS = 256
"""The longest block id, tenant or job name."""
MAX_NUMBER = (1 << 63) - 1
"""The largest shard, level and size of a block: what another language can read."""

ValueT = TypeVar("ValueT")


def made(kind: type[ValueT], fields: dict[str, object]) -> ValueT:
    """A frozen value without slots that has these fields, all of its class. What its own `__init__` does, for values
    with many of them at less than half its price."""
    value = object.__new__(kind)
    object.__setattr__(value, "__dict__", fields)
    return value


@made_quickly
@attrs.frozen
class Command:
    """One entry of the replicated log: the only clock and the only identity that the scheduler knows.

    Attributes:
        index: its place in the log, >= 1; grows with every command. The fencing token of what it assigns.
        term: the leader's term.
        appended_at: the leader's clock when it appended the entry, seconds. May go back when the leader changes.
        expiry: up to when the leader takes things as expired, seconds; not stored, and for `prepare` alone. `None`: as
            `appended_at`. Earlier than that while a step of the clock since its last life is not confirmed.
    """

    index: int
    term: int
    appended_at: float
    expiry: float | None = attrs.field(default=None, eq=False, repr=False)


_USUAL_SECONDS = 1e18
"""Times of blocks below it are looked at no closer; a whole number above it may be none that a float can be."""
MAX_INDEX = (1 << 64) - 1
"""The largest index and term of a log: tokens are stored in eight bytes."""


def check_command(command: Command) -> None:
    """Raise `InvalidInput` unless index, term and time are those of a log's entry."""
    try:
        fits = (0 <= command.index <= MAX_INDEX and 0 <= command.term <= MAX_INDEX
                and -math.inf < command.appended_at < math.inf)
    except (TypeError, AttributeError):
        fits = False
    if not fits:
        raise InvalidInput(f"{command!r} is no entry of a log; give an index from 1 and a term from 0 to {MAX_INDEX}, "
                           f"and finite seconds")


@made_quickly
@attrs.frozen(kw_only=True)
class BlockMeta:
    """What the metadata index knows of a block, and what a worker reports of one that it wrote.

    Attributes:
        id: unique within its tenant and shard; a ULID or any text without control characters.
        tenant: whose data; `ANONYMOUS_TENANT` for several tenants'.
        shard: >= 0.
        level: how often its data was compacted, >= 0.
        min_time: the oldest data in it, seconds. `None`: no time is known, and retention never removes the block.
        max_time: the newest data in it, seconds; >= `min_time`. `None` exactly if `min_time` is.
        size_bytes: >= 0.
        rows: how many it holds, >= 0; `None`: it is not known. A merge that knows those of all its sources need not
            look for them.
        columns: stands for the columns of its rows: blocks with the same text have the same ones. Empty: not known.

    Raises:
        InvalidInput: a field is out of its range.
    """

    id: str
    tenant: str
    shard: int
    level: int
    min_time: float | None = None
    max_time: float | None = None
    size_bytes: int = 0
    rows: int | None = None
    columns: str = ""

    def __attrs_post_init__(self) -> None:
        first, last = self.min_time, self.max_time
        try:
            fits = (0 < len(self.id) <= MAX_ID_CHARS and self.id.isprintable() and self.tenant.isprintable()
                    and len(self.tenant) <= MAX_ID_CHARS
                    and 0 <= self.shard | self.level | self.size_bytes <= MAX_NUMBER
                    and self.rows is None and self.columns == ""
                    and ((first is None and last is None)
                         or (first is not None and last is not None
                             and -_USUAL_SECONDS < first <= last < _USUAL_SECONDS)))
        except (TypeError, AttributeError):
            fits = False
        if not fits:
            self._look_closely()

    def _look_closely(self) -> None:
        """Raise `InvalidInput` that says what does not fit, if anything does not."""
        check_block_fields(self.id, self.tenant, self.shard, self.level, self.size_bytes)
        _check_contents(self)
        check_span(self)


def check_span(block: BlockMeta) -> None:
    """Raise `InvalidInput` unless a block has a first and a last time, or none."""
    first, last = block.min_time, block.max_time
    try:
        is_span = (first is None is last or (first is not None is not last
                   and math.isfinite(first) and math.isfinite(last) and first <= last))
    except (TypeError, OverflowError):
        is_span = False
    if not is_span:
        raise InvalidInput(f"block {block.id!r} holds data from {first!r} to {last!r}; give finite times, min_time <= "
                           f"max_time, or None for both")


def span_of(blocks: Iterable[BlockMeta]) -> tuple[float, float] | tuple[None, None]:
    """The oldest and the newest time of all these blocks. None, if one has no times: its data may be of any."""
    spans = [(block.min_time, block.max_time) for block in blocks]
    known = [(first, last) for first, last in spans if first is not None and last is not None]
    if not known or len(known) < len(spans):
        return None, None
    return min(first for first, _ in known), max(last for _, last in known)


@attrs.frozen(kw_only=True)
class BlockEntry:
    """A block as the compaction queue sees it.

    Attributes:
        index: the log index of the command that added it.
        appended_at: that command's time, seconds.
        id: the block's id.
        tenant: whose data.
        shard: >= 0.
        level: >= 0.
        size_bytes: >= 0; counts towards `LevelConfig.max_job_bytes`.
        time: the age of the data, seconds, for the time-range limit; `None` takes it from the id if that is a ULID.

    Raises:
        InvalidInput: a field is out of its range.
    """

    index: int
    appended_at: float
    id: str
    tenant: str
    shard: int
    level: int
    size_bytes: int = 0
    time: float | None = None

    def __attrs_post_init__(self) -> None:
        check_block_fields(self.id, self.tenant, self.shard, self.level, self.size_bytes)


def check_block_fields(block_id: str, tenant: str, shard: int, level: int, size_bytes: int) -> None:
    """Raise `InvalidInput` unless the fields are those of a block."""
    try:
        _check_block_fields(block_id, tenant, shard, level, size_bytes)
    except (TypeError, AttributeError):
        raise InvalidInput(f"id {block_id!r}, tenant {tenant!r}, shard {shard!r}, level {level!r} and size_bytes "
                           f"{size_bytes!r} are no block's; give texts for the first two, and whole numbers") from None


def _check_block_fields(block_id: str, tenant: str, shard: int, level: int, size_bytes: int) -> None:
    if not block_id or not block_id.isprintable() or len(block_id) > MAX_ID_CHARS:
        raise InvalidInput(f"{block_id!r} is not a block id; give 1 to {MAX_ID_CHARS} printable characters")
    if len(tenant) > MAX_ID_CHARS or not tenant.isprintable():
        raise InvalidInput(f"{tenant!r} is not a tenant; give at most {MAX_ID_CHARS} printable characters")
    if not 0 <= shard | level | size_bytes <= MAX_NUMBER:
        raise InvalidInput(f"block {block_id!r} has shard {shard!r:.30}, level {level!r:.30} and {size_bytes!r:.30} "
                           f"bytes; give 0 to {MAX_NUMBER} each")


def _check_contents(block: BlockMeta) -> None:
    if block.rows is not None and not (type(block.rows) is int and 0 <= block.rows <= MAX_NUMBER):
        raise InvalidInput(f"block {block.id!r} has {block.rows!r:.30} rows; give 0 to {MAX_NUMBER}, or None")
    if type(block.columns) is not str or len(block.columns) > MAX_ID_CHARS or not block.columns.isprintable():
        raise InvalidInput(f"block {block.id!r} has the columns {block.columns!r:.100}; give at most {MAX_ID_CHARS} "
                           f"printable characters that stand for them")


@attrs.frozen(kw_only=True, slots=False)
class BlockTombstones:
    """Blocks whose data lives on elsewhere (or nowhere): their objects are to be deleted.

    Attributes:
        name: unique; the job's name if a completed job left them.
        tenant: whose blocks.
        shard: where.
        level: the blocks' level.
        blocks: their ids.
    """

    name: str
    tenant: str
    shard: int
    level: int
    blocks: tuple[str, ...]


@attrs.frozen(kw_only=True)
class ShardTombstone:
    """Everything of a tenant and shard in a span of time is to be deleted (retention).

    Attributes:
        name: unique.
        tenant: whose blocks.
        shard: where.
        timestamp: start of the span, seconds.
        duration: length of the span, seconds.
    """

    name: str
    tenant: str
    shard: int
    timestamp: float
    duration: float


Tombstone: TypeAlias = BlockTombstones | ShardTombstone
"""What is to be deleted, once it is old enough."""


class JobStatus(enum.IntEnum):
    """The status on the wire; the numbers of the first three are Pyroscope's."""

    UNSPECIFIED = 0
    """Unassigned. Never sent by a worker."""
    IN_PROGRESS = 1
    """Assigned; from a worker: renew my lease."""
    SUCCESS = 2
    """From a worker: done, here are the results. Never stored."""
    FAILED = 3
    """From a worker: I could not do it; counts as a failure, and the job waits for its back-off. Never stored."""
    RELEASED = 4
    """From a worker: I give it back unharmed; counts as no failure, unless it was so too often. Never stored."""


class JobPhase(enum.Enum):
    """The states of a job in Pyroscope's diagram, derived from a job's state and a time; never stored."""

    UNASSIGNED = "unassigned"
    IN_PROGRESS = "in progress"
    LEASE_EXPIRED = "lease expired"
    EXCLUDED = "excluded"


@made_quickly
@attrs.frozen(kw_only=True)
class JobPlan:
    """What a job is to do. Never changes.

    Attributes:
        name: the content hash of its sources with tenant, shard and level; unique.
        tenant: whose blocks.
        shard: where.
        compaction_level: the sources' level; the outputs' is one higher.
        source_blocks: ids in the order in which they are to be merged.
        tombstones: what the worker is to delete along the way.
        size_bytes: of the sources together, as far as they were given when the blocks were added.
    """

    name: str
    tenant: str
    shard: int
    compaction_level: int
    source_blocks: tuple[str, ...]
    tombstones: tuple[Tombstone, ...] = ()
    size_bytes: int = 0


@attrs.frozen(kw_only=True, slots=False)
class JobState:
    """How far a job has come.

    Attributes:
        name: the plan's name.
        compaction_level: the plan's level.
        status: `UNSPECIFIED` or `IN_PROGRESS` when stored.
        token: the fencing token: log index of the command that created, assigned or took back the job, and
            `SchedulerConfig.tokens_above` more; only grows.
        lease_expires_at: end of the lease, seconds; 0 if unassigned.
        added_at: when the job was created, seconds.
        failures: how often it was given up.
        sequence: its place in the order of creation.
        not_before: it is not assigned before this time (back-off), seconds.
        last_failure: what the last worker said that gave it up, if it said something.
        releases: how often it was given back since it last failed.
    """

    name: str
    compaction_level: int
    status: JobStatus = JobStatus.UNSPECIFIED
    token: int = 0
    lease_expires_at: float = 0.0
    added_at: float = 0.0
    failures: int = 0
    sequence: int = 0
    not_before: float = 0.0
    last_failure: str = ""
    releases: int = 0


class NoOutput(enum.Enum):
    """Why a job wrote nothing."""

    EMPTY = "empty"
    """The sources were read and hold nothing that is still wanted: they are deleted."""
    MISSING = "missing"
    """The sources were not found: they go to quarantine, where an operator sees them."""


@made_quickly
@attrs.frozen(kw_only=True)
class CompactedBlocks:
    """What a worker did.

    Attributes:
        tenant: the plan's.
        shard: the plan's.
        source_blocks: the ids that were read; sources of the plan that are not named here were not found.
        new_blocks: what was written, each one level above the sources.
        no_output: why nothing was written; `None` exactly if something was.
    """

    tenant: str
    shard: int
    source_blocks: tuple[str, ...]
    new_blocks: tuple[BlockMeta, ...] = ()
    no_output: NoOutput | None = None
