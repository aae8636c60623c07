# SPDX-License-Identifier: Apache-2.0
"""Puts and deletes: written to the staging token, acknowledged only if it still is the staging token afterwards.

A commit or a compaction seals the token before it reads it. So a write that finds its token still in place was made
before any seal, and is in whatever comes of it; one that does not may have come too late, and is made again in the new
token.

A delete of a key that nothing is known of writes nothing. But "nothing is known" must be true of the whole branch at
one moment, and a tombstone that this very delete left in a token that was sealed meanwhile proves nothing. Hence the
rule: once the token has changed, the tombstone is written whatever is found; and an empty answer counts only
if the record is the same afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from compactlib.errors import CompactlibError, InvalidInput
from compactlib.kv import OutcomeUnknown, SlowDown
from compactlib.kv.errors import PartlyWritten
from compactlib.kv.scan import own_bytes
from compactlib.staging.branches import FoundBranch
from compactlib.staging.context import StagingContext
from compactlib.staging.errors import (
    BranchNotFound,
    MetaRangeNotFound,
    PreconditionFailed,
    RangeNotFound,
    TooManyKeys,
    TooManyTries,
)
from compactlib.staging.names import StagingToken
from compactlib.staging.options import MAX_BATCH_KEYS
from compactlib.staging.reads import checked_keys
from compactlib.staging.staged import Staged
from compactlib.staging.values import MAX_PART_BYTES, Record, check_key
from compactlib.staging.view import BranchView


class Attempts:
    """The tries of one write: counts them, waits between them, and reads the branch before and after each.

    Args:
        context: the stores.
        branch: the branch's name.
        operation: for errors and events.

    Attributes:
        found: the branch as it was read last.
    """

    def __init__(self, context: StagingContext, branch: str, operation: str) -> None:
        self._context = context
        self._branch = branch
        self._operation = operation
        self._was_taken = False
        self._tries = 0
        self._backoff = context.branches.backoff()
        self.found: FoundBranch = context.branches.read(branch)

    def read_again(self) -> FoundBranch:
        """The branch as it is now, to be compared with `found`; always a fresh read."""
        return self._context.branches.read(self._branch)

    def confirm(self) -> FoundBranch:
        """The branch as it is now, after something was written to its token: read again and again.

        Raises:
            OutcomeUnknown: it cannot be read; what was written may be visible, or become so.
            BranchNotFound: there is no such branch any more.
        """
        self._was_taken = True
        now = self._context.branches.seen_after(self._branch, self.unknown(
            "what was written was taken, and whether the branch still names the token that took it cannot be seen"))
        token = self.found.record.staging_token
        if now is None or token not in now.record.tokens:
            # It may have been emptied and forgotten before this was written, which nothing would find then.
            self._context.mark_dropped(self._branch, (token,))
        if now is None:
            raise BranchNotFound(branch=self._branch)
        return now

    def unknown(self, detail: str) -> OutcomeUnknown:
        """The error of this write if it is not known what became of it."""
        return OutcomeUnknown(operation=self._operation, path=f"branch {self._branch!r}", detail=detail)

    @contextlib.contextmanager
    def kept_unknown(self) -> Iterator[None]:
        """What ends the block once a replaced token has taken what was written leaves the outcome unknown."""
        try:
            yield
        except (OutcomeUnknown, TooManyTries, PreconditionFailed, BranchNotFound):
            raise
        except CompactlibError as error:
            if self._was_taken:
                raise self.unknown(f"a token took what was written, was replaced, and the next try ended in {error}"
                                   ) from error
            raise

    def again(self, now: FoundBranch | None = None, *, refused: Exception | None = None) -> None:
        """Get ready for one more try.

        Args:
            now: the branch, if it was read just now.
            refused: what the store said, if it did not take the write; raised if this was the last try.

        Raises:
            TooManyTries: this was the last try.
        """
        self._tries += 1
        if self._tries >= self._context.options.max_write_tries:
            raise refused or TooManyTries(operation=self._operation, branch=self._branch, tries=self._tries)
        self._context.events.write_retried(self._branch, self._operation)
        self._backoff.wait()
        self.found = now or self.read_again()

    def after(self, error: SlowDown | PartlyWritten) -> None:
        """Get ready for one more try if the store took no more for now; raises anything else."""
        if not isinstance(error, SlowDown) and not isinstance(error.__cause__, SlowDown):
            raise error
        self.again(refused=error)

    def write(self, token: StagingToken, entries: Mapping[bytes, Staged], left: dict[bytes, Staged]) -> None:
        """Write to a token that was the staging token a moment ago.

        Args:
            token: which.
            entries: all that is to be in it.
            left: those that are not; what is written leaves it, so that the next try need not write it again.

        Raises:
            PartlyWritten: it ended after the first request of this try or of one before. `written` are the keys that
                the branch has: none, if the token was replaced meanwhile.
            CompactlibError: what the store raises for the first one.
        """
        try:
            self._context.tokens.set_many(token, left)
        except CompactlibError as error:
            cause: BaseException | None = error
            if isinstance(error, PartlyWritten):
                for key in error.written:
                    del left[key]
                cause = error.__cause__
            if len(left) == len(entries):
                raise
            held = self.confirm().record.staging_token == token
            written = tuple(key for key in entries if held and key not in left)
            raise PartlyWritten(written=written, left=len(entries) - len(written), detail=str(cause)) from cause


def put_many(context: StagingContext, branch: str, items: Mapping[bytes, bytes]) -> None:
    """Write records. One request for the branch, one for all records where the store can, one more for the branch.

    Raises:
        TooManyKeys: more than `MAX_BATCH_KEYS` were given.
        PartlyWritten: it ended between the requests that the store needs for so many.
        TooManyTries: the staging token was replaced under every try. Values may be visible.
    """
    if len(items) > MAX_BATCH_KEYS:
        raise TooManyKeys(count=len(items), limit=MAX_BATCH_KEYS)
    for key in items:
        check_key(key)
    staged = {key: Staged(record_of(data)) for key, data in items.items()}
    stage(context, branch, staged, Attempts(context, branch, "put"))


def record_of(data: bytes) -> Record:
    """The record of some data; a buffer is copied.

    Raises:
        InvalidInput: it is longer than `MAX_PART_BYTES`.
    """
    held = own_bytes(data)
    if len(held) > MAX_PART_BYTES:
        raise InvalidInput(f"a record of {len(held)} bytes was given, one holds at most {MAX_PART_BYTES}; split it, or "
                           f"keep the data elsewhere and a reference to it here")
    return Record.of(held)


def stage(context: StagingContext, branch: str, entries: Mapping[bytes, Staged], attempts: Attempts) -> None:
    """Write entries to the staging token until it was the staging token all along."""
    with attempts.kept_unknown():
        _stage(context, branch, entries, attempts)


def _stage(context: StagingContext, branch: str, entries: Mapping[bytes, Staged], attempts: Attempts) -> None:
    token: StagingToken | None = None
    left: dict[bytes, Staged] = {}
    while entries:
        if token != attempts.found.record.staging_token:
            token, left = attempts.found.record.staging_token, dict(entries)
        try:
            attempts.write(token, entries, left)
        except (SlowDown, PartlyWritten) as error:
            attempts.after(error)
            continue
        now = attempts.confirm()
        if now.record.staging_token == token:
            context.events.record_seen(branch, now.record)
            return
        attempts.again(now)


def delete_many(context: StagingContext, branch: str, keys: Iterable[bytes]) -> None:
    """Delete keys; one that does not exist is no error.

    One request for the branch, two for what its tokens hold of the keys, one for the tombstones, one more for the
    branch, where the store takes so many keys at once.

    Raises:
        TooManyKeys: more than `MAX_BATCH_KEYS` were given; nothing was deleted.
        PartlyWritten: as `put_many`; the keys of tombstones are among the written ones.
        TooManyTries: the branch changed under every try. Tombstones may be visible.
    """
    wanted = checked_keys(keys)
    attempts = Attempts(context, branch, "delete")
    with attempts.kept_unknown():
        _delete_many(context, branch, wanted, attempts)


def _delete_many(context: StagingContext, branch: str, wanted: Sequence[bytes], attempts: Attempts) -> None:
    first_token = attempts.found.record.staging_token
    while wanted:
        found = attempts.found
        hide_all = found.record.staging_token != first_token
        try:
            hidden, fresh = _hide(BranchView.of(context, branch, found.record), wanted, attempts, hide_all=hide_all)
        except (SlowDown, PartlyWritten) as error:
            attempts.after(error)
            continue
        except (MetaRangeNotFound, RangeNotFound) as error:
            now = attempts.read_again()
            if now.record.extends(found.record):
                raise
            attempts.again(now, refused=error)
            continue
        now = attempts.confirm() if hidden else attempts.read_again()
        token_held = now.record.staging_token == found.record.staging_token
        if now.record == found.record or (token_held and hidden == len(wanted)):
            if fresh:
                context.events.tombstones_written(branch, now.record, fresh)
            return
        attempts.again(now)


def _hide(view: BranchView, keys: Sequence[bytes], attempts: Attempts, *, hide_all: bool) -> tuple[int, int]:
    """Write tombstones for the keys of which any layer holds anything, or for all; gives how many, and how many of them
    were not known to be tombstones in the staging token before.
    """
    again = 0
    if not hide_all:
        found = view.find_many(keys)
        keys = [key for key, place in found.items() if place.layer is not None]
        again = sum(place.in_staging_token and place.record is None for place in found.values())
    tombstones = dict.fromkeys(keys, Staged(None))
    attempts.write(view.record.staging_token, tombstones, dict(tombstones))
    return len(keys), len(keys) - again
