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
import random
from typing import Final

import attrs

from compactlib.clock import Clock
from compactlib.errors import Stale
from compactlib.kv import KeyNotFound, KVStore, PredicateFailed
from compactlib.kv.store import Predicate
from compactlib.objects.register import ObjectRegister, Version
from compactlib.staging.errors import RangesNotOwned
from compactlib.staging.names import IDENTITY
from compactlib.staging.ranges.committed import CommittedRanges
from compactlib.staging.ranges.files import METARANGES, RANGES
from compactlib.staging.stored import StoredForm

_TRIES: Final = 5
"""Tries of an adoption against other processes of the same repository."""


@attrs.frozen(kw_only=True)
class Identity:
    """The identity of a catalogue's repository, and the ranges that it owns.

    Attributes:
        id: of the repository, 32 hexadecimal digits drawn at random.
        ranges: the id of the owner's entry in the object store, 32 hexadecimal digits; `None` before it owns ranges.
    """

    id: str
    ranges: str | None


@attrs.frozen(kw_only=True)
class Owner:
    """The owner of the ranges of a prefix.

    Attributes:
        id: of the repository.
        repository: its name, for people.
        place: of its catalogue; `None` if the key-value store reports no place.
        since_ms: start of the ownership, in milliseconds since the epoch.
    """

    id: str
    repository: str
    place: str | None
    since_ms: int


IDENTITIES: Final = StoredForm(b"CLREPOST", Identity)
OWNERS: Final = StoredForm(b"CLOWNER\0", Owner)


@attrs.frozen
class _Seen:
    """The entries in the two stores; `place` is the catalogue's present place."""

    identity: Identity | None
    predicate: Predicate | None
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

    Every method raises the errors of the two stores, and `CorruptData` or `Unsupported` for unreadable entries.

    Attributes:
        refused: why the last check refused, for people; empty if it did not.
    """

    def __init__(self, store: KVStore, partition: bytes, repository: str, committed: CommittedRanges,
                 rng: random.Random, clock: Clock) -> None:
        self.refused: str = ""
        self._store = store
        self._partition = partition
        self._repository = repository
        self._files = committed.files
        self._rng = rng
        self._clock = clock

    def require(self) -> None:
        """Check that this repository may collect the ranges. Takes ownership of an unused prefix.

        Two requests to each store, and a few more the first time.

        Raises:
            RangesNotOwned: it may not collect them.
        """
        seen = self._read()
        if (seen.version is None and seen.place is not None and (seen.identity is None or seen.identity.ranges is None)
                and not any(True for folder in (RANGES, METARANGES) for _ in self._files.list(folder))):
            # If another process is faster, the next read shows its entry.
            with contextlib.suppress(Stale, PredicateFailed):
                self._take(None)
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
            # The process that took them was interrupted before it wrote the catalogue, or is about to.
            try:
                self._join(seen)
            except PredicateFailed:
                self.require()
        self.refused = ""

    def adopt(self) -> None:
        """Make this repository the owner, whoever owned the ranges before.

        Raises:
            Stale: another repository adopted them concurrently.
        """
        with contextlib.suppress(RangesNotOwned):
            self.require()
            return
        for _ in range(_TRIES):
            with contextlib.suppress(Stale, PredicateFailed):
                seen = self._read()
                if seen.is_ours:
                    self._join(seen)
                else:
                    self._take(seen.version)
                self.refused = ""
                return
            # Another process was faster, perhaps of the same repository.
            if not self._read().is_ours:
                break
        raise Stale("another repository adopted these ranges at the same moment; decide which one owns them, and call "
                    "adopt_ranges() there")

    def _take(self, before: Version | None) -> None:
        """Write the owner's entry over the version read before; then note in the catalogue that it owns the ranges."""
        if self._read().identity is None:
            # The identity precedes the owner's entry. Another process of the same repository may be faster.
            mine = Identity(id=f"{self._rng.getrandbits(128):032x}", ranges=None)
            with contextlib.suppress(PredicateFailed):
                self._store.set_if(self._partition, IDENTITY, IDENTITIES.encode(mine), None)
        seen = self._read()
        if seen.identity is None:
            raise Stale("the identity of the repository was deleted right after its write; retry")
        owner = Owner(id=seen.identity.id, repository=self._repository, place=seen.place,
                      since_ms=round(self._clock.now() * 1000))
        self._join(attrs.evolve(seen, version=self._register().replace(OWNERS.encode(owner), before)))

    def _join(self, seen: _Seen) -> None:
        """Note in the catalogue which ranges it owns."""
        if seen.identity is not None and seen.version is not None:
            joined = attrs.evolve(seen.identity, ranges=seen.version.id.hex())
            self._store.set_if(self._partition, IDENTITY, IDENTITIES.encode(joined), seen.predicate)

    def _read(self) -> _Seen:
        identity, predicate, place = None, None, self._store.place()
        with contextlib.suppress(KeyNotFound):
            found = self._store.get(self._partition, IDENTITY)
            identity = IDENTITIES.decode(found.value, f"key {IDENTITY!r} of partition {self._partition!r}")
            predicate = found.predicate
        version = self._register().read()
        owner = None if version is None else OWNERS.decode(version.value, self._files.path_of_owner)
        return _Seen(identity, predicate, version, owner, place)

    def _register(self) -> ObjectRegister:
        return ObjectRegister(self._files.objects, self._files.path_of_owner, clock=self._clock, rng=self._rng)


def _shown(repository: str, id_: str, place: str | None) -> str:
    return (f"repository {repository!r} (id {id_ or 'none yet'}) in "
            f"{'an unknown place' if place is None else place}")
