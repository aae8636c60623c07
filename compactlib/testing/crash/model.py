# SPDX-License-Identifier: Apache-2.0
"""What a disk may hold after a crash: the fault model, as a walk over a recording.

* A write or a change of length is durable after a sync of its file. Before, each is there or not, independently of
  the others; a write may also be there in part: a prefix, or all but one block. Bytes below the end of the file that
  nothing wrote read as zeros.
* A name is durable after a sync of its folder. Before, each change of a name is there or not, independently of the
  others and of the bytes it leads to. A change refers to the file that it concerned when it was made. A rename within
  one folder is one change; between two folders it is two, the new name in one and the removal of the old in the other.
* What the folder held before the recording is durable.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import attrs

from compactlib.errors import InvalidInput
from compactlib.testing.crash.operations import (
    Create,
    Link,
    MakeFolder,
    Operation,
    Recording,
    RemoveFolder,
    Rename,
    Symlink,
    Sync,
    SyncFolder,
    Truncate,
    Unlink,
    Write,
)
from compactlib.testing.crash.state import ChangeId, Choice, Choices, CrashState, Cut, Fate, Hole
from compactlib.testing.crash.tree import ROOT, Image, Tree, digest, fingerprint, write_tree

BLOCK_BYTES = 4096
"""The unit in which a part of a write may be missing."""

_DIGESTS_KEPT = 4096


@attrs.frozen
class NameChange:
    """Names of one folder that change together: each now leads to the file of that number, or to none."""

    folder: int
    names: tuple[tuple[str, int | None], ...]


DataChange: TypeAlias = Write | Truncate
"""A change to the bytes of one file."""

Change: TypeAlias = NameChange | DataChange
"""A change that a crash may undo as long as nothing made it durable."""


def changes_of(index: int, operation: Operation) -> list[tuple[ChangeId, Change]]:
    """The changes that operation number `index` makes: none for a sync, two for a rename between folders."""
    whole = ChangeId(index)
    match operation:
        case Write() | Truncate():
            return [(whole, operation)]
        case Create(path, folder, inode) | Symlink(_, path, folder, inode) | MakeFolder(path, folder, inode):
            return [(whole, NameChange(folder, ((_last(path), inode),)))]
        case Link(_, target, folder, inode):
            return [(whole, NameChange(folder, ((_last(target), inode),)))]
        case Unlink(path, folder, _) | RemoveFolder(path, folder, _):
            return [(whole, NameChange(folder, ((_last(path), None),)))]
        case Rename(source, source_folder, target, target_folder, inode):
            removed, added = (_last(source), None), (_last(target), inode)
            if source_folder == target_folder:
                return [(whole, NameChange(target_folder, (removed, added)))]
            return [(ChangeId(index, "new"), NameChange(target_folder, (added,))),
                    (ChangeId(index, "old"), NameChange(source_folder, (removed,)))]
        case Sync() | SyncFolder():
            return []


def _last(path: str) -> str:
    return path.rpartition("/")[2]


class CrashModel:
    """Stands at one point of a recording: knows what is durable there and what is pending. Walks forward only.

    Attributes:
        point: how many operations have been done.
        pending: the changes that a crash here may undo, in the order they were made. Those to files and folders that
            no crash could bring back under any name are left out.
    """

    def __init__(self, recording: Recording) -> None:
        self._operations = recording.operations
        self.point: int = 0
        self.pending: dict[ChangeId, Change] = {}
        # What is durable. Contents and names of folders are replaced, never changed: states share them.
        self._folders = {number: dict(names) for number, names in recording.initial.tree.folders.items()}
        self._texts = dict(recording.initial.tree.texts)
        self._contents = dict(recording.initial.contents)
        self._syncs = dict.fromkeys(self._contents, 0)
        self._pending_data: dict[int, list[tuple[ChangeId, DataChange]]] = {}
        self._digests: dict[tuple[object, ...], bytes] = {}

    def advance(self) -> None:
        """Do the next operation."""
        index, operation = self.point, self._operations[self.point]
        self.point += 1
        match operation:
            case Create(_, _, inode):
                self._contents[inode] = b""
                self._syncs[inode] = 0
            case Symlink(text, _, _, inode):
                self._texts[inode] = text
            case MakeFolder(_, _, inode):
                self._folders[inode] = {}
            case Sync(_, inode):
                self._sync(inode)
            case SyncFolder(_, inode):
                self._sync_folder(inode)
        for change_id, change in changes_of(index, operation):
            if isinstance(change, NameChange):
                self.pending[change_id] = change
            elif self.reaches(change):
                self.pending[change_id] = change
                self._pending_data.setdefault(change.inode, []).append((change_id, change))

    def advance_to(self, point: int) -> None:
        """Do operations until `point` of them are done.

        Raises:
            InvalidInput: the recording has fewer, or the walk is past `point`.
        """
        if not self.point <= point <= len(self._operations):
            raise InvalidInput(f"the recording cannot be cut after {point} operations: it has {len(self._operations)}, "
                               f"and the walk stands at {self.point}")
        while self.point < point:
            self.advance()

    def choices(self, state: CrashState) -> Choices:
        """The outcome of each pending change in a state of this point.

        Raises:
            InvalidInput: the state names a change that is not pending here, or tears what cannot be torn so.
        """
        choices = state.choices(self.pending)
        for change_id, tear in state.torn:
            change = self.pending[change_id]
            if not isinstance(change, Write) or not _can_tear(change, tear):
                torn = self._operations[change_id.operation]
                raise InvalidInput(f"the crash state {state} does not fit the recording: operation "
                                   f"{change_id.operation}, {torn}, cannot be torn at {tear}")
        return choices

    def tree(self, choices: Choices) -> Tree:
        """The names after a crash here with these choices."""
        folders = dict(self._folders)
        copied: set[int] = set()
        for change_id, change in self.pending.items():
            if isinstance(change, NameChange) and choices[change_id] is Fate.KEPT:
                if change.folder not in copied:
                    copied.add(change.folder)
                    folders[change.folder] = dict(folders[change.folder])
                _rename(folders[change.folder], change)
        return Tree(folders, self._texts)

    def content(self, inode: int, choices: Choices) -> bytes:
        """The bytes of a file after a crash here with these choices."""
        changes = self._pending_data.get(inode)
        if not changes:
            return self._contents[inode]
        return _applied(self._contents[inode], ((change, choices[change_id]) for change_id, change in changes))

    def fingerprint(self, choices: Choices) -> bytes:
        """16 bytes that are equal for equal folders after a crash here with these choices."""
        return fingerprint(self.tree(choices), lambda inode: self._digest(inode, choices))

    def write(self, choices: Choices, folder: str) -> None:
        """Build the folder as it stands after a crash here with these choices, in an empty one."""
        write_tree(self.tree(choices), lambda inode: self.content(inode, choices), folder)

    def reaches(self, change: Change) -> bool:
        """Whether a crash here could leave a name that leads to what the change concerns."""
        return change.folder in self._folders if isinstance(change, NameChange) else change.inode in self._contents

    def final_image(self) -> Image:
        """The folder after all operations, nothing lost."""
        self.advance_to(len(self._operations))
        choices = self.choices(CrashState(self.point))
        return Image(self.tree(choices), {inode: self.content(inode, choices) for inode in self._contents})

    def _sync(self, inode: int) -> None:
        changes = self._pending_data.pop(inode, [])
        if changes:
            self._contents[inode] = _applied(self._contents[inode], ((change, Fate.KEPT) for _, change in changes))
            self._syncs[inode] += 1
            for change_id, _ in changes:
                del self.pending[change_id]

    def _sync_folder(self, folder: int) -> None:
        done = [(change_id, change) for change_id, change in self.pending.items()
                if isinstance(change, NameChange) and change.folder == folder]
        if done:
            self._folders[folder] = dict(self._folders[folder])
            for change_id, change in done:
                _rename(self._folders[folder], change)
                del self.pending[change_id]
            self._forget_unreachable()

    def _forget_unreachable(self) -> None:
        """Forget files and folders that neither a durable nor a pending name leads to, and what is pending in them."""
        leads = {number: set(names.values()) for number, names in self._folders.items()}
        for change in self.pending.values():
            if isinstance(change, NameChange):
                leads[change.folder].update(inode for _, inode in change.names if inode is not None)
        reached, waiting = {ROOT}, [ROOT]
        while waiting:
            new = leads.get(waiting.pop(), set()) - reached
            reached |= new
            waiting.extend(new)
        for known in (self._folders, self._texts, self._contents, self._pending_data):
            for number in known.keys() - reached:
                del known[number]
        for change_id, change in list(self.pending.items()):
            if (change.folder if isinstance(change, NameChange) else change.inode) not in reached:
                del self.pending[change_id]

    def _digest(self, inode: int, choices: Choices) -> bytes:
        changes = self._pending_data.get(inode, ())
        key = (inode, self._syncs[inode], *(choices[change_id] for change_id, _ in changes))
        found = self._digests.get(key)
        if found is None:
            if len(self._digests) >= _DIGESTS_KEPT:
                self._digests.clear()
            found = self._digests[key] = digest(self.content(inode, choices))
        return found


def _can_tear(change: Write, tear: Cut | Hole) -> bool:
    if isinstance(tear, Cut):
        return 0 < tear.size < len(change.data)
    start = tear.block * BLOCK_BYTES
    return start < change.offset + len(change.data) and start + BLOCK_BYTES > change.offset


def _rename(names: dict[str, int], change: NameChange) -> None:
    for name, inode in change.names:
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


def _applied(content: bytes, changes: Iterable[tuple[DataChange, Choice]]) -> bytes:
    result = bytearray(content)
    for change, choice in changes:
        if choice is Fate.LOST:
            continue
        if isinstance(change, Truncate):
            del result[change.size:]
            _extend(result, change.size)
        elif isinstance(choice, Cut):
            _put(result, change.offset, memoryview(change.data)[:choice.size])
        elif isinstance(choice, Hole):
            start = choice.block * BLOCK_BYTES - change.offset
            view = memoryview(change.data)
            _extend(result, change.offset + len(view))
            _put(result, change.offset, view[:max(start, 0)])
            _put(result, change.offset + start + BLOCK_BYTES, view[start + BLOCK_BYTES:])
        else:
            _put(result, change.offset, memoryview(change.data))
    return bytes(result)


def _extend(content: bytearray, size: int) -> None:
    if len(content) < size:
        content.extend(bytes(size - len(content)))


def _put(content: bytearray, offset: int, data: memoryview) -> None:
    if data:
        _extend(content, offset)
        content[offset:offset + len(data)] = data
