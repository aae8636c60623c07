# SPDX-License-Identifier: Apache-2.0
"""The states of a disk after a crash: the fault model, as a walk over a recording. Pure: it reads and writes no disk.

* A write or a change of length is durable after a sync of its file. Before, each may be kept or lost, independently of
  the others; of a write, a part may be kept: a prefix, or all but one block. Bytes below the end of the file that were
  never written read as zeros.
* A name is durable after a sync of its folder. Before, each change of a name may be kept or lost, independently of the
  others and of the bytes of its file. A change refers to the file that had the name when it was made. A rename within
  one folder is one change; between two folders it is two, the new name in one and the removal of the old in the other.
* The content of the folder before the recording is durable.

A crash is a few picks of `compactlib.testing.choices`: the number of operations before it; whether pending changes (not
yet durable) are kept or lost by default; and for each pending change its fate. So the picks `{0: 31, 2: 1}` are a crash
after 31 operations that lost the first pending change.
"""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import attrs

from compactlib.errors import InvalidInput
from compactlib.testing.choices import Choices, spread

ROOT = 0
"""The number of the recorded folder."""
BLOCK_BYTES = 4096
"""The unit of a hole in a write."""
SECTOR_BYTES = 512
"""Torn writes are cut at multiples of this, and at some bytes in between."""

_MORE_TEARS = 64


@attrs.frozen
class Operation:
    """One change to the disk. It refers to files and folders by number, since names change; paths are for messages.

    Attributes:
        kind: `"create"`, `"write"` (a copy, too), `"truncate"`, `"sync"`, `"rename"`, `"link"`, `"symlink"`,
            `"unlink"`, `"make folder"`, `"remove folder"` or `"sync folder"`.
        path: relative to the recorded folder; of a change to the bytes of a file, the name it was opened under.
        folder: the number of the folder that contains `path`; of a sync or a change to bytes, `ROOT`.
        inode: the number of the file, folder or symbolic link.
        target: for a rename or a link the new name, for a symbolic link its text.
        target_folder: for a rename or a link the number of the folder that contains `target`.
        offset: for a write its first byte, for a truncate the new size.
        data: for a write its bytes.
    """

    kind: str
    path: str
    folder: int
    inode: int
    target: str = ""
    target_folder: int = ROOT
    offset: int = 0
    data: bytes = attrs.field(default=b"", repr=lambda data: f"<{len(data)} bytes>")

    def __str__(self) -> str:
        match self.kind:
            case "write":
                return f"write {self.path} at {self.offset}, {len(self.data)} bytes"
            case "truncate":
                return f"truncate {self.path} to {self.offset} bytes"
            case "link":
                return f"link {self.path} as {self.target}"
        return f"{self.kind} {self.path}" + (f" to {self.target}" if self.target else "")


@attrs.frozen
class Fate:
    """The fate of a change: `KEPT`, `LOST`, or of a torn write the number of first bytes that are kept, or the block of
    the file in which its bytes are lost; the file has grown anyway.
    """

    text: str
    kept_bytes: int | None = None
    lost_block: int | None = None

    def __str__(self) -> str:
        return self.text


KEPT = Fate("there")
LOST = Fate("LOST")


@attrs.frozen(cache_hash=True)
class Change:
    """A part of an operation that a crash may undo until it is durable.

    Attributes:
        index: the number of the operation in its recording.
        half: for a rename between folders, the name of the half.
        operation: the operation.
        folder: for a change of names, the folder's number; else `None`.
        names: names that change together, each with the number of its new file, or `None` if it is removed.
    """

    index: int
    half: str
    operation: Operation = attrs.field(eq=False)
    folder: int | None = attrs.field(default=None, eq=False)
    names: tuple[tuple[str, int | None], ...] = attrs.field(default=(), eq=False)

    def __str__(self) -> str:
        return f"{self.index} {self.operation}" + (f", {self.half}" if self.half else "")


Fates: TypeAlias = Mapping[Change, Fate]
"""The fate of each pending change, in the order of the changes."""


