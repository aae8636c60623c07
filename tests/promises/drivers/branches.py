# SPDX-License-Identifier: Apache-2.0
"""A model of a repository: branches and commits as plain dictionaries, without tokens, ranges and compactions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Literal, TypeAlias

import attrs

Contents: TypeAlias = frozenset[tuple[bytes, bytes]]
Strategy: TypeAlias = Literal["source_wins", "destination_wins"]


@attrs.frozen
class Committed:
    """A commit: its contents, and the messages of its parents."""

    contents: Contents = frozenset()
    parents: tuple[str, ...] = ()


@attrs.frozen
class Repo:
    """All branches by name, each with the message of its HEAD and its contents; all commits by their messages."""

    branches: frozenset[tuple[str, tuple[str, Contents]]] = frozenset()
    commits: frozenset[tuple[str, Committed]] = frozenset({("", Committed())})
    """The HEAD of a branch without a commit is the empty message."""

    def commit(self, message: str) -> Committed:
        return dict(self.commits)[message]

    def history(self, message: str) -> set[str]:
        """Return the messages of a commit and its ancestors."""
        commits, found, waiting = dict(self.commits), set[str](), [message]
        while waiting:
            if (now := waiting.pop()) and now not in found:
                found.add(now)
                waiting += commits[now].parents
        return found

    def merge_base(self, one: str, other: str) -> str:
        """Return the newest commit in both histories; the drivers make histories with at most one."""
        common = self.history(one) & self.history(other)
        older = {each for message in common for each in self.history(message) - {message}}
        return min(common - older, default="")

    def moved(self, branch: str, head: str, now: Contents | None = None) -> Repo:
        """Return the repository with another HEAD of a branch, which is clean or has other contents."""
        place = head, self.commit(head).contents if now is None else now
        return attrs.evolve(self, branches=frozenset({**dict(self.branches), branch: place}.items()))

    def committed(self, branch: str, message: str, contents: Contents, *parents: str) -> Repo:
        """Return the repository with another commit, the HEAD of a branch."""
        commit = Committed(contents, tuple(filter(None, parents)))
        return attrs.evolve(self, commits=self.commits | {(message, commit)}).moved(branch, message)


@attrs.frozen
class Change:
    """A change that a host tries.

    Attributes:
        opening: the number of the opening of the repository; see `Tried`.
        branch: its branch; empty for a compaction or a reclaim, which change no read.
    """

    opening: int
    branch: str = ""

    def after(self, repo: Repo) -> Repo | None:
        """Return the repository after the change; `None` if the change cannot happen."""
        branches = dict(repo.branches)
        return self._after(repo, *branches[self.branch]) if self.branch in branches else None

    def ways(self, repo: Repo) -> Iterator[Repo]:
        """Yield the repository after an acknowledged change, if the change can happen."""
        yield from filter(None, [self.after(repo)])

    def partly(self, repo: Repo) -> Iterator[Repo]:
        """Yield the repository after an unacknowledged change, and after parts of it."""
        yield from self.ways(repo)

    def _after(self, repo: Repo, head: str, now: Contents) -> Repo | None:
        return repo


@attrs.frozen
class Upkeep(Change):
    """A compaction, a reclaim, or a refused write."""

    def after(self, repo: Repo) -> Repo:
        return repo


@attrs.frozen(kw_only=True)
class Write(Change):
    """Keys put and deleted, acknowledged together, but not atomic."""

    items: tuple[tuple[bytes, bytes | None], ...]

    def _after(self, repo: Repo, head: str, now: Contents) -> Repo:
        return repo.moved(self.branch, head, changed(now, dict(self.items)))

    def partly(self, repo: Repo) -> Iterator[Repo]:
        for taken in product([False, True], repeat=len(self.items)):
            part = tuple(item for item, is_taken in zip(self.items, taken, strict=True) if is_taken)
            yield from filter(None, [attrs.evolve(self, items=part).after(repo)])


@attrs.frozen(kw_only=True)
class OverHead(Change):
    """A write that depends on HEAD. A concurrent merge or revert may commit below it.

    Attributes:
        seen: the message of HEAD before the change was tried.
    """

    seen: str

    def ways(self, repo: Repo) -> Iterator[Repo]:
        yield from super().ways(repo)
        head, now = dict(repo.branches).get(self.branch, (self.seen, frozenset()))
        if head != self.seen and self.seen in dict(repo.commits):
            yield self._over(repo, head, now, repo.commit(self.seen).contents)

    def _over(self, repo: Repo, head: str, now: Contents, old: Contents) -> Repo:
        """Return the repository after the change, if it has read these contents."""
        raise NotImplementedError


@attrs.frozen(kw_only=True)
class Append(OverHead):
    """A unique word is appended to the value of a key, once."""

    key: bytes
    word: bytes

    def partly(self, repo: Repo) -> Iterator[Repo]:
        now = dict(dict(repo.branches).get(self.branch, ("", frozenset()))[1])
        if self.word not in now.get(self.key, b""):
            yield from super().partly(repo)

    def _after(self, repo: Repo, head: str, now: Contents) -> Repo:
        return self._over(repo, head, now, now)

    def _over(self, repo: Repo, head: str, now: Contents, old: Contents) -> Repo:
        return repo.moved(self.branch, head, changed(now, {self.key: dict(old).get(self.key, b"") + self.word}))


@attrs.frozen(kw_only=True)
class Reset(OverHead):
    """The keys with a prefix, or one key, get their values in HEAD."""

    prefix: bytes
    is_key: bool = False

    def _after(self, repo: Repo, head: str, now: Contents) -> Repo:
        return self._over(repo, head, now, repo.commit(head).contents)

    def _over(self, repo: Repo, head: str, now: Contents, old: Contents) -> Repo:
        kept, before = dict(now), dict(old)
        keys = {key for key in {*kept, *before}
                if key == self.prefix or (not self.is_key and key.startswith(self.prefix))}
        return repo.moved(self.branch, head, changed(now, {key: before.get(key) for key in keys}))


@attrs.frozen(kw_only=True)
class Commit(Change):
    """A commit of all uncommitted changes; or of given contents, on a clean branch."""

    message: str
    contents: Contents | None = None

    def _after(self, repo: Repo, head: str, now: Contents) -> Repo | None:
        old = repo.commit(head).contents
        if self.contents is not None and now != old:
            return None
        new = now if self.contents is None else self.contents
        return repo if new == old and (head or self.contents is None) else repo.committed(
            self.branch, self.message, new, head)


@attrs.frozen(kw_only=True)
class Merge(Change):
    """A merge of a branch into a clean branch; its HEAD may be read first.

    Attributes:
        seen: the message of the source's HEAD before the change was tried.
    """

    source: str
    seen: str
    message: str
    strategy: Strategy

    def ways(self, repo: Repo) -> Iterator[Repo]:
        branches = dict(repo.branches)
        known = {self.seen, *(branches[self.source][:1] if self.source in branches else ())} & dict(repo.commits).keys()
        for source in known if self.branch in branches else ():
            yield from filter(None, [self._merged(repo, source, *branches[self.branch])])

    def _merged(self, repo: Repo, source: str, head: str, now: Contents) -> Repo | None:
        old = repo.commit(head).contents
        if now != old:
            return None
        base = repo.merge_base(source, head)
        new = merged(repo.commit(base).contents, repo.commit(source).contents, old, self.strategy)
        return repo if source in ("", base) else repo.committed(self.branch, self.message, new, head, source)


@attrs.frozen(kw_only=True)
class Again(Change):
    """A revert or a cherry-pick of a commit, against its first parent, on a clean branch."""

    of: str
    way: Literal["revert", "cherry_pick"]
    message: str
    strategy: Strategy

    def _after(self, repo: Repo, head: str, now: Contents) -> Repo | None:
        old, commit = repo.commit(head).contents, dict(repo.commits).get(self.of)
        if now != old or commit is None:
            return None
        parent = repo.commit((*commit.parents, "")[0]).contents
        sides = (commit.contents, parent) if self.way == "revert" else (parent, commit.contents)
        new = merged(*sides, old, self.strategy)
        return repo if new == old else repo.committed(self.branch, self.message, new, head)


@attrs.frozen(kw_only=True)
class HardReset(Change):
    """A commit becomes the HEAD of a clean branch."""

    to: str

    def _after(self, repo: Repo, head: str, now: Contents) -> Repo | None:
        return repo.moved(self.branch, self.to) if self.to in dict(repo.commits) else None


@attrs.frozen(kw_only=True)
class Create(Change):
    """A branch is made at the HEAD of another branch, which may be read first; without another branch it is empty.

    Attributes:
        seen: the message of the source's HEAD before the change was tried.
    """

    source: str | None = None
    seen: str = ""

    def ways(self, repo: Repo) -> Iterator[Repo]:
        branches = dict(repo.branches)
        heads = {self.seen, *(branches[self.source][:1] if self.source in branches else ())} & dict(repo.commits).keys()
        if self.branch not in branches:
            yield from (repo.moved(self.branch, head) for head in (heads if self.source else {""}))


@attrs.frozen(kw_only=True)
class Drop(Change):
    """A branch is deleted, with its uncommitted changes."""

    def _after(self, repo: Repo, head: str, now: Contents) -> Repo:
        return attrs.evolve(repo, branches=repo.branches - {(self.branch, (head, now))})


def changed(contents: Contents, items: Mapping[bytes, bytes | None]) -> Contents:
    """Return the contents with other values; `None` removes a key."""
    new: dict[bytes, bytes | None] = {**dict(contents), **items}
    return frozenset((key, value) for key, value in new.items() if value is not None)


def merged(base: Contents, source: Contents, destination: Contents, strategy: Strategy) -> Contents:
    """Return the destination with the changes from the base to the source."""
    before, theirs, ours = dict(base), dict(source), dict(destination)
    brought = {key: theirs.get(key) for key in {*before, *theirs} if theirs.get(key) != before.get(key)
               and (ours.get(key) == before.get(key) or strategy == "source_wins")}
    return changed(destination, brought)
