# SPDX-License-Identifier: Apache-2.0
"""A key-value store whose values stay in the log: the state machine of `raft_kv.py` and `raft_node.py`.

The machine remembers for each key the index of its last put, and nothing else. A snapshot of it is therefore a set of
live indexes: everything that the machine knows can be found again by applying the live entries to an empty one, and
no live entry can be spared.

A command is one log entry's payload:

| offset | size | what |
| --- | --- | --- |
| 0 | 1 | 1 for a put, 2 for a delete, 3 for a rewrite |
| 1 | 4 | length of the key in bytes, little-endian |
| 5 | that | the key, UTF-8; bytes that are none travel as Python's lone surrogates |
| behind it | 8 | of a rewrite: the index whose place it takes, little-endian |
| behind it | the rest | the value; nothing for a delete |
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import attrs

from compactlib.errors import AuditFailed, InvalidInput, NotFound, Unsorted
from compactlib.indexset import IndexSet
from compactlib.raftlog import Entry

_HEAD = struct.Struct("<BI")
_INDEX = struct.Struct("<Q")
_PUT, _DELETE, _REWRITE = 1, 2, 3
_ERRORS = "surrogateescape"
_KEYS_PER_LINE = 1000


@attrs.frozen
class Put:
    """Set the value of `key`, and replace its old value."""

    key: str
    value: bytes


@attrs.frozen
class Delete:
    """Take `key` and its value away; a key that is not there stays so."""

    key: str


@attrs.frozen
class Rewrite(Put):
    """Keep the value that `key` has from the entry `of` in this entry from now on, if it still has it from there.

    The key may have been put or deleted between the moment when this was proposed and the one when it is applied; then
    it changes nothing. So an old value is never brought back: see `plan_clump`.
    """

    of: int


Command: TypeAlias = Put | Delete
"""What one log entry asks of the machine."""


def encode_command(command: Command) -> bytes:
    """The payload of a command's log entry."""
    key = command.key.encode("utf-8", _ERRORS)
    if isinstance(command, Rewrite):
        return _HEAD.pack(_REWRITE, len(key)) + key + _INDEX.pack(command.of) + command.value
    if isinstance(command, Put):
        return _HEAD.pack(_PUT, len(key)) + key + command.value
    return _HEAD.pack(_DELETE, len(key)) + key


def decode_command(payload: bytes) -> Command:
    """The command in a log entry's payload.

    Raises:
        InvalidInput: the payload is no command; says where it stops being one.
    """
    if len(payload) < _HEAD.size:
        raise InvalidInput(f"a command begins with {_HEAD.size} bytes, found {len(payload)} in all; "
                           f"is this the log of another state machine?")
    operation, size = _HEAD.unpack_from(payload)
    end = _HEAD.size + size
    least = end + _INDEX.size if operation == _REWRITE else end
    if operation not in (_PUT, _DELETE, _REWRITE) or least > len(payload) or \
            (operation == _DELETE and end < len(payload)):
        raise InvalidInput(f"a command of {len(payload)} bytes cannot have operation {operation} (1 put, 2 delete, 3 "
                           f"rewrite) and a key of {size} bytes; is this the log of another state machine?")
    key = payload[_HEAD.size:end].decode("utf-8", _ERRORS)
    if operation == _REWRITE:
        return Rewrite(key, payload[least:], *_INDEX.unpack_from(payload, end))
    return Put(key, payload[end:]) if operation == _PUT else Delete(key)