def changes_of(index: int, operation: Operation) -> list[Change]:
    """Return the changes of operation number `index`: no change for a sync, two for a rename between folders."""
    def named(folder: int, path: str, inode: int | None) -> tuple[int, tuple[tuple[str, int | None], ...]]:
        return folder, ((path.rpartition("/")[2], inode),)

    match operation.kind:
        case "sync" | "sync folder":
            return []
        case "write" | "truncate":
            return [Change(index, "", operation)]
        case "unlink" | "remove folder":
            return [Change(index, "", operation, *named(operation.folder, operation.path, None))]
        case "create" | "symlink" | "make folder":
            return [Change(index, "", operation, *named(operation.folder, operation.path, operation.inode))]
    folder, added = named(operation.target_folder, operation.target, operation.inode)
    if operation.kind == "link":
        return [Change(index, "", operation, folder, added)]
    source, removed = named(operation.folder, operation.path, None)
    if source == folder:
        return [Change(index, "", operation, folder, removed + added)]
    return [Change(index, "new name", operation, folder, added),
            Change(index, "removal of old name", operation, source, removed)]


@attrs.frozen
class Image:
    """A folder as a value. Every file, link and folder has a number; two names of one file share it.

    Attributes:
        folders: by a folder's number, its names, each with a number.
        texts: by a symbolic link's number, its text.
        contents: by a file's number, its bytes.
    """

    folders: Mapping[int, Mapping[str, int]]
    texts: Mapping[int, str]
    contents: Mapping[int, bytes]

    def paths(self) -> Mapping[str, tuple[str, object]]:
        """Return, by path, the first path of the same file, and its bytes; of a link `(text,)`, of a folder `None`."""
        found: dict[str, tuple[str, object]] = {}
        first: dict[int, str] = {}
        waiting = [("", ROOT)]
        while waiting:
            prefix, number = waiting.pop()
            for name, member in sorted(self.folders[number].items()):
                path = prefix + name
                held = (self.texts[member],) if member in self.texts else self.contents.get(member)
                found[path] = first.setdefault(member, path), held
                if member in self.folders:
                    waiting.append((f"{path}/", member))
        return found


@attrs.frozen(repr=False)
class Recording:
    """The operations of a function on a folder, which can be cut at any point.

    Attributes:
        initial: the folder before; it counts as durable.
        operations: the operations, in order.
        acknowledgements: the acknowledged values, each with the number of operations before it.
    """

    initial: Image
    operations: tuple[Operation, ...]
    acknowledgements: tuple[tuple[int, Any], ...]

    def acknowledged(self, point: int) -> tuple[Any, ...]:
        """Return the values acknowledged before operation number `point`."""
        end = bisect.bisect_right(self.acknowledgements, point, key=lambda each: each[0])
        return tuple(value for _, value in self.acknowledgements[:end])

    def __str__(self) -> str:
        return "\n".join(f"{index:4} {operation}" for index, operation in enumerate(self.operations))

    def __repr__(self) -> str:
        written = sum(len(operation.data) for operation in self.operations)
        return (f"Recording({len(self.operations)} operations, {written} bytes written, "
                f"{len(self.acknowledgements)} acknowledged)")


