# SPDX-License-Identifier: Apache-2.0
"""`Branch`: reads, writes, commits and resets of one branch.

A write to the staging token is acknowledged only if the token is still the staging token afterwards. A commit or a
compaction seals the token before it reads it. So a write whose token is still in place was made before any seal, and is
in the result of the next seal. Any other write may have been too late, and is repeated in the new token.

A delete of a key that no layer holds writes nothing. "No layer" must hold for the whole branch at one moment, so the
delete counts only if the record is unchanged afterwards. A tombstone in a sealed token counts as held: this same delete
may have written it after a commit had read the token.

A conditional write is one `transact`: if the branch record and the cell in the staging token are unchanged, it writes
the entry. So of several writers one wins. An entry has the id of its write, so that a call whose `transact` got no
answer recognizes its own entry. A reset of a key is a conditional write of its state in HEAD.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias, TypeVar

import attrs

from compactlib._arguments import own_bytes
from compactlib.errors import CompactlibError, InvalidInput
from compactlib.kv import OutcomeUnknown, PredicateFailed, SlowDown
from compactlib.kv.cell import Found, Swap, resolve_unknown
from compactlib.kv.store import Exists
from compactlib.staging.commits import Commit, copied
from compactlib.staging.errors import (
    BranchNotFound,
    MetaRangeNotFound,
    PreconditionFailed,
    RangeNotFound,
    RecordNotFound,
)
from compactlib.staging.head import BranchHead
from compactlib.staging.record import BranchRecord
from compactlib.staging.results import DiffPage, Listed, ListPage, ResetReport
from compactlib.staging.tokens import WRITE_ID_BYTES, Staged, decode_staged, encode_staged, place_of, set_staged
from compactlib.staging.values import MAX_PART_BYTES, CommitId, Difference, Record, are_same, check_key, token_partition
from compactlib.staging.view import BranchView, CommittedView, ListRequest, checked_keys, consistently

PageT = TypeVar("PageT", ListPage, DiffPage)

Decide: TypeAlias = Callable[[Record | None, BranchRecord], Staged | None]
"""Returns the entry to write for the newest record of a key; `None`: none. May be called several times."""


@attrs.frozen
class _Batch:
    """Entries for a staging token. Either the token or the whole record must be unchanged after their write.

    `fresh` counts the tombstones that the token did not have.
    """

    entries: Mapping[bytes, Staged]
    needs_same_record: bool = False
    fresh: int = 0


def _record_of(data: bytes) -> Record:
    """Return the record of data; copies a buffer."""
    held = own_bytes(data)
    if len(held) > MAX_PART_BYTES:
        raise InvalidInput(f"a record of {len(held)} bytes was given; the limit is {MAX_PART_BYTES}; split it, or "
                           f"store the data elsewhere and a reference to it here")
    return Record.of(held)


def _pages(read: Callable[[bytes | None], PageT]) -> Iterator[PageT]:
    """Yield all pages; `read` returns the page after a key."""
    page = read(None)
    yield page
    while page.next_after is not None:
        page = read(page.next_after)
        yield page


class Branch(BranchHead):
    """One branch of a `Repository`. It has no state: threads may share it, and the branch need not exist.

    Every method may raise `BranchNotFound`, the errors of the key-value store and the object store, `CorruptData` for
    damaged bytes and `Unsupported` for bytes of a newer release. A read that fails raises and returns nothing.
    """

    @property
    def name(self) -> str:
        """The branch's name."""
        return self._name

    @property
    def repository(self) -> str:
        """The name of its repository."""
        return self._context.repository

    # --- reads

    def get(self, key: bytes) -> Record:
        """Return the newest record of a key: staged, compacted or committed.

        Costs a request for the branch, a request for the staging token, a request for all sealed tokens, at most one
        range, and a second request for the branch.

        Raises:
            RecordNotFound: the key has no record.
            Busy: the branch changed under every try.
        """
        check_key(key)
        record = consistently(self._context, self._name, lambda view: view.find_many((key,))[key],
                              holds=lambda place: place.layer == 0).record
        if record is None:
            raise RecordNotFound(ref=self._name, key=key)
        return record

    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, Record]:
        """Return the records of the keys that exist, each as of some moment of the call.

        Costs two requests for the branch, one for the staging token, one for every ten sealed tokens, and the ranges;
        more where the store reads fewer keys in one request.

        Raises:
            InvalidInput: more than 1000 were given.
        """
        wanted = checked_keys(keys)
        found = consistently(self._context, self._name, lambda view: view.find_many(wanted))
        return {key: place.record for key, place in found.items() if place.record is not None}

    def head(self) -> CommittedView:
        """Return a view of the present HEAD, without uncommitted changes. It does not follow the branch."""
        return CommittedView.of(self._context, self._name)

    def list(self, *, prefix: bytes = b"", delimiter: bytes = b"", after: bytes | None = None, limit: int = 1000,
             ) -> ListPage:
        """Return one page of the branch's keys, in order.

        Args:
            prefix: only keys with this prefix.
            delimiter: fold the keys that contain it after the prefix to common prefixes.
            after: begin after this key, or after all keys with this common prefix: `next_after` of the previous page.
            limit: number of entries, 1 to 10,000.

        Raises:
            InvalidInput: `limit` is out of its range.
        """
        request = ListRequest(prefix=prefix, delimiter=delimiter, after=after, limit=limit,
                              max_scanned=self._context.options.max_scanned)

        def read(view: BranchView) -> tuple[ListPage, BranchRecord]:
            return view.page(request), view.record

        page, record = consistently(self._context, self._name, read)
        self._context.count_tombstones(self._name, record, listed=page.tombstones)
        return page

    def entries(self, *, prefix: bytes = b"", delimiter: bytes = b"", page_limit: int = 1000) -> Iterator[Listed]:
        """Yield all keys in order, page by page, each as of some moment of the call for its page."""
        for page in _pages(lambda after: self.list(prefix=prefix, delimiter=delimiter, after=after, limit=page_limit)):
            yield from page.entries

    def diff(self, *, prefix: bytes = b"", after: bytes | None = None, limit: int = 1000) -> DiffPage:
        """Return one page of the uncommitted changes: the keys that the branch reads differently than HEAD.

        Args:
            prefix: only keys with this prefix.
            after: begin after this key.
            limit: number of differences, 1 to 10,000.
        """
        request = ListRequest(prefix=prefix, after=after, limit=limit, max_scanned=self._context.options.max_scanned)
        return consistently(self._context, self._name, lambda view: view.diff_page(request))

    def differences(self, *, prefix: bytes = b"", page_limit: int = 1000) -> Iterator[Difference]:
        """Yield all uncommitted changes, page by page."""
        for page in _pages(lambda after: self.diff(prefix=prefix, after=after, limit=page_limit)):
            yield from page.differences

    def is_dirty(self) -> bool:
        """Return whether the branch has uncommitted changes. Stops at the first."""
        return consistently(self._context, self._name, lambda view: view.first_uncommitted() is not None)

    # --- writes

    def put(self, key: bytes, data: bytes) -> None:
        """Write a record. Costs three requests: the branch, the record, and the branch again.

        Raises:
            Busy: the staging token was replaced during every try; the value may be visible (G4).
            OutcomeUnknown: the store did not answer; the value may be visible now or later.
        """
        self.put_many({key: data})

    def put_many(self, items: Mapping[bytes, bytes]) -> None:
        """Write up to 1000 records and acknowledge them together. They do not become visible in one step.

        Costs three requests; more for more than 4 MiB, and where the store writes fewer keys in one request.

        Raises:
            InvalidInput: more were given; nothing was written.
            OutcomeUnknown: the store failed; some may be written. Repeat the call.
        """
        checked_keys(items)
        batch = _Batch({key: Staged(_record_of(data)) for key, data in items.items()})
        self._write_until_held("put", lambda _: batch)

    def put_if(self, key: bytes, data: bytes, expected: Record | Exists | None) -> None:
        """Write a record if the key has the expected state: a record (by identity), `EXISTS`, or `None` (no record).

        Raises:
            PreconditionFailed: the key has another state; nothing was written.
            OutcomeUnknown: the store did not answer, and the outcome can no longer be read.
        """
        staged = Staged(_record_of(data))
        self._write_conditionally(key, self._expecting(key, expected, staged), "put_if")

    def update(self, key: bytes, change: Callable[[Record | None], bytes | None]) -> None:
        """Replace a key's data by a function of its record, atomically against `update`, `put_if` and `delete_if`.

        Args:
            key: the key.
            change: returns the new data for the record or `None`; returns `None` to write nothing. May be called
                several times.
        """
        def decide(record: Record | None, _: BranchRecord) -> Staged | None:
            data = change(record)
            return None if data is None else Staged(_record_of(data))

        self._write_conditionally(key, decide, "update")

    def delete(self, key: bytes) -> None:
        """Delete a key. A key that does not exist is no error; a key that no layer holds writes nothing."""
        self.delete_many((key,))

    def delete_many(self, keys: Iterable[bytes]) -> None:
        """Delete up to 1000 keys and acknowledge them together. Costs two or three requests more than `put_many`.

        Raises:
            InvalidInput: more were given; nothing was deleted.
            OutcomeUnknown: as for `put_many`.
        """
        wanted = checked_keys(keys)

        def make(record: BranchRecord) -> _Batch:
            places = BranchView.of(self._context, record).find_many(wanted)
            hidden = [key for key, place in places.items() if place.layer is not None]
            known = sum(place.layer == 0 and place.record is None for place in places.values())
            return _Batch(dict.fromkeys(hidden, Staged(None)), len(hidden) < len(wanted), len(hidden) - known)

        self._write_until_held("delete", make)

    def delete_if(self, key: bytes, expected: Record | Exists) -> None:
        """Delete a key if it has the expected state; errors as for `put_if`."""
        record = self._write_conditionally(key, self._expecting(key, expected, Staged(None)), "delete_if")
        self._context.count_tombstones(self._name, record, written=1)

    def reset_key(self, key: bytes) -> ResetReport:
        """Restore one key to its state in HEAD."""
        context, report = self._context, ResetReport()

        def decide(record: Record | None, branch: BranchRecord) -> Staged | None:
            nonlocal report
            before = context.committed.get(context.commits.metarange_of(branch.commit_id), key)
            if record == before:
                report = ResetReport(why="the key is as in HEAD")
                return None
            report = ResetReport(records_restored=int(before is not None), tombstones=int(before is None))
            return Staged(before)

        found = self._write_conditionally(key, decide, "reset_key")
        context.count_tombstones(self._name, found, written=report.tombstones)
        return report

    # --- about the branch

    def record(self) -> BranchRecord:
        """Return the branch's present record: its HEAD and layers. One request."""
        return self._context.branches.read(self._name)

    def log(self) -> Iterator[tuple[CommitId, Commit]]:
        """Yield HEAD and its ancestors, children before parents."""
        history = self._context.commits.history(self.record().commit_id)
        return ((commit_id, copied(commit)) for commit_id, commit in history)

    # --- writes to tokens

    def _write_until_held(self, operation: str, make: Callable[[BranchRecord], _Batch]) -> None:
        """Write the batch of the record until its condition holds afterwards."""
        context, was_taken = self._context, False
        refused: CompactlibError | None = None
        record = self.record()
        try:
            for number in context.cells.tries():
                if number > 1:
                    record = self.record()
                refused = None
                try:
                    batch = make(record)
                    if batch.entries:
                        set_staged(context.store, record.staging_token, batch.entries)
                except (MetaRangeNotFound, RangeNotFound) as error:
                    if self.record().extends(record):
                        raise
                    refused = error
                    continue
                except (SlowDown, OutcomeUnknown) as error:
                    if not isinstance(error, SlowDown) and not isinstance(error.__cause__, SlowDown):
                        raise
                    was_taken = was_taken or isinstance(error, OutcomeUnknown)  # a part
                    refused = error
                    continue
                was_taken = was_taken or bool(batch.entries)
                now = self._seen_after_write(operation, record) if batch.entries else self.record()
                if now == record if batch.needs_same_record else now.staging_token == record.staging_token:
                    context.count_tombstones(self._name, now, written=batch.fresh)
                    return
            if refused is not None:
                raise refused
        except (OutcomeUnknown, BranchNotFound):
            raise
        except CompactlibError as error:
            if was_taken:
                raise self._unknown(operation, f"a token took the write and was replaced, and the next try raised "
                                               f"{error}") from error
            raise
        raise context.overtaken(operation, self._name)

    def _seen_after_write(self, operation: str, before: BranchRecord) -> BranchRecord:
        """Return the present record after a write to its token; re-read until the store answers."""
        def read() -> BranchRecord | None:
            try:
                return self.record()
            except BranchNotFound:
                return None

        now = resolve_unknown(read, self._unknown(
            operation, "a token took the write, and whether the branch still names the token cannot be read"),
            clock=self._context.clock, rng=self._context.rng)
        if now is None or before.staging_token not in now.tokens:
            # The cleanup may have emptied the token before this write.
            with contextlib.suppress(CompactlibError):
                self._context.branches.mark_late(self._name, before.staging_token)
        if now is None:
            raise BranchNotFound(branch=self._name)
        return now

    def _unknown(self, operation: str, detail: str) -> OutcomeUnknown:
        return OutcomeUnknown(operation=operation, path=f"branch {self._name!r}", detail=detail)

    def _expecting(self, key: bytes, expected: Record | Exists | None, staged: Staged) -> Decide:
        def decide(record: Record | None, _: BranchRecord) -> Staged:
            if not (record is not None if isinstance(expected, Exists) else are_same(record, expected)):
                raise PreconditionFailed(branch=self._name, key=key)
            return staged

        return decide

    def _write_conditionally(self, key: bytes, decide: Decide, operation: str) -> BranchRecord:
        """Write the entry that `decide` returns, in one step. Return the branch's record before."""
        check_key(key)
        for _ in self._context.cells.tries():
            with contextlib.suppress(PredicateFailed):  # the branch has another staging token
                return self._try_conditionally(key, decide, operation)
        raise self._context.overtaken(operation, self._name)

    def _try_conditionally(self, key: bytes, decide: Decide, operation: str) -> BranchRecord:
        context, branches = self._context, self._context.branches
        token, write_id = self.record().staging_token, context.rng.randbytes(WRITE_ID_BYTES)
        home, cell = branches.address(self._name), (token_partition(token), key)
        place = place_of(token, key)

        def swapped(record: BranchRecord, cells: Found) -> Swap[BranchRecord]:
            if record.staging_token != token:
                raise PredicateFailed(partition=token_partition(record.staging_token), key=key)
            if cell in cells:
                found = decode_staged(cells[cell].value, place).record
            else:
                found = BranchView.of(context, record).find_many((key,), first_layer=1)[key].record
            staged = decide(found, record)
            return Swap(record, {} if staged is None else {
                cell: encode_staged(attrs.evolve(staged, write_id=write_id))})

        def judge(before: Found, _: Swap[BranchRecord], cells: Found) -> bool | None:
            now = cells.get(cell)
            if now is not None and decode_staged(now.value, place).write_id == write_id:
                return True
            if home not in cells or now != before.get(cell):
                return None
            # No one deletes an entry of a token that the record names. If it does not name the token, the cleanup may
            # have emptied the token, and the cell proves nothing.
            return False if token in branches.record_in(cells, self._name).tokens else None

        return branches.swap(self._name, swapped, operation=operation, also_read=[cell], judge=judge)

    def __repr__(self) -> str:
        return f"Branch({self._name!r} of {self._context.repository!r})"
