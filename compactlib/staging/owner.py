# SPDX-License-Identifier: Apache-2.0
"""Who may collect the ranges of an object store: the repository that they were made for, in the place of its catalogue.

A collection deletes what the branch records do not name. So the records must be the right ones: not those of an empty
catalogue, of another repository, or of a copy that does not know what was committed since. Therefore:

1. A repository has an id, drawn at random, in its catalogue. The prefix of the ranges has an owner: the id of a
   repository, and the place of its catalogue as the key-value store says it. The catalogue has the id of that entry.
2. A collection is allowed if all three agree, and is refused otherwise.
3. Ranges without an owner become a repository's by themselves only while there are none yet, and only if the catalogue
   was never joined to others and its store says its place.
4. In every other case an operator decides (`adopt`). The latest adoption counts.
5. A collection asks at its start, and again before each batch of files that it deletes. What an earlier owner still
   deletes after an adoption is one batch at most, of what that one did not need.
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
"""How often an adoption is tried against other processes of the same repository."""


@attrs.frozen(kw_only=True)
class Identity:
    """Which repository a catalogue is, and which ranges are its own.

    Attributes:
        id: of the repository, 32 hexadecimal digits drawn at random.
        ranges: the id of the owner's entry in the object store, 32 hexadecimal digits; `None` if there was none yet.
    """

    id: str
    ranges: str | None


@attrs.frozen(kw_only=True)
class Owner:
    """Whose the ranges of a prefix are.

    Attributes:
        id: that of the repository.
        repository: its name, for people.
        place: of its catalogue; `None` if the key-value store does not say it.
        since_ms: when they became its own, in milliseconds since the epoch.
    """

    id: str
    repository: str
    place: str | None
    since_ms: int


IDENTITIES: Final = StoredForm(b"CLREPOST", Identity)
OWNERS: Final = StoredForm(b"CLOWNER\0", Owner)


@attrs.frozen
class _Seen:
    """What the two stores say; `place` is the catalogue's, now."""

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
        """Why the ranges are not this repository's to collect; `None` if they are."""
        if self.version is None or self.owner is None:
            if self.place is None:
                return "the key-value store does not say its place, by which its copies could be told from it"
            return "nobody is known to own what is there"
        if self.identity is None or self.identity.id != self.owner.id:
            return "they are another repository's"
        if self.owner.place != self.place:
            return "the catalogue has moved, or is a copy"
        if self.identity.ranges not in (None, self.version.id.hex()):
            return "the catalogue belongs to other ranges, or is older than an adoption of these"
        return None


class RangeOwner:
    """Asks and says whose the ranges are. Threads may share it.

    Every method raises what the two stores raise, and `CorruptData` or `Unsupported` for what cannot be read.

    Attributes:
        refused: why the last question was answered with no, for people; empty if it was not.
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
        """Return if this repository may collect the ranges. Takes a prefix that nobody has used yet.

        Two requests to each store, and a few more the first time.

        Raises:
            RangesNotOwned: it may not.
        """
        seen = self._read()
        if (seen.version is None and seen.place is not None and (seen.identity is None or seen.identity.ranges is None)
                and not any(True for folder in (RANGES, METARANGES) for _ in self._files.list(folder))):
            # Where another is faster, who that was is seen next.
            with contextlib.suppress(Stale, PredicateFailed):
                self._take(None)
            seen = self._read()
        why, owner, identity = seen.objection, seen.owner, seen.identity
        if why is not None:
            refusal = RangesNotOwned(
                why=why,
                owner="nobody who is known" if owner is None else _shown(owner.repository, owner.id, owner.place),
                own=_shown(self._repository, "" if identity is None else identity.id, seen.place))
            self.refused = str(refusal)
            raise refusal
        if identity is not None and identity.ranges is None:
            # Whoever took them was interrupted before the catalogue knew it, or is about to say it.
            try:
                self._join(seen)
            except PredicateFailed:
                self.require()
        self.refused = ""

    def adopt(self) -> None:
        """Make the ranges this repository's, whosever they were.

        Raises:
            Stale: another repository did the same at once; nothing tells which of them was meant.
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
            # Another process was faster: perhaps for the same repository.
            if not self._read().is_ours:
                break
        raise Stale("another repository adopted these ranges at the same moment; find out whose they are to be, and "
                    "call adopt_ranges() there once more")

    def _take(self, before: Version | None) -> None:
        """Write who the owner is, in the place of what was seen; then that the catalogue has these ranges."""
        if self._read().identity is None:
            # Before the ranges name it. Another process of the same repository may be faster.
            mine = Identity(id=f"{self._rng.getrandbits(128):032x}", ranges=None)
            with contextlib.suppress(PredicateFailed):
                self._store.set_if(self._partition, IDENTITY, IDENTITIES.encode(mine), None)
        seen = self._read()
        if seen.identity is None:
            raise Stale("the identity of the repository went as soon as it was there")
        owner = Owner(id=seen.identity.id, repository=self._repository, place=seen.place,
                      since_ms=round(self._clock.now() * 1000))
        self._join(attrs.evolve(seen, version=self._register().replace(OWNERS.encode(owner), before)))

    def _join(self, seen: _Seen) -> None:
        """Note in the catalogue which ranges are its own."""
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
            f"{'a place that its store does not say' if place is None else place}")
