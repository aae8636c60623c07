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
from compactlib.staging.stored import Fields, frame_of, pack, unpack

_IDENTITY = frame_of(b"CLREPOST")
_OWNER = frame_of(b"CLOWNER\0")
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
    ranges: str | None = None


@attrs.frozen(kw_only=True)
class Owner:
    """Whose the ranges of a prefix are.

    Attributes:
        id: that of the repository.
        repository: its name, for people.
        place: of its catalogue; `None` if the key-value store does not say it.
        since: when they became its own, in seconds since the epoch.
    """

    id: str
    repository: str
    place: str | None
    since: float


def encode_identity(identity: Identity) -> bytes:
    """The stored form of an identity."""
    return pack(_IDENTITY, {"id": identity.id, "ranges": identity.ranges})


def decode_identity(data: bytes, place: str) -> Identity:
    """The identity of a stored form.

    Raises:
        CorruptData, Unsupported: it is damaged, or a later release wrote it.
    """
    fields = Fields(unpack(_IDENTITY, data, place), place)
    identity = Identity(id=fields.take("id", str), ranges=fields.take("ranges", str, type(None)))
    fields.end()
    return identity


def encode_owner(owner: Owner) -> bytes:
    """The stored form of an owner."""
    return pack(_OWNER, {"id": owner.id, "repository": owner.repository, "place": owner.place,
                         "since_ms": round(owner.since * 1000)})


def decode_owner(data: bytes, place: str) -> Owner:
    """The owner of a stored form.

    Raises:
        CorruptData, Unsupported: it is damaged, or a later release wrote it.
    """
    fields = Fields(unpack(_OWNER, data, place), place)
    owner = Owner(id=fields.take("id", str), repository=fields.take("repository", str),
                  place=fields.take("place", str, type(None)), since=fields.take("since_ms", int) / 1000)
    fields.end()
    return owner


class RangeOwner:
    """Asks and says whose the ranges are. Threads may share it.

    Every method raises what the two stores raise, and `CorruptData` or `Unsupported` for what cannot be read.

    Args:
        store: the catalogue.
        partition: the repository's.
        repository: its name.
        committed: the ranges.
        rng: draws the repository's id; must not repeat in any process.
        clock: dates an adoption.

    Attributes:
        refused: why the last question was answered with no, for people; empty if it was not.
    """

    def __init__(self, store: KVStore, partition: bytes, repository: str, committed: CommittedRanges,
                 rng: random.Random, clock: Clock) -> None:
        self.refused: str = ""
        self._store = store
        self._partition = partition
        self._repository = repository
        self._committed = committed
        self._rng = rng
        self._clock = clock

    def require(self) -> None:
        """Return if this repository may collect the ranges. Takes a prefix that nobody has used yet.

        Two requests to each store, and a few more the first time.

        Raises:
            RangesNotOwned: it may not.
        """
        try:
            self._require()
        except RangesNotOwned as refusal:
            self.refused = str(refusal)
            raise
        self.refused = ""

    def adopt(self) -> None:
        """Make the ranges this repository's, whosever they were.

        Raises:
            Stale: another repository did the same at once; nothing tells which of them was meant.
        """
        if self._is_owner():
            return
        for _ in range(_TRIES):
            with contextlib.suppress(Stale, PredicateFailed):
                seen = self._register().read()
                if self._is_ours(seen):
                    self._join(*self._identity(), seen)
                else:
                    self._take(seen)
                self.refused = ""
                return
            # Another process was faster: perhaps for the same repository.
            if not self._is_ours(self._register().read()):
                break
        raise Stale("another repository adopted these ranges at the same moment; find out whose they are to be, and "
                    "call adopt_ranges() there once more")

    def _is_owner(self) -> bool:
        try:
            self.require()
        except RangesNotOwned:
            return False
        return True

    def _is_ours(self, version: Version | None) -> bool:
        identity, _ = self._identity()
        if version is None or identity is None:
            return False
        owner = decode_owner(version.value, self._path)
        return (owner.id, owner.place) == (identity.id, self._store.place())

    def _require(self) -> None:
        place = self._store.place()
        identity, predicate = self._identity()
        version = self._register().read()
        if version is None and place is not None and (identity is None or identity.ranges is None) \
                and self._is_unused():
            # Where another is faster, who that was is seen next.
            with contextlib.suppress(Stale, PredicateFailed):
                self._take(None)
            identity, predicate = self._identity()
            version = self._register().read()
        owner = None if version is None else decode_owner(version.value, self._path)
        why = self._objection(identity, version, owner, place)
        if why is not None:
            raise RangesNotOwned(
                why, owner="" if owner is None else _shown(owner.repository, owner.id, owner.place),
                own=_shown(self._repository, "" if identity is None else identity.id, place))
        if identity is not None and identity.ranges is None:
            # Whoever took them was interrupted before the catalogue knew it, or is about to say it.
            try:
                self._join(identity, predicate, version)
            except PredicateFailed:
                self._require()

    def _objection(self, identity: Identity | None, version: Version | None, owner: Owner | None,
                   place: str | None) -> str | None:
        if version is None or owner is None:
            if place is None:
                return "the key-value store does not say its place, by which its copies could be told from it"
            return "nobody is known to own what is there"
        if identity is None or identity.id != owner.id:
            return "they are another repository's"
        if owner.place != place:
            return "the catalogue has moved, or is a copy"
        if identity.ranges is not None and identity.ranges != version.id.hex():
            return "the catalogue belongs to other ranges, or is older than an adoption of these"
        return None

    def _take(self, seen: Version | None) -> None:
        """Write who the owner is, in the place of what was seen; then that the catalogue has these ranges."""
        if self._identity()[0] is None:
            # Before the ranges name it. Another process of the same repository may be faster.
            with contextlib.suppress(PredicateFailed):
                self._store.set_if(self._partition, IDENTITY,
                                   encode_identity(Identity(id=f"{self._rng.getrandbits(128):032x}")), None)
        identity, predicate = self._identity()
        if identity is None:
            raise Stale("the identity of the repository went as soon as it was there")
        version = self._register().replace(encode_owner(Owner(
            id=identity.id, repository=self._repository, place=self._store.place(), since=self._clock.now())), seen)
        self._join(identity, predicate, version)

    def _join(self, identity: Identity | None, predicate: Predicate | None, version: Version | None) -> None:
        """Note in the catalogue which ranges are its own."""
        if identity is not None and version is not None:
            self._store.set_if(self._partition, IDENTITY,
                               encode_identity(attrs.evolve(identity, ranges=version.id.hex())), predicate)

    def _identity(self) -> tuple[Identity | None, Predicate | None]:
        try:
            found = self._store.get(self._partition, IDENTITY)
        except KeyNotFound:
            return None, None
        place = f"key {IDENTITY!r} of partition {self._partition!r}"
        return decode_identity(found.value, place), found.predicate

    def _is_unused(self) -> bool:
        return not any(True for folder in (RANGES, METARANGES) for _ in self._committed.files.list(folder))

    def _register(self) -> ObjectRegister:
        return ObjectRegister(self._committed.files.objects, self._path, clock=self._clock, rng=self._rng)

    @property
    def _path(self) -> str:
        return self._committed.files.path_of_owner


def _shown(repository: str, id_: str, place: str | None) -> str:
    return (f"repository {repository!r} (id {id_ or 'none yet'}) in "
            f"{'a place that its store does not say' if place is None else place}")
