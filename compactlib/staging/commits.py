# SPDX-License-Identifier: Apache-2.0
"""`Commit` and `CommitStore`: immutable commits, named by their content, in the key-value store."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import attrs

from compactlib.errors import CorruptData
from compactlib.files.durable_record import JsonRecord
from compactlib.lru import Lru
from compactlib.staging.errors import CommitNotFound
from compactlib.staging.record import Cells
from compactlib.staging.values import COMMITS, CommitId, MetaRangeId, commit_key, is_commit_id

_CACHED: Final = 1000
"""Commits in the cache; they are immutable."""


@attrs.frozen(kw_only=True)
class Commit:
    """A commit. The fields are those of its stored form.

    Attributes:
        metarange_id: its records.
        parents: the previous HEAD, and the merged commit, if any; empty for a first commit.
        generation: 1 for a first commit, else 1 + the highest of its parents.
        message: the message of the author.
        metadata: texts of the author.
        created_at_ms: milliseconds since the epoch, by the author's clock.
        nonce: 16 hexadecimal digits drawn at random, so that two commits never have the same id.
    """

    metarange_id: MetaRangeId
    parents: tuple[CommitId, ...]
    generation: int
    message: str
    metadata: Mapping[str, str]
    created_at_ms: int
    nonce: str

    @property
    def commit_id(self) -> CommitId:
        """The SHA-256 of the stored form. O(size of the commit)."""
        return CommitId(hashlib.sha256(encode_commit(self)).hexdigest())


def copied(commit: Commit) -> Commit:
    """Return a copy whose metadata the caller may change; the cached commit is shared."""
    return attrs.evolve(commit, metadata=dict(commit.metadata))


_FORM: Final = JsonRecord("commit", b"CLCOMMIT", 1, Commit)


def encode_commit(commit: Commit) -> bytes:
    """Return the stored form of a commit; `InvalidInput` if message or metadata are not text."""
    return _FORM.encode(commit)


def decode_commit(data: bytes, place: str) -> Commit:
    """Return the commit of a stored form; `CorruptData` also for an impossible generation or parent."""
    commit = _FORM.decode(data, place)
    if commit.generation < 1 or not all(map(is_commit_id, commit.parents)):
        raise CorruptData(path=place, offset=0, expected="a generation of at least 1, and parents that are commit ids",
                          found=str(commit))
    return commit


def walk(heads: Iterable[CommitId], get: Callable[[CommitId], Commit | None]) -> Iterator[tuple[CommitId, Commit]]:
    """Yield commits and all their ancestors, children before parents. Skips an id for which `get` returns `None`."""
    waiting: list[tuple[int, CommitId, Commit]] = []
    seen, fresh = set[CommitId](), set(heads)
    while fresh or waiting:
        seen |= fresh
        for commit_id in fresh:
            commit = get(commit_id)
            if commit is not None:
                heapq.heappush(waiting, (-commit.generation, commit_id, commit))
        fresh = set()
        if waiting:
            _, commit_id, commit = heapq.heappop(waiting)
            yield commit_id, commit
            fresh = set(commit.parents) - seen


class CommitStore:
    """The commits of one repository. Threads may share it."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self._cache: Lru[CommitId, Commit] = Lru(_CACHED)

    def add(self, metarange_id: MetaRangeId, heads: Iterable[CommitId | None], message: str,
            metadata: Mapping[str, str] | None) -> CommitId:
        """Store a commit on top of the heads that are commits. Reads them; one write."""
        parents = tuple(head for head in heads if head is not None)
        commit = Commit(
            metarange_id=metarange_id, parents=parents, message=message, metadata=dict(metadata or {}),
            generation=1 + max((self.get(parent).generation for parent in parents), default=0),
            created_at_ms=round(self._cells.clock.now() * 1000), nonce=f"{self._cells.rng.getrandbits(64):016x}")
        data = encode_commit(commit)
        commit_id = CommitId(hashlib.sha256(data).hexdigest())
        self._cells.store.set(self._cells.partition, commit_key(commit_id), data)
        self._cache.put(commit_id, commit)
        return commit_id

    def get(self, commit_id: CommitId) -> Commit:
        """Return a commit, or raise `CommitNotFound`. One read, unless cached."""
        cached = self._cache.get(commit_id)
        if cached is not None:
            return cached
        data = self._cells.get(commit_key(commit_id)) if is_commit_id(commit_id) else None
        if data is None:
            raise CommitNotFound(commit_id=commit_id)
        commit = self.checked(commit_id, data)
        self._cache.put(commit_id, commit)
        return commit

    def metarange_of(self, commit_id: CommitId | None) -> MetaRangeId | None:
        """Return the metarange of a commit; `None` without a commit."""
        return None if commit_id is None else self.get(commit_id).metarange_id

    def history(self, commit_id: CommitId | None) -> Iterator[tuple[CommitId, Commit]]:
        """Yield a commit and all its ancestors, children before parents."""
        return walk([] if commit_id is None else [commit_id], self.get)

    def reachable(self, heads: Collection[CommitId]) -> Iterator[tuple[CommitId, Commit]]:
        """Yield commits and all their ancestors, unordered, and check these only. One scan; memory for all commits."""
        if not heads:
            return
        stored = dict(self._cells.scan(COMMITS, {}))

        def get(commit_id: CommitId) -> Commit:
            data = stored.get(commit_key(commit_id))  # `None` also if it was stored after the scan, or cannot be read
            return self.get(commit_id) if data is None else self.checked(commit_id, data)

        yield from walk(heads, get)

    def is_ancestor(self, ancestor: CommitId, commit_id: CommitId | None) -> bool:
        """Return whether `ancestor` is `commit_id` or its ancestor. Reads the commits down to it."""
        return commit_id is not None and self.merge_bases([ancestor], [commit_id]) == [ancestor]

    def merge_bases(self, ones: Collection[CommitId], others: Collection[CommitId]) -> Sequence[CommitId]:
        """Return the newest common ancestors of two sets of commits; several if the sides merged each other."""
        sides = dict.fromkeys(ones, 1)
        for other in others:
            sides[other] = sides.get(other, 0) | 2
        waiting = [(-self.get(commit_id).generation, commit_id) for commit_id in sides]
        heapq.heapify(waiting)
        found: list[CommitId] = []
        # A commit is in one history (1, 2), in both (3), or an ancestor of a found commit (7). Ends once one side has
        # no open commit.
        while {1, 2} <= {side for _, each in waiting for side in (1, 2) if sides[each] != 7 and sides[each] & side}:
            _, current = waiting[0]
            if sides[current] == 3:
                found.append(current)
                sides[current] = 7
                continue
            heapq.heappop(waiting)
            for parent in self.get(current).parents:
                if parent not in sides:
                    heapq.heappush(waiting, (-self.get(parent).generation, parent))
                sides[parent] = sides.get(parent, 0) | sides[current]
        return found

    def checked(self, commit_id: CommitId, data: bytes) -> Commit:
        """Return the commit of a stored form; raise `CorruptData` if its id is another."""
        place = self._cells.place(commit_key(commit_id))
        commit = decode_commit(data, place)
        digest = hashlib.sha256(data).hexdigest()
        if digest != commit_id:
            raise CorruptData(path=place, offset=0, expected=f"SHA-256 {commit_id}", found=digest)
        return commit
