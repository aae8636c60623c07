# SPDX-License-Identifier: Apache-2.0
"""Writes of keys: a write to the staging token is acknowledged only if the token is still the staging token afterwards.

A commit or a compaction seals the token before it reads it. So a write whose token is still in place was made before
any seal, and is in the result of the next seal. Any other write may have been too late, and is repeated in the new
token.

A delete of a key that no layer holds writes nothing. "No layer" must hold for the whole branch at one moment, so the
delete counts only if the record is unchanged afterwards. A tombstone in a sealed token counts as held: this same delete
may have written it after a commit had read the token. A reset of a key is a put of its state in HEAD, under the same
rules.

A conditional write is one `transact`: if the branch record and the cell in the staging token are unchanged, it writes
the entry. So of several writers one wins. An entry has the id of its write, so that a call whose `transact` got no
answer recognizes its own entry.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import attrs

from compactlib._arguments import own_bytes
from compactlib.errors import CompactlibError, InvalidInput
from compactlib.kv import OutcomeUnknown, PredicateFailed, SlowDown
from compactlib.kv.cell import Attempt, Fate, Found, Swap, resolve_unknown
from compactlib.kv.store import Exists
from compactlib.staging.context import StagingContext
from compactlib.staging.errors import (
    BranchNotFound,
    MetaRangeNotFound,
    PreconditionFailed,
    RangeNotFound,
    TooManyTries,
)
from compactlib.staging.names import token_partition
from compactlib.staging.record import BranchRecord
from compactlib.staging.results import ResetReport
from compactlib.staging.tokens import Staged, decode_staged, encode_staged, place_of
from compactlib.staging.values import MAX_PART_BYTES, Record, are_same, check_key
from compactlib.staging.view import BranchView, checked_keys

Expected: TypeAlias = Record | Exists | None
"""The expected state of a key: this record (by identity), any record (`EXISTS`), or no record (`None`)."""

Decide: TypeAlias = Callable[[Record | None], Staged | None]
"""Returns the entry to write for the record of a key, or `None` to write nothing. May be called several times."""


@attrs.frozen
class _Batch:
    """Entries for a staging token.

    Attributes:
        entries: by key.
        condition: the part of the record that must be unchanged afterwards.
        fresh: number of tombstones that the token did not have.
        result: of the call.
    """

    entries: Mapping[bytes, Staged]
    condition: Callable[[BranchRecord], object]
    fresh: int = 0
    result: Any = None


def _token(record: BranchRecord) -> object:
    return record.staging_token


def _token_and_head(record: BranchRecord) -> object:
    return record.staging_token, record.commit_id


def _all_of_it(record: BranchRecord) -> object:
    return record


def _write_until_held(context: StagingContext, branch: str, operation: str,
                      make: Callable[[BranchRecord], _Batch]) -> Any:
    """Write a batch until its condition holds afterwards, with waits between the tries. Return its result.

    Args:
        context: the stores.
        branch: the branch's name.
        operation: for errors and events.
        make: returns the batch for the branch's record as read last.
    """
    was_taken = False
    refused: CompactlibError | None = None
    record = context.branches.read(branch)
    try:
        for number in context.branches.tries():
            if number > 1:
                context.activity.retried(operation)
                record = context.branches.read(branch)
            refused = None
            try:
                batch = make(record)
                if batch.entries:
                    context.tokens.set_many(record.staging_token, batch.entries)
            except (MetaRangeNotFound, RangeNotFound) as error:
                if context.branches.read(branch).extends(record):
                    raise
                refused = error
                continue
            except (SlowDown, OutcomeUnknown) as error:
                if not isinstance(error, SlowDown) and not isinstance(error.__cause__, SlowDown):
                    raise
                was_taken = was_taken or isinstance(error, OutcomeUnknown)  # a part
                refused = error
                continue
            if batch.entries:
                was_taken = True
                now = _seen_after_write(context, branch, operation, record)
            else:
                now = context.branches.read(branch)
            context.activity.read(branch, now)
            if batch.condition(now) == batch.condition(record):
                if batch.fresh:
                    context.activity.wrote_tombstones(branch, now, batch.fresh)
                return batch.result
        raise refused or TooManyTries(operation=operation, branch=branch, tries=context.options.retries.tries)
    except (OutcomeUnknown, TooManyTries, BranchNotFound):
        raise
    except CompactlibError as error:
        if was_taken:
            raise _unknown(operation, branch, f"a token took the write and was replaced, and the next try raised "
                                              f"{error}") from error
        raise


def _seen_after_write(context: StagingContext, branch: str, operation: str, before: BranchRecord) -> BranchRecord:
    """Return the present record after a write to its token; re-read until the store answers."""
    def read() -> BranchRecord | None:
        try:
            return context.branches.read(branch)
        except BranchNotFound:
            return None

    now = resolve_unknown(read, _unknown(
        operation, branch, "a token took the write, and whether the branch still names the token cannot be read"),
        clock=context.clock, rng=context.rng)
    if now is None or before.staging_token not in now.tokens:
        # The cleanup may have emptied the token before this write.
        with contextlib.suppress(CompactlibError):
            context.tokens.mark_late(branch, before.staging_token)
    if now is None:
        raise BranchNotFound(branch=branch)
    return now


def _unknown(operation: str, branch: str, detail: str) -> OutcomeUnknown:
    return OutcomeUnknown(operation=operation, path=f"branch {branch!r}", detail=detail)


def put_many(context: StagingContext, branch: str, items: Mapping[bytes, bytes]) -> None:
    """Write records; see `Branch.put_many`."""
    checked_keys(items)
    batch = _Batch({key: Staged(_record_of(data)) for key, data in items.items()}, _token)
    _write_until_held(context, branch, "put", lambda _: batch)


def _record_of(data: bytes) -> Record:
    """Return the record of data; copies a buffer."""
    held = own_bytes(data)
    if len(held) > MAX_PART_BYTES:
        raise InvalidInput(f"a record of {len(held)} bytes was given; the limit is {MAX_PART_BYTES}; split it, or "
                           f"store the data elsewhere and a reference to it here")
    return Record.of(held)


def delete_many(context: StagingContext, branch: str, keys: Iterable[bytes]) -> None:
    """Delete keys; see `Branch.delete_many`."""
    wanted = checked_keys(keys)

    def make(record: BranchRecord) -> _Batch:
        places = BranchView.of(context, branch, record).find_many(wanted)
        hidden = [key for key, place in places.items() if place.layer is not None]
        known = sum(place.in_staging_token and place.record is None for place in places.values())
        return _Batch(dict.fromkeys(hidden, Staged(None)), _token if len(hidden) == len(wanted) else _all_of_it,
                      len(hidden) - known)

    _write_until_held(context, branch, "delete", make)


def reset_key(context: StagingContext, branch: str, key: bytes) -> ResetReport:
    """Restore a key to its state in HEAD; see `Branch.reset_key`."""
    check_key(key)

    def make(record: BranchRecord) -> _Batch:
        view, committed = BranchView.of(context, branch, record), context.committed
        place = view.find_staged((key,))[key]
        head = committed.get(view.head, key)
        if place.layer is None and (view.base == view.head or committed.get(view.base, key) == head):
            return _Batch({}, _all_of_it, result=ResetReport(why="the key is as in HEAD"))
        is_fresh = head is None and not (place.in_staging_token and place.record is None)
        return _Batch({key: Staged(head)}, _token_and_head, int(is_fresh),
                      ResetReport(records_restored=int(head is not None), tombstones=int(head is None)))

    report: ResetReport = _write_until_held(context, branch, "reset_key", make)
    return report


# ---------------------------------------------------------------------------------------------- conditional writes


def put_if(context: StagingContext, branch: str, key: bytes, data: bytes, expected: Expected) -> None:
    """Write a record if the key is in the expected state; see `Branch.put_if`."""
    staged = Staged(_record_of(data))
    _write_conditionally(context, branch, key, _expecting(branch, key, expected, staged), "put_if")


def delete_if(context: StagingContext, branch: str, key: bytes, expected: Expected) -> None:
    """Write a tombstone if the key is in the expected state; see `Branch.delete_if`."""
    record = _write_conditionally(context, branch, key, _expecting(branch, key, expected, Staged(None)), "delete_if")
    context.activity.wrote_tombstones(branch, record, 1)


def update(context: StagingContext, branch: str, key: bytes, change: Callable[[Record | None], bytes | None]) -> None:
    """Replace a key's data by a function of its record; see `Branch.update`."""
    def decide(record: Record | None) -> Staged | None:
        data = change(record)
        return None if data is None else Staged(_record_of(data))

    _write_conditionally(context, branch, key, decide, "update")