class CrashModel:
    """The durable state and the pending changes at one point of a recording. It moves forward only.

    Attributes:
        point: the number of operations before this point.
        pending: the changes that a crash here may undo, in order, each with the fates to try first. Changes to files
            and folders without a durable or pending name are left out.
    """

    def __init__(self, recording: Recording) -> None:
        self._operations = recording.operations
        self.point: int = 0
        self.pending: dict[Change, tuple[Fate, ...]] = {}
        # The durable state. Contents and names of folders are replaced, never changed: images share them.
        self._folders = {number: dict(names) for number, names in recording.initial.folders.items()}
        self._texts = dict(recording.initial.texts)
        self._contents = dict(recording.initial.contents)
        self._pending_bytes: dict[int, list[Change]] = {}

    def advance_to(self, point: int) -> None:
        """Move to the point after `point` operations.

        Raises:
            InvalidInput: the recording has fewer operations, or the model is past `point`.
        """
        if not self.point <= point <= len(self._operations):
            raise InvalidInput(f"the recording cannot be cut after {point} operations: it has {len(self._operations)}, "
                               f"and the model is at {self.point}; give a later point of the recording")
        while self.point < point:
            self._do(self.point, self._operations[self.point])
            self.point += 1

    def pick(self, choices: Choices) -> Fates:
        """Pick the fate of each pending change: first the default, then each fate."""
        rest = choices.pick("unsynced changes", KEPT, LOST)
        return {change: choices.pick(str(change), *_options(change, rest)) for change in self.pending}

    def picks(self, fates: Fates) -> dict[int, int]:
        """Return the picks of a crash here with these fates; see the head of this file."""
        lost, kept = (sum(fate is wanted for fate in fates.values()) for wanted in (LOST, KEPT))
        rest = KEPT if lost <= kept + 1 else LOST
        places = [self.point, (KEPT, LOST).index(rest)]
        places += [_options(change, rest).index(fates[change]) if fates[change] is not rest else 0
                   for change in self.pending]
        return {number: place for number, place in enumerate(places) if place}

    def image(self, fates: Fates) -> Image:
        """Return the folder after a crash here with these fates."""
        return Image(self._named(fates), self._texts, {**self._contents, **{
            inode: _applied(self._contents[inode], ((change.operation, fates[change]) for change in changes))
            for inode, changes in self._pending_bytes.items()}})

    def reaches(self, change: Change) -> bool:
        """Return whether a crash here could leave a name of the file or folder of the change."""
        return change.operation.inode in self._contents if change.folder is None else change.folder in self._folders

    def _do(self, index: int, operation: Operation) -> None:
        match operation.kind:
            case "create":
                self._contents[operation.inode] = b""
            case "symlink":
                self._texts[operation.inode] = operation.target
            case "make folder":
                self._folders[operation.inode] = {}
            case "sync":
                self._sync(operation.inode)
            case "sync folder":
                self._sync_folder(operation.inode)
        for change in changes_of(index, operation):
            if change.folder is None:
                if not self.reaches(change):
                    continue
                self._pending_bytes.setdefault(operation.inode, []).append(change)
            self.pending[change] = _fates(operation)

    def _sync(self, inode: int) -> None:
        changes = self._pending_bytes.pop(inode, [])
        if changes:
            self._contents[inode] = _applied(self._contents[inode], ((change.operation, KEPT) for change in changes))
            for change in changes:
                del self.pending[change]

    def _sync_folder(self, folder: int) -> None:
        done = [change for change in self.pending if change.folder == folder]
        if done:
            self._folders[folder] = dict(self._folders[folder])
            for change in done:
                _rename(self._folders[folder], change)
                del self.pending[change]
            self._forget_unreachable()

    def _forget_unreachable(self) -> None:
        """Forget files and folders without a durable or pending name, and their pending changes."""
        leads = {number: set(names.values()) for number, names in self._folders.items()}
        for change in self.pending:
            if change.folder is not None:
                leads[change.folder].update(inode for _, inode in change.names if inode is not None)
        reached, waiting = {ROOT}, [ROOT]
        while waiting:
            new = leads.get(waiting.pop(), set()) - reached
            reached |= new
            waiting.extend(new)
        for known in (self._folders, self._texts, self._contents, self._pending_bytes):
            for number in known.keys() - reached:
                del known[number]
        for change in list(self.pending):
            if (change.operation.inode if change.folder is None else change.folder) not in reached:
                del self.pending[change]

    def _named(self, fates: Fates) -> Mapping[int, Mapping[str, int]]:
        folders = dict(self._folders)
        copied: set[int] = set()
        for change in self.pending:
            if change.folder is not None and fates[change] is KEPT:
                if change.folder not in copied:
                    copied.add(change.folder)
                    folders[change.folder] = dict(folders[change.folder])
                _rename(folders[change.folder], change)
        return folders


def distinct_crashes(recording: Recording, rng: random.Random, limit_per_point: int, points: Iterable[int] | None,
                     seen: set[object], context: object = None) -> Iterator[tuple[CrashModel, Fates, Image]]:
    """Yield crashes in order of their points: the model at the point, the fates, and the folder.

    Args:
        recording: the recording.
        rng: chooses a sample of the crashes of a point.
        limit_per_point: the largest number of crashes of one point, >= 1.
        points: numbers of operations after which to crash; all if not given.
        seen: keys of the folders that were yielded; grows. A folder is yielded again after other acknowledgements.
        context: a part of the key: equal folders in two contexts are both yielded.
    """
    if limit_per_point < 1:
        raise InvalidInput(f"limit_per_point is {limit_per_point}; give at least 1")
    model = CrashModel(recording)
    for point in range(len(recording.operations) + 1) if points is None else sorted(set(points)):
        model.advance_to(point)
        acknowledged = len(recording.acknowledged(point))
        for fates in fates_of(model, rng, limit_per_point):
            image = model.image(fates)
            key = (hash(tuple(image.paths().items())), acknowledged, context)
            if key not in seen:
                seen.add(key)
                yield model, fates, image


