# SPDX-License-Identifier: Apache-2.0
"""Recovery: from the log's records alone to the retained history, with the proof that nothing is missing.

The log must hold a record for every version from its earliest to its latest, the first one a snapshot if it was ever
cut, and none above. Anything else is an error that names the key; a shorter history is never taken for the whole.
"""

from __future__ import annotations

import attrs

from compactlib.catalog.errors import ObjectNotFound, RecordDamaged, RecordMissing
from compactlib.catalog.log.keys import update_key
from compactlib.catalog.log.log_model import LogState
from compactlib.catalog.log.records import CatalogT, RecordType, Update, decode_update, unseal
from compactlib.catalog.log.update_log import UpdateLog
from compactlib.catalog.model.timestamp import Timestamp
from compactlib.catalog.schema.catalog import EMPTY, Catalog, GrowingCatalog
from compactlib.catalog.schema.versions import RetainedVersions, Step
from compactlib.errors import Busy

UPDATES_BETWEEN = 1000
"""At least so many updates lie between two catalogs that a recovery makes; more where a catalog has more objects."""
_MAX_LOOKS = 100


def recover_history(log: UpdateLog) -> RetainedVersions:
    """The history that the log holds; version 0 alone if the log is empty. O(retained versions), in pages.

    Others may append and compact at the same time: recovery then looks again.

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


@attrs.define(eq=False)
class _Undecoded:
    """An update that was decoded once and found to fit: its record takes less memory than what it says.

    Never changed, but not frozen either: that takes three times as long to make, of so many.
    """

    key: bytes
    record: bytes
    version: int
    activation: Timestamp

    def applied_to(self, catalog: Catalog) -> Catalog:
        """See `Step.applied_to`."""
        return decode_update(self.key, unseal(self.key, self.record, RecordType.UPDATE)[1]).applied_to(catalog)


def _replayed(log: UpdateLog, state: LogState) -> RetainedVersions:
    steps: list[Catalog | Step] = [] if state.compacted else [EMPTY]
    growing = GrowingCatalog(EMPTY)
    next_made = 0
    for version, key, stored in log.stored(state.earliest, state.latest):
        record = log.records.decode(version, key, stored)
        if isinstance(record, Update):
            if version == state.earliest and state.compacted:
                raise _contradiction(version, "a snapshot, since the log was cut here", "an update")
            applied(record, growing)
            steps.append(_Undecoded(key, stored, version, record.activation))
            if version >= next_made or version == state.latest:
                # As many changes as it has objects cost as much as to make it, and nobody waits for more than that.
                steps[-1] = _settled(growing)
                next_made = version + max(UPDATES_BETWEEN, len(growing))
        elif version != state.earliest or not state.compacted:
            raise _contradiction(version, "an update", "a snapshot above the earliest version")
        else:
            steps.append(record)
            growing = GrowingCatalog(record)
    return RetainedVersions(steps)


def _settled(growing: GrowingCatalog) -> Catalog:
    try:
        return growing.settled()
    except ObjectNotFound as error:
        raise _contradiction(growing.version, "indexes of tables that are there", str(error)) from error


def applied(update: Update, before: CatalogT) -> CatalogT:
    """The catalog after an update.

    Raises:
        RecordDamaged: the update does not fit the catalog before it.
    """
    version = before.version
    if update.activation <= before.activation:
        raise _contradiction(update.version, f"an activation above {before.activation}", str(update.activation))
    try:
        return update.applied_to(before)
    except ObjectNotFound as error:
        raise _contradiction(update.version, f"changes of version {version}", str(error)) from error


def _contradiction(version: int, expected: str, found: str) -> RecordDamaged:
    return RecordDamaged(key=update_key(version).decode(), offset=12, expected=expected, found=found)