def _expecting(branch: str, key: bytes, expected: Expected, staged: Staged) -> Decide:
    def decide(record: Record | None) -> Staged:
        if not (record is not None if isinstance(expected, Exists) else are_same(record, expected)):
            raise PreconditionFailed(branch=branch, key=key)
        return staged

    return decide


def _write_conditionally(context: StagingContext, branch: str, key: bytes, decide: Decide, operation: str,
                         ) -> BranchRecord:
    """Write the entry that `decide` returns, in one step. Return the branch's record before."""
    check_key(key)
    for number in context.branches.tries():
        if number > 1:
            context.activity.retried(operation)
        try:
            return _try_conditionally(context, branch, key, decide, operation)
        except PredicateFailed:
            continue  # the branch has another staging token
    raise TooManyTries(operation=operation, branch=branch, tries=context.options.retries.tries)


def _try_conditionally(context: StagingContext, branch: str, key: bytes, decide: Decide, operation: str,
                       ) -> BranchRecord:
    token, write_id = context.branches.read(branch).staging_token, context.tokens.draw_write_id()
    home, cell = context.branches.cell(branch), (token_partition(token), key)
    place = place_of(token, key)

    def swapped(branch_record: BranchRecord, cells: Found) -> Swap[BranchRecord]:
        if branch_record.staging_token != token:
            raise PredicateFailed(partition=token_partition(branch_record.staging_token), key=key)
        if cell in cells:
            record = decode_staged(cells[cell].value, place).record
        else:
            record = BranchView.of(context, branch, branch_record).find_many((key,), first_layer=1)[key].record
        staged = decide(record)
        return Swap(branch_record, {} if staged is None else {
            cell: encode_staged(attrs.evolve(staged, write_id=write_id))})

    def judge(attempt: Attempt[BranchRecord], cells: Found) -> Fate:
        now = cells.get(cell)
        if now is not None and decode_staged(now.value, place).write_id == write_id:
            return Fate.HAPPENED
        if home not in cells or now != attempt.found.get(cell):
            return Fate.UNKNOWN
        # The branch record has changed, so the write cannot take effect later. If the record does not name the token,
        # the cleanup may have emptied the token, and the cell proves nothing.
        return Fate.LOST if token in context.branches.record_in(cells, branch).tokens else Fate.UNKNOWN

    return context.branches.swap(branch, swapped, operation=operation, also_read=[cell], judge=judge)
