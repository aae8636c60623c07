"""A key-value store whose values stay in the log: the state machine of the demo, and an example for hosts.

The machine remembers for each key the index of its last put, and nothing else. A snapshot of it is therefore a set of
live indexes: everything that the machine knows can be found again by applying the live entries to an empty one, and
no live entry can be spared.

A command is one log entry's payload:

| offset | size | what |
| --- | --- | --- |
| 0 | 1 | 1 for a put, 2 for a delete |
| 1 | 4 | length of the key in bytes, little-endian |
| 5 | that | the key, UTF-8; bytes that are none travel as Python's lone surrogates |
| behind it | the rest | the value; nothing for a delete |
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TypeAlias

import attrs

from compactlib.errors import CompactlibError, InvalidInput, Unsorted
from compactlib.indexset import IndexSet
from compactlib.raftlog.model import Entry

_HEAD = struct.Struct("<BI")
_PUT, _DELETE = 1, 2
_ERRORS = "surrogateescape"


@attrs.frozen
class Put:
    """Give `key` a value; what it had before is gone."""

    key: str
    value: bytes


@attrs.frozen
class Delete:
    """Take `key` and its value away; a key that is not there stays so."""

    key: str


Command: TypeAlias = Put | Delete
"""What one log entry asks of the machine."""


def encode_command(command: Command) -> bytes:
    """The payload of a command's log entry."""
    key = command.key.encode("utf-8", _ERRORS)
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
    if operation not in (_PUT, _DELETE) or end > len(payload) or (operation == _DELETE and end < len(payload)):
        raise InvalidInput(f"a command of {len(payload)} bytes cannot have operation {operation} (1 put, 2 delete) and "
                           f"a key of {size} bytes; is this the log of another state machine?")
    key = payload[_HEAD.size:end].decode("utf-8", _ERRORS)
    return Put(key, payload[end:]) if operation == _PUT else Delete(key)


class KvMachine:
    """Where each key's value is in the log. No I/O, no clock: equal commands give equal machines."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._applied = -1

    @classmethod
    def rebuilt(cls, entries: Iterable[Entry]) -> KvMachine:
        """The machine that `entries` lead to: what survives in a log, in order.

        Raises:
            InvalidInput: an entry's payload is no command.
        """
        machine = cls()
        for entry in entries:
            machine.apply(entry.index, decode_command(entry.payload))
        return machine

    def apply(self, index: int, command: Command) -> None:
        """Carry out the command of the log entry at `index`.

        Raises:
            Unsorted: a command of this index or a later one was applied before.
        """
        if index <= self._applied:
            raise Unsorted(f"the command at index {index} comes after that at {self._applied}; apply each entry once, "
                           f"in the order of the log", previous=self._applied, found=index)
        self._applied = index
        if isinstance(command, Put):
            self._places[command.key] = index
        else:
            self._places.pop(command.key, None)

    @property
    def places(self) -> dict[str, int]:
        """For each key that exists, the index of the entry that holds its value; a copy."""
        return dict(self._places)

    def live_indexes(self) -> IndexSet:
        """What a snapshot taken now needs of the log: the last put of each key that exists."""
        return IndexSet.from_iterable(self._places.values())

    def audit(self) -> None:
        """Check the machine's own invariants.

        Raises:
            CompactlibError: two keys claim one entry, or one lies above what was applied.
        """
        distinct = set(self._places.values())
        if len(distinct) != len(self._places) or max(distinct, default=-1) > self._applied:
            raise CompactlibError(f"{len(self._places)} keys claim {len(distinct)} entries up to "
                                  f"{max(distinct, default=-1)}, with {self._applied} applied last")

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same keys, with their values at the same places. What changes cannot be hashed."""
        return isinstance(other, KvMachine) and self._places == other._places

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        return f"<KvMachine: {len(self._places)} keys, applied up to {self._applied}>"