class KvMachine:
    """Where each key's value is in the log. No I/O, no clock: equal commands give equal machines.

    A `StateMachine` that notes each entry's death when a command causes it, so that a snapshot's live set costs what
    has changed since the last one.
    """

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._applied = -1
        # The live set of the last snapshot; the entries that were applied since, and those that have died.
        self._live = IndexSet()
        self._new: list[int] = []
        self._dead: list[int] = []

    @classmethod
    def rebuilt(cls, entries: Iterable[Entry], *, snapshot: int = -1) -> KvMachine:
        """The machine that `entries` lead to: what survives in a log, in order.

        Args:
            entries: the log's.
            snapshot: up to this index they are the live ones that a snapshot has left.

        Raises:
            InvalidInput: an entry's payload is no command.
        """
        machine = cls()
        for entry in entries:
            machine._carry_out(entry, is_live=entry.index <= snapshot)
        return machine

    def apply(self, entry: Entry) -> bool:
        """Carry out the command in a log entry; says whether the key was there before.

        Raises:
            InvalidInput: the payload is no command.
            Unsorted: an entry of this index or a later one was applied before.
        """
        return self._carry_out(entry)

    def _carry_out(self, entry: Entry, *, is_live: bool = False) -> bool:
        command = decode_command(entry.payload)
        if entry.index <= self._applied:
            raise Unsorted(f"entry {entry.index} was applied after {self._applied}; apply each once, in order",
                           previous=self._applied, found=entry.index)
        self._applied = entry.index
        self._new.append(entry.index)
        # That a rewrite is live says that it has taken the place of an entry which is not there any more.
        if isinstance(command, Rewrite) and self._places.get(command.key) != command.of and not is_live:
            self._dead.append(entry.index)
            return command.key in self._places
        before = self._places.pop(command.key, None)
        if before is not None:
            self._dead.append(before)
        if isinstance(command, Put):
            self._places[command.key] = entry.index
        else:
            # A delete has no value that could be read.
            self._dead.append(entry.index)
        return before is not None

    @property
    def applied(self) -> int:
        """The index applied last, -1 before the first."""
        return self._applied

    @property
    def places(self) -> dict[str, int]:
        """For each key that exists, the index of the entry that holds its value; a copy."""
        return dict(self._places)

    def place_of(self, key: str) -> int:
        """The index of the entry that holds a key's value. O(1).

        Raises:
            NotFound: there is no such key.
        """
        try:
            return self._places[key]
        except KeyError:
            raise NotFound(f"there is no key {key!r}") from None

    def live_indexes(self) -> IndexSet:
        """Return the live indexes of a snapshot taken now: the value's index of each existing key. O(keys).
        """
        return IndexSet.from_iterable(self._places.values())

    def live_set(self) -> IndexSet:
        """Return the same from the noted indexes. O(live runs and changes since the last call)."""
        self._live = (self._live | IndexSet.from_sorted(self._new)) - IndexSet.from_iterable(self._dead)
        self._new, self._dead = [], []
        return self._live

    def snapshot(self) -> Iterator[bytes]:
        """See `StateMachine`: the keys and their places as JSON, a thousand a line."""
        items = sorted(self._places.items())
        return (json.dumps(items[start:start + _KEYS_PER_LINE]).encode() + b"\n"
                for start in range(0, len(items), _KEYS_PER_LINE))

    def restore(self, pieces: Iterator[bytes]) -> None:
        """See `StateMachine`; `begin_after` says which entry the state follows."""
        lines = b"".join(pieces).splitlines()
        self._places = {str(key): int(place) for line in lines for key, place in json.loads(line)}
        self._live, self._new, self._dead = self.live_indexes(), [], []
        self._applied = max(self._places.values(), default=-1)

    def begin_after(self, index: int) -> None:
        """Set the index of the last entry in the restored state."""
        self._applied = index

    def audit(self) -> None:
        """Check the machine's own invariants, and the noted indexes against a walk over all keys.

        Raises:
            AuditFailed: two keys claim one entry, or one is above the applied index, or the notes were wrong.
        """
        distinct = set(self._places.values())
        if len(distinct) != len(self._places) or max(distinct, default=-1) > self.applied:
            raise AuditFailed(f"{len(self._places)} keys claim {len(distinct)} entries up to "
                              f"{max(distinct, default=-1)}, with {self.applied} applied last")
        if self.live_set() != IndexSet.from_iterable(self.live_indexes()):
            raise AuditFailed("the deaths that were noted leave other live entries than the keys do")

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same keys, with their values at the same places. What changes cannot be hashed."""
        return isinstance(other, KvMachine) and self._places == other._places

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        return f"<KvMachine: {len(self._places)} keys, applied up to {self.applied}>"
