# SPDX-License-Identifier: Apache-2.0
"""Recovery: from the log's records alone to the retained history, with the proof that nothing is missing.

The log must hold a record for every version from its earliest to its latest, the first one a snapshot if it was ever
cut, and none above. Anything else is an error that names the key; a shorter history is never taken for the whole.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from compactlib._arguments import refuses_misfits
from compactlib.catalog.errors import ObjectNotFound, RecordDamaged, RecordMissing
from compactlib.catalog.log.keys import update_key
from compactlib.catalog.log.log_model import LogState
from compactlib.catalog.log.records import Update
from compactlib.catalog.log.update_log import UpdateLog
from compactlib.catalog.schema.catalog import EMPTY, Catalog
from compactlib.catalog.schema.versions import RetainedVersions
from compactlib.errors import Busy

_MAX_LOOKS = 100
_NEVER = 2**31 - 1


@refuses_misfits
def recover_history(log: UpdateLog) -> RetainedVersions:
    """The history that the log holds; version 0 alone if the log is empty. O(retained versions), in pages.

    Others may append and compact at the same time: recovery then looks again. Meanwhile the process, and one
    that is forked from it then, collects young objects alone; whether it collects at all stays the host's.

    Raises:
        RecordMissing: a version, a mark or a piece of a snapshot is not there.
        RecordDamaged: a record cannot be read, or contradicts another one.
        RecordTooNew: a later release wrote a record.
        Busy: the log was cut again and again while it was read.
    """
    for _ in range(_MAX_LOOKS):
        state = log.state()
        if state is None:
            return RetainedVersions()
        try:
            with _without_full_collections():
                view = _replayed(log, state)
        except (RecordMissing, RecordDamaged):
            if _was_cut(log, state):
                continue
            raise
        above = log.updates_above(state.latest)
        if above is None:
            return view
        again = log.state()
        if again is not None and again.latest == state.latest:
            raise RecordDamaged(key="latest", offset=0, expected=f"at least {above}, the version of a record",
                                found=str(state.latest))
    raise Busy(f"the catalog's log was cut or grew {_MAX_LOOKS} times while it was read; try when there is less load")


def _was_cut(log: UpdateLog, before: LogState) -> bool:
    again = log.state()
    return again is not None and again.earliest != before.earliest


@contextmanager
def _without_full_collections() -> Iterator[None]:
    """Put off full collections of cycles: a history has none, and each would look at all versions made so far.

    Whoever finds them put off leaves them so, and nobody takes `_NEVER` for what was there before: of several at once
    the first to end puts the host's thresholds back, and a threshold that the host has set meanwhile stays.
    """
    before = gc.get_threshold()
    if before[2] == _NEVER:
        yield
        return
    try:
        gc.set_threshold(before[0], before[1], _NEVER)
        yield
    finally:
        if gc.get_threshold()[2] == _NEVER:
            gc.set_threshold(*before)


def _replayed(log: UpdateLog, state: LogState) -> RetainedVersions:
    first: list[Catalog] = [] if state.compacted else [EMPTY]
    catalogs = first
    for record in log.read(state.earliest, state.latest):
        version = record.version
        if isinstance(record, Update):
            if version == state.earliest and state.compacted:
                raise _contradiction(version, "a snapshot, since the log was cut here", "an update")
            catalogs.append(applied(record, catalogs[-1]))
        elif version != state.earliest or not state.compacted:
            raise _contradiction(version, "an update", "a snapshot above the earliest version")
        else:
            catalogs.append(record)
    return RetainedVersions(catalogs)


def applied(update: Update, before: Catalog) -> Catalog:
    """The catalog after an update.

    Raises:
        RecordDamaged: the update does not fit the catalog before it.
    """
    if update.activation <= before.activation:
        raise _contradiction(update.version, f"an activation above {before.activation}", str(update.activation))
    try:
        return update.applied_to(before)
    except ObjectNotFound as error:
        raise _contradiction(update.version, f"changes of version {before.version}", str(error)) from error


def _contradiction(version: int, expected: str, found: str) -> RecordDamaged:
    return RecordDamaged(key=update_key(version).decode(), offset=12, expected=expected, found=found)
