# SPDX-License-Identifier: Apache-2.0
"""Crash states: which changes that nothing had made durable are there after a crash, and which are not.

A state prints as a short text and parses back. `31` is a crash after the first 31 operations with everything there
that was done; what is missing follows a colon:

| text | meaning |
| --- | --- |
| `-28` | the change made by operation 28 is lost |
| `-28.new`, `-28.old` | of a rename from one folder to another: the new name is lost; the old name is still there |
| `~17@512` | of the bytes written by operation 17, only the first 512 are there |
| `~17!3` | of the bytes written by operation 17, those in the file's block 3 are lost, but the file has grown |
| | (a block has 4096 bytes; the first is block 0) |
| `-*` | every change that could be lost is, except those after `+` or `~` |
| `+28` | the change made by operation 28 is there |
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import TypeAlias

import attrs

from compactlib.errors import InvalidInput

_STATE = re.compile(r"(\d+)(?::(.*))?")
_ITEM = re.compile(r"([-+])(\d+)(?:\.(new|old))?|~(\d+)([@!])(\d+)")


@attrs.frozen(order=True)
class ChangeId:
    """One change that is there or not as a whole.

    Attributes:
        operation: the position in the recording of the operation that made it.
        half: `"new"` or `"old"` for the two changes of a rename from one folder to another, else empty.
    """

    operation: int
    half: str = ""

    def __str__(self) -> str:
        return f"{self.operation}.{self.half}" if self.half else str(self.operation)


class Fate(enum.Enum):
    """The outcome of a change."""

    KEPT = "+"
    LOST = "-"


@attrs.frozen
class Cut:
    """Of a write, only the first `size` bytes are there."""

    size: int

    def __str__(self) -> str:
        return f"@{self.size}"


@attrs.frozen
class Hole:
    """Of a write, the bytes in the file's block number `block` (of 4096 bytes) are lost, but the file has grown."""

    block: int

    def __str__(self) -> str:
        return f"!{self.block}"


Choice: TypeAlias = Fate | Cut | Hole
"""The outcome of one change."""

Choices: TypeAlias = Mapping[ChangeId, Choice]
"""The outcome of each change that was not durable, in the order they were made."""


@attrs.frozen
class CrashState:
    """One way a folder may stand after a crash, as a value; see the head of this file for its text.

    Attributes:
        point: how many operations had been done.
        rest: the outcome of the changes not named below.
        others: changes with the other fate, ascending.
        torn: writes of which a part is there, ascending.
    """

    point: int
    rest: Fate = Fate.KEPT
    others: tuple[ChangeId, ...] = ()
    torn: tuple[tuple[ChangeId, Cut | Hole], ...] = ()

    @classmethod
    def of(cls, point: int, choices: Choices) -> CrashState:
        """The state at `point` with these choices, in the shorter of its two forms."""
        lost = tuple(change for change, choice in choices.items() if choice is Fate.LOST)
        kept = tuple(change for change, choice in choices.items() if choice is Fate.KEPT)
        torn = tuple((change, choice) for change, choice in choices.items() if isinstance(choice, Cut | Hole))
        if len(lost) <= len(kept) + 1:
            return cls(point, Fate.KEPT, lost, torn)
        return cls(point, Fate.LOST, kept, torn)

    @classmethod
    def parse(cls, text: str) -> CrashState:
        """The state that prints as `text`.

        Raises:
            InvalidInput: no state prints so.
        """
        whole = _STATE.fullmatch(text.strip())
        if whole is None:
            raise InvalidInput(f"a crash state looks like '31:-28,~17@512', found {text!r}")
        items = whole[2].split(",") if whole[2] else []
        rest = Fate.KEPT
        if items and items[0] == "-*":
            rest = Fate.LOST
            del items[0]
        sign = "+" if rest is Fate.LOST else "-"
        others: list[ChangeId] = []
        torn: list[tuple[ChangeId, Cut | Hole]] = []
        for item in items:
            match = _ITEM.fullmatch(item)
            if match is None or (match[1] and match[1] != sign):
                raise InvalidInput(f"in the crash state {text!r}, {item!r} is not '{sign}28', '{sign}28.new', "
                                   f"'{sign}28.old', '~17@512' or '~17!3'")
            if match[1]:
                others.append(ChangeId(int(match[2]), match[3] or ""))
            else:
                amount = int(match[6])
                torn.append((ChangeId(int(match[4])), Cut(amount) if match[5] == "@" else Hole(amount)))
        return cls(int(whole[1]), rest, tuple(sorted(others)), tuple(sorted(torn, key=lambda tear: tear[0])))

    def choices(self, pending: Mapping[ChangeId, object]) -> Choices:
        """The outcome of each of the `pending` changes.

        Raises:
            InvalidInput: the state names a change that is not pending: it was durable, or had not been made.
        """
        choices: dict[ChangeId, Choice] = dict.fromkeys(pending, self.rest)
        other = Fate.LOST if self.rest is Fate.KEPT else Fate.KEPT
        named: list[tuple[ChangeId, Choice]] = [*((change, other) for change in self.others), *self.torn]
        for change, choice in named:
            if change not in choices:
                raise InvalidInput(f"the crash state {self} does not fit the recording: change {change} cannot be lost "
                                   f"after {self.point} operations")
            choices[change] = choice
        return choices

    def __str__(self) -> str:
        sign = "+" if self.rest is Fate.LOST else "-"
        items = ["-*"] if self.rest is Fate.LOST else []
        items += [f"{sign}{change}" for change in self.others]
        items += [f"~{change}{tear}" for change, tear in self.torn]
        return f"{self.point}:{','.join(items)}" if items else str(self.point)
