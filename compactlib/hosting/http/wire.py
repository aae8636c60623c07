# SPDX-License-Identifier: Apache-2.0
"""The two forms of what is said over HTTP: JSON with the fields' names, and the compact records of the scheduler.

In JSON a value is an object of its fields, by the names that the classes give them; those that have a default may be
left out. A tuple is an array, a `JobStatus` its name in small letters, a `Verdict` and a `NoOutput` their text. The
records are those of `docs/formats/scheduler-state.md`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum, IntEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, NoReturn, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import attrs

from compactlib.errors import CorruptData, InvalidInput
from compactlib.scheduler.persistence.codec import Message, decode_message, encode_message

JSON = "application/json"
RECORD = "application/vnd.compactlib.record"
"""The media type of the compact form."""

MAX_VALUES = 1_000_000
"""Numbers, texts, arrays and objects of one request; each takes some 50 bytes once it is read."""
_MAX_DIGITS = 40
_SEPARATORS = (b",", b"[", b"{")

MessageT = TypeVar("MessageT", bound=Message)
_Reader: TypeAlias = Callable[[Any], Any]
_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def encode(message: Message, media: str) -> bytes:
    """A message in one of the two forms. O(size).

    Raises:
        InvalidInput: a number in it is infinite or none.
    """
    if media == RECORD:
        return encode_message(message)
    try:
        return _JSON.encode(_named(message)).encode("ascii")
    except ValueError as error:
        raise InvalidInput(f"a {type(message).__name__} cannot be sent: {error}; give finite numbers") from None


def decode(data: bytes, media: str, kind: type[MessageT], *, max_values: int | None = None) -> MessageT:
    """A message that must be of this class. O(size); how many values it has is looked at before they are made.

    Args:
        data: the message.
        media: in which of the two forms.
        kind: the class.
        max_values: so many at most; default `MAX_VALUES`.

    Raises:
        InvalidInput: it is none, or too large.
        Unsupported: a record was written by another release.
    """
    values, most = sum(map(data.count, _SEPARATORS)), MAX_VALUES if max_values is None else max_values
    if values > most:
        raise InvalidInput(f"the message has some {values:,} values, and at most {most:,} are read; send it in parts")
    shape: Any = kind
    try:
        if media != RECORD:
            message: Message = _reader(shape)(json.loads(data, parse_constant=_refuse, parse_int=_int))
        else:
            message = decode_message(data, f"a {kind.__name__}")
    except _Misfit as misfit:
        raise InvalidInput(f"{kind.__name__}{misfit.place}: {misfit.what}") from None
    except (ValueError, RecursionError, OverflowError) as error:
        raise InvalidInput(f"this is no {kind.__name__} in JSON: {error}") from None
    except CorruptData as error:
        raise InvalidInput(f"this is no record of a {kind.__name__}: expected {error.expected}, found {error.found}"
                           ) from None
    if not isinstance(message, kind):
        raise InvalidInput(f"a {type(message).__name__} was sent where a {kind.__name__} is expected")
    return message


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number; give finite ones")


def _int(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"a whole number of {len(text)} digits")
    return int(text)


def _named(value: Any) -> Any:
    """The value as JSON has it."""
    kind: Any = type(value)
    if kind in (str, int, float, NoneType):
        return value
    if kind is tuple:
        return [_named(part) for part in value]
    if isinstance(value, IntEnum):
        return value.name.lower()
    if isinstance(value, Enum):
        return value.value
    return {name: _named(getattr(value, name)) for name in _names(kind)}


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in attrs.fields(kind))


class _Misfit(Exception):
    """What does not fit, and where: the place grows from the inside out."""

    def __init__(self, what: str, place: str = "") -> None:
        super().__init__(what, place)
        self.what = what
        self.place = place


@cache
def _reader(hint: Any) -> _Reader:
    """What makes a value of this type from JSON; raises `_Misfit`."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _union_reader([_reader(part) for part in parts if part is not NoneType], or_none=NoneType in parts)
    if origin is tuple:
        return _array_reader(_reader(parts[0]))
    if attrs.has(hint):
        return _object_reader(hint)
    if issubclass(hint, Enum):
        return _enum_reader(hint)
    return _atom_reader(hint)


def _atom_reader(kind: type[Any]) -> _Reader:
    def read(plain: Any) -> Any:
        if type(plain) is kind:
            return plain
        if kind is float and type(plain) is int:
            return float(plain)
        raise _Misfit(f"found {plain!r:.100}, give {_WORDS[kind]}")

    return read


_WORDS = {str: "a text", int: "a whole number", float: "a number"}


def _enum_reader(kind: type[Enum]) -> _Reader:
    members = {member.name.lower() if issubclass(kind, IntEnum) else member.value: member for member in kind}

    def read(plain: Any) -> Any:
        found = members.get(plain) if isinstance(plain, str) else None
        if found is None:
            raise _Misfit(f"found {plain!r:.100}, give one of {', '.join(map(repr, members))}")
        return found

    return read


def _array_reader(item: _Reader) -> _Reader:
    def read(plain: Any) -> Any:
        if not isinstance(plain, list):
            raise _Misfit(f"found {plain!r:.100}, give an array")
        read_parts: list[Any] = []
        try:
            read_parts.extend(map(item, plain))
        except _Misfit as misfit:
            raise _Misfit(misfit.what, f"[{len(read_parts)}]{misfit.place}") from None
        return tuple(read_parts)

    return read


def _union_reader(readers: list[_Reader], *, or_none: bool) -> _Reader:
    def read(plain: Any) -> Any:
        if plain is None and or_none:
            return None
        misfits: list[_Misfit] = []
        for reader in readers:
            try:
                return reader(plain)
            except _Misfit as misfit:
                misfits.append(misfit)
        raise misfits[0]

    return read


def _object_reader(kind: type[Any]) -> _Reader:
    hints = get_type_hints(kind)
    readers = {field.name: _reader(hints[field.name]) for field in attrs.fields(kind)}
    needed = frozenset(field.name for field in attrs.fields(kind) if field.default is attrs.NOTHING)

    def read(plain: Any) -> Any:
        if not isinstance(plain, dict):
            raise _Misfit(f"found {plain!r:.100}, give an object with {', '.join(readers)}")
        if not needed <= plain.keys() <= readers.keys():
            raise _Misfit(f"found an object with {list(plain)!r:.200}; a {kind.__name__} has {', '.join(readers)}"
                          + (f", and needs {', '.join(sorted(needed))}" if needed else ""))
        fields, name = {}, ""
        try:
            for name, part in plain.items():
                fields[name] = readers[name](part)
            return kind(**fields)
        except _Misfit as misfit:
            raise _Misfit(misfit.what, f".{name}{misfit.place}") from None
        except InvalidInput as error:
            raise _Misfit(str(error)) from None

    return read