def fates_of(model: CrashModel, rng: random.Random, limit: int) -> Iterable[Fates]:
    """Return the crashes at one point: all combinations of fates, or a sample of `limit`.

    The sample has, in this order as far as `limit` allows: all lost; nothing lost; all lost but the last change, which
    may be torn; crashes in which one change differs from the others (lost, kept or torn); and random crashes, at least
    a quarter of the rest.
    """
    options = model.pending
    if math.prod(map(len, options.values())) > limit:
        return _sampled(options, rng, limit)
    # Crashes that lose less are first, so that the first failure is a simple one.
    combined = sorted(itertools.product(*options.values()), key=lambda fates: sum(fate is not KEPT for fate in fates))
    return [dict(zip(options, fates, strict=True)) for fates in combined]


def _sampled(options: Mapping[Change, tuple[Fate, ...]], rng: random.Random, limit: int) -> Iterator[Fates]:
    kept, lost = dict.fromkeys(options, KEPT), dict.fromkeys(options, LOST)
    last = next(reversed(lost))
    first = [kept, lost, {**lost, last: rng.choice([KEPT, *options[last][2:]])}]
    yield from first[:limit] if limit > 1 else [lost]
    room = max(limit - len(first), 0)
    alone = [(lost, change, KEPT) for change in options] + [
        (kept, change, fate) for change, fates in options.items() for fate in fates if fate is not KEPT]
    if len(alone) > room * 3 // 4:
        alone = rng.sample(alone, room * 3 // 4)
    for others, change, fate in alone:
        yield {**others, change: fate}
    for _ in range(room - len(alone)):
        yield {change: _random_fate(change.operation, rng) for change in options}


def _random_fate(operation: Operation, rng: random.Random) -> Fate:
    if operation.kind == "write" and rng.random() < 0.2:
        return rng.choice(_fates(operation, every=True)[2:])
    return rng.choice((KEPT, LOST))


def _fates(operation: Operation, *, every: bool = False) -> tuple[Fate, ...]:
    """Return the fates of a change: `KEPT`, `LOST`, and of a write the torn ones, those to try first or every one."""
    if operation.kind != "write":
        return KEPT, LOST
    start, length = operation.offset, len(operation.data)
    blocks = range(start // BLOCK_BYTES, (start + length - 1) // BLOCK_BYTES + 1)
    cuts = sorted({1, length // 2, length - 1, *spread(range(SECTOR_BYTES - start % SECTOR_BYTES, length, SECTOR_BYTES),
                                                       3)})
    sizes, lost = [size for size in cuts if 0 < size < length], spread(blocks, 3)
    if every:
        sizes, lost = sizes + spread(range(1, length), _MORE_TEARS), lost + spread(blocks, _MORE_TEARS)
    torn = [*(Fate(f"TORN after {size} bytes", kept_bytes=size) for size in sizes),
            *(Fate(f"block {block} of the file LOST", lost_block=block) for block in lost)]
    return tuple(dict.fromkeys((KEPT, LOST, *torn)))


def _options(change: Change, rest: Fate) -> list[Fate]:
    """Return all fates of a change that can be picked, `rest` first."""
    return [rest, *(fate for fate in _fates(change.operation, every=True) if fate is not rest)]


def _rename(names: dict[str, int], change: Change) -> None:
    for name, inode in change.names:
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


def _applied(content: bytes, changes: Iterable[tuple[Operation, Fate]]) -> bytes:
    result = bytearray(content)
    for operation, fate in changes:
        if fate is LOST:
            continue
        if operation.kind == "truncate":
            del result[operation.offset:]
            _extend(result, operation.offset)
            continue
        view = memoryview(operation.data)
        if fate.lost_block is None:
            _put(result, operation.offset, view[:fate.kept_bytes])
        else:
            start = fate.lost_block * BLOCK_BYTES - operation.offset
            _extend(result, operation.offset + len(view))
            _put(result, operation.offset, view[:max(start, 0)])
            _put(result, operation.offset + start + BLOCK_BYTES, view[start + BLOCK_BYTES:])
    return bytes(result)


def _extend(content: bytearray, size: int) -> None:
    if len(content) < size:
        content.extend(bytes(size - len(content)))


def _put(content: bytearray, offset: int, data: memoryview) -> None:
    if data:
        _extend(content, offset)
        content[offset:offset + len(data)] = data
