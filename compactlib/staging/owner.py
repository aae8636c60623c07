# SPDX-License-Identifier: Apache-2.0
"""Who may collect the ranges of an object store: the repository that owns them, in the place of its catalogue.

A collection deletes the files that the branch records do not name. With the records of an empty catalogue, of another
repository, or of a copy without the latest commits it would delete live ranges. Therefore:

1. A repository has an id, drawn at random, in its catalogue. The prefix of the ranges has an owner's entry: the id of a
   repository, and the place of its catalogue as the key-value store reports it. The catalogue has the id of the entry.
2. A collection is allowed if all three agree, and is refused otherwise.
3. A repository takes ranges without an owner only while there are no ranges, and only if its catalogue never owned
   others and its store reports a place.
4. In every other case an operator decides (`adopt`). The latest adoption counts.
5. A collection checks the owner at its start, and before each batch of deletes. After an adoption an earlier owner may
   still delete one batch of files that it did not need.
"""

from __future__ import annotations

import contextlib

import attrs

from compactlib.codec import JsonCodec
from compactlib.errors import Stale
from compactlib.kv.cell import Cell
from compactlib.objects.register import ObjectRegister, Version
from compactlib.staging.errors import RangesNotOwned
from compactlib.staging.ranges.files import METARANGES, RANGES, RangeFiles
from compactlib.staging.record import Cells
from compactlib.staging.values import IDENTITY


@attrs.frozen(kw_only=True)
class Identity:
    """The random id of a catalogue's repository, and the id of the owner's entry of its ranges, once it owns some."""

    id: str
    ranges: str | None


@attrs.frozen(kw_only=True)
class Owner:
    """The owner of the ranges of a prefix: the id of a repository, and the place of its catalogue, if it is known.

    `repository`, its name, is for people.
    """

    id: str
    repository: str
    place: str | None


_OWNERS: JsonCodec[Owner] = JsonCodec(Owner)


@attrs.frozen
class _Seen:
    """The entries in the two stores; `place` is the catalogue's present place."""

    identity: Identity | None
    version: Version | None
    owner: Owner | None
    place: str | None

    @property
    def is_ours(self) -> bool:
        return (self.owner is not None and self.identity is not None
                and (self.owner.id, self.owner.place) == (self.identity.id, self.place))

    @property
    def objection(self) -> str | None:
        """Why this repository may not collect the ranges; `None` if it may."""
        if self.version is None or self.owner is None:
            if self.place is None:
                return "the key-value store reports no place, which would distinguish it from its copies"
            return "existing ranges have no owner"
        if self.identity is None or self.identity.id != self.owner.id:
            return "another repository owns them"
        if self.owner.place != self.place:
            return "the catalogue has moved, or is a copy"
        if self.identity.ranges not in (None, self.version.id.hex()):
            return "the catalogue belongs to other ranges, or is older than an adoption of these"
        return None


class RangeOwner:
    """Checks and changes the owner of the ranges. Threads may share it.

    `refused` is the refusal of the last check, for people; empty if it did not refuse.
    """

    def __init__(self, repository: str, cells: Cells, files: RangeFiles) -> None:
        self.refused: str = ""
        self._repository = repository
        self._cells = cells
        self._identity: Cell[Identity] = cells.cell(IDENTITY, Identity)
        self._files = files
        self._register = ObjectRegister(files.objects, files.path_of_owner, clock=cells.clock, rng=cells.rng)

    def require(self) -> None:
        """Raise `RangesNotOwned` unless this repository may collect the ranges. Takes an unused prefix."""
        seen = self._read()
        if (seen.version is None and seen.place is not None and (seen.identity is None or seen.identity.ranges is None)
                and not any(True for folder in (RANGES, METARANGES) for _ in self._files.list(folder))):
            # If another process is faster, the next read shows its entry.
            with contextlib.suppress(Stale):
                self._take(seen)
            seen = self._read()
        why, owner, identity = seen.objection, seen.owner, seen.identity
        if why is not None:
            refusal = RangesNotOwned(
                why=why,
                owner="no known owner" if owner is None else _shown(owner.repository, owner.id, owner.place),
                own=_shown(self._repository, "" if identity is None else identity.id, seen.place))
            self.refused = str(refusal)
            raise refusal
        if identity is not None and identity.ranges is None:
            self._join()  # the process that took them was interrupted in between, or is about to
        self.refused = ""

    def adopt(self) -> None:
        """Make this repository the owner, whoever owned the ranges before; `Stale` if another one adopts them too."""
        seen = self._read()
        if not seen.is_ours:
            try:
                self._take(seen)
            except Stale:
                # Another process was faster, perhaps of the same repository.
                if not self._read().is_ours:
                    raise Stale("another repository adopted these ranges at the same moment; decide which one owns "
                                "them, and call adopt_ranges() there") from None
        self._join()
        self.refused = ""

    def _take(self, seen: _Seen) -> None:
        """Write the owner's entry over the version that was read, after the identity in the catalogue."""
        def identified(identity: Identity | None) -> Identity:
            return identity or Identity(id=f"{self._cells.rng.getrandbits(128):032x}", ranges=None)

        identity = self._identity.update(identified, operation="naming of the repository", may_repeat=True).after
        assert identity is not None
        owner = Owner(id=identity.id, repository=self._repository, place=seen.place)
        self._register.replace(_OWNERS.encode(owner), seen.version)

    def _join(self) -> None:
        """Note in the catalogue which ranges it owns: those of the newest owner's entry."""
        def joined(identity: Identity | None) -> Identity | None:
            version = self._register.read()
            return (identity if identity is None or version is None
                    else attrs.evolve(identity, ranges=version.id.hex()))

        self._identity.update(joined, operation="adoption of ranges", may_repeat=True)

    def _read(self) -> _Seen:
        place, identity, version = self._cells.store.place(), self._identity.read(), self._register.read()
        owner = None if version is None else _OWNERS.decode(version.value, self._files.path_of_owner)
        return _Seen(identity, version, owner, place)


def _shown(repository: str, id_: str, place: str | None) -> str:
    return (f"repository {repository!r} (id {id_ or 'none yet'}) in "
            f"{'an unknown place' if place is None else place}")
