# SPDX-License-Identifier: Apache-2.0
"""`JsonCodec`: attrs values as JSON and back, checked against the types of their fields.

| a field of type | is |
| --- | --- |
| `int`, `str`, `bool`, `None` | itself |
| `float` | a finite number |
| `bytes` | text in base64 |
| an `Enum`, a `Literal` | its value |
| `tuple`, `NamedTuple`, `frozenset`, `Sequence` (given a tuple) | a list |
| `dict`, `Mapping` with keys of text or whole numbers | an object |
| an attrs class | an object of its fields; a field with its default is left out |
| one of several attrs classes | the same, with the name of the class under `is` |

A value of another type and an unknown field raise `FieldError` with the field's name.

>>> import attrs
>>> @attrs.frozen
... class Lease:
...     token: int
...     holder: str = ""
>>> codec = JsonCodec(Lease)
>>> codec.encode(Lease(57, "worker 3"))
b'{"token":57,"holder":"worker 3"}'
>>> codec.decode(b'{"token":57}', "a lease")
Lease(token=57, holder='')
>>> codec.from_plain({"token": "57"})
Traceback (most recent call last):
compactlib.codec.FieldError: token is '57'; expected a whole number
"""

from __future__ import annotations

import base64
import enum
import json
import typing
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache
from sys import float_info
from types import NoneType, UnionType
from typing import Any, Generic, Literal, TypeAlias, TypeVar, Union, cast, get_args, get_origin

import attrs

from compactlib.errors import CorruptData, InvalidInput

T = TypeVar("T")

Plain: TypeAlias = Any
"""JSON as Python values: numbers, text, `None`, lists, and dictionaries with keys of text."""

_TAG = "is"
"""A keyword of Python, so that no field has this name."""
_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


class FieldError(InvalidInput):
    """A value does not fit the type of its field.

    Attributes:
        field: the path from the outermost value: `"jobs[3].token"`; empty for that value itself.
        expected: the expected type or values.
        found: the value found.
    """

    def __init__(self, *, field: str, expected: str, found: str) -> None:
        super().__init__(f"{field or 'the value'} is {found}; expected {expected}")
        self.field = field
        self.expected = expected
        self.found = found

    def within(self, step: str) -> FieldError:
        """Return the error for the enclosing value, of which `step` is a field, or an item as `"[3]"`."""
        dot = "." if self.field and not self.field.startswith("[") else ""
        return FieldError(field=f"{step}{dot}{self.field}", expected=self.expected, found=self.found)


def _misfit(expected: str, found: object) -> FieldError:
    return FieldError(field="", expected=expected, found=f"{found!r:.100}")


class JsonCodec(Generic[T]):
    """Converts values of one type to JSON and back. Threads may share it.

    Args:
        kind: the type: an attrs class, or a union of attrs classes.

    Raises:
        TypeError: the type has no form in JSON. For the type of a field, the first conversion raises it.
    """

    def __init__(self, kind: type[T] | Any) -> None:
        self._form = _form_of(cast("Hashable", kind))

    def to_plain(self, value: T) -> Plain:
        """Convert a value to JSON data. O(size).

        Raises:
            FieldError: a field does not fit its type.
        """
        return self._form.write(value)

    def from_plain(self, plain: Plain) -> T:
        """Convert JSON data to a value. O(size).

        Raises:
            FieldError: a field is absent, unknown, or does not fit.
        """
        value: T = self._form.read(plain)
        return value

    def encode(self, value: T) -> bytes:
        """Return the value as JSON in ASCII; see `to_plain`."""
        return _JSON.encode(self.to_plain(value)).encode("ascii")

    def decode(self, data: bytes, place: str) -> T:
        """Return the value; `place` is the source of the bytes, for errors.

        Raises:
            CorruptData: the bytes are not JSON, or a field does not fit; the message names the field.
        """
        try:
            return self.from_plain(json.loads(data.decode()))
        except FieldError as error:
            raise CorruptData(path=place, offset=0, expected=f"{error.field or 'a value'}: {error.expected}",
                              found=error.found) from error
        except (ValueError, RecursionError) as error:
            raise CorruptData(path=place, offset=0, expected="JSON", found=str(error)) from error


@attrs.frozen
class _Form:
    """The conversions of one type; both raise `FieldError`.

    Attributes:
        same: a type whose values are JSON already, so that no conversion is called.
    """

    write: Callable[[Any], Plain]
    read: Callable[[Plain], Any]
    same: type | None = None


@cache
def _form_of(hint: Any) -> _Form:
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    origin, parts = get_origin(hint), get_args(hint)
    if hint in _ATOMS:
        return _ATOMS[hint]
    if origin in (Union, UnionType):
        return _union(parts)
    if origin is Literal:
        return _checked(lambda value: value in parts, f"one of {parts}")
    if origin is tuple and parts[1:] != (...,):
        return _fixed([_form_of(part) for part in parts])
    if origin in (tuple, Sequence, frozenset):
        return _many(_form_of(parts[0]), frozenset if origin is frozenset else tuple)
    if origin in (dict, Mapping):
        return _mapping(*parts)
    if isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields"):
        return _fixed([_form_of(part) for part in typing.get_type_hints(hint).values()], hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _enum(hint)
    if attrs.has(hint):
        return _fields(hint)
    raise TypeError(f"{hint!r} has no form in JSON; give a field one of the types of `compactlib.codec`")


# ------------------------------------------------------------------------------------------------------------- atoms


def _checked(fits: Callable[[Any], bool], expected: str, same: type | None = None) -> _Form:
    def checked(value: Any) -> Any:
        if not fits(value):
            raise _misfit(expected, value)
        return value

    return _Form(checked, checked, same)


def _atom(kind: type, expected: str) -> _Form:
    return _checked(lambda value: type(value) is kind, expected, kind)


def _number(value: Any) -> float:
    if type(value) not in (float, int) or not abs(value) <= float_info.max:
        raise _misfit("a finite number", value)
    return float(value)


def _to_base64(value: Any) -> str:
    if not isinstance(value, bytes):
        raise _misfit("bytes", value)
    return base64.b64encode(value).decode("ascii")


def _from_base64(plain: Any) -> bytes:
    try:
        return base64.b64decode(plain, validate=True)
    except (ValueError, TypeError) as error:
        raise _misfit("text in base64", plain) from error


_ATOMS: dict[Any, _Form] = {
    int: _atom(int, "a whole number"),
    str: _atom(str, "text"),
    bool: _atom(bool, "true or false"),
    None: _atom(NoneType, "nothing"),
    NoneType: _atom(NoneType, "nothing"),
    float: _Form(_number, _number),
    bytes: _Form(_to_base64, _from_base64),
}


def _enum(kind: type[enum.Enum]) -> _Form:
    members = {(type(member.value), member.value): member for member in kind}
    expected = f"one of {[member.value for member in kind]}"

    def write(value: Any) -> Plain:
        if type(value) is not kind:
            raise _misfit(f"a {kind.__name__}", value)
        return value.value

    def read(plain: Plain) -> Any:
        found = members.get((type(plain), plain)) if isinstance(plain, str | int) else None
        if found is None:
            raise _misfit(expected, plain)
        return found

    return _Form(write, read)


# -------------------------------------------------------------------------------------------------------- containers


def _each(change: Callable[[Any], Any], values: Iterable[Any]) -> list[Any]:
    done: list[Any] = []
    try:
        done.extend(change(value) for value in values)
    except FieldError as misfit:
        raise misfit.within(f"[{len(done)}]") from misfit.__cause__
    return done


def _many(form: _Form, kind: type[Any]) -> _Form:
    def write(value: Any) -> Plain:
        if not isinstance(value, kind):
            raise _misfit(f"a {kind.__name__}", value)
        return _each(form.write, sorted(value) if kind is frozenset else value)

    def read(plain: Plain) -> Any:
        if type(plain) is not list:
            raise _misfit("a list", plain)
        return kind(_each(form.read, plain))

    return _Form(write, read)


def _fixed(forms: Sequence[_Form], named: type[Any] | None = None) -> _Form:
    def checked(value: Any, kind: type[tuple[Any, ...]] | type[list[Any]]) -> Any:
        if not isinstance(value, kind) or len(value) != len(forms):
            raise _misfit(f"{len(forms)} values", value)
        return value

    def write(value: Any) -> Plain:
        pairs = zip(forms, checked(value, tuple), strict=True)
        return _each(lambda pair: pair[0].write(pair[1]), pairs)

    def read(plain: Plain) -> Any:
        pairs = zip(forms, checked(plain, list), strict=True)
        values = _each(lambda pair: pair[0].read(pair[1]), pairs)
        return tuple(values) if named is None else named(*values)

    return _Form(write, read)


def _mapping(key_hint: Any, value_hint: Any) -> _Form:
    form, keys_are_numbers = _form_of(value_hint), key_hint is int
    if key_hint not in (str, int):
        raise TypeError(f"a mapping with keys of type {key_hint!r} has no form in JSON; give text or whole numbers")

    def entry(change: Callable[[Any], Any], key: Any, value: Any) -> Any:
        try:
            return change(value)
        except FieldError as misfit:
            raise misfit.within(f"[{key!r}]") from misfit.__cause__

    def write(value: Any) -> Plain:
        if not isinstance(value, Mapping) or not all(type(key) is key_hint for key in value):
            raise _misfit(f"a mapping with keys of type {key_hint.__name__}", value)
        return {str(key): entry(form.write, key, part) for key, part in value.items()}

    def read(plain: Plain) -> Any:
        if type(plain) is not dict:
            raise _misfit("an object", plain)
        if keys_are_numbers and not all(key.removeprefix("-").isdecimal() for key in plain):
            raise _misfit("an object with whole numbers for keys", plain)
        return {int(key) if keys_are_numbers else key: entry(form.read, key, part) for key, part in plain.items()}

    return _Form(write, read)


# ----------------------------------------------------------------------------------------------------- attrs classes


def _union(parts: Sequence[Any]) -> _Form:
    classes = {part.__name__: part for part in parts if attrs.has(part)}
    others = [_form_of(part) for part in parts if not attrs.has(part)]
    same = {form.same for form in others}
    expected = " or ".join(getattr(part, "__name__", str(part)) for part in parts)
    tagged = len(classes) > 1

    def write(value: Any) -> Plain:
        name = type(value).__name__
        if classes.get(name) is type(value):
            plain = _form_of(classes[name]).write(value)
            return {_TAG: name, **plain} if tagged else plain
        return first(lambda form: form.write, value)

    def read(plain: Plain) -> Any:
        if type(plain) is dict and classes:
            if not tagged:
                return _form_of(next(iter(classes.values()))).read(plain)
            name = plain.get(_TAG)
            if type(name) is not str or name not in classes:
                raise _misfit(f"an object with {_TAG!r} of {expected}", plain)
            return _form_of(classes[name]).read({key: part for key, part in plain.items() if key != _TAG})
        return first(lambda form: form.read, plain)

    def first(way: Callable[[_Form], Callable[[Any], Any]], value: Any) -> Any:
        if type(value) in same:
            return value
        misfits: list[FieldError] = []
        for form in others:
            try:
                return way(form)(value)
            except FieldError as misfit:
                misfits.append(misfit)
        # A form that got below the top gives the best message; else name all.
        raise next((misfit for misfit in misfits if misfit.field), None) or _misfit(expected, value)

    return _Form(write, read)


def _fields(kind: type[Any]) -> _Form:
    fields = [field for field in attrs.fields(kind) if field.init]
    names = {field.alias for field in fields}
    needed = {field.alias for field in fields if field.default is attrs.NOTHING}

    @cache
    def listed() -> list[tuple[str, str, Any, _Form]]:
        # Computed at the first use, since a class may refer to itself.
        hints = typing.get_type_hints(kind)
        return [(field.name, field.alias, field.default, _form_of(hints[field.name])) for field in fields]

    def write(value: Any) -> Plain:
        if type(value) is not kind:
            raise _misfit(f"a {kind.__name__}", value)
        plain: dict[str, Plain] = {}
        for name, alias, default, form in listed():
            part = getattr(value, name)
            if part == default and type(part) is type(default):
                continue
            try:
                plain[alias] = part if type(part) is form.same else form.write(part)
            except FieldError as misfit:
                raise misfit.within(alias) from misfit.__cause__
        return plain

    def read(plain: Plain) -> Any:
        if type(plain) is not dict:
            raise _misfit(f"an object, the fields of a {kind.__name__}", plain)
        if not plain.keys() <= names:
            unknown = min(plain.keys() - names)
            raise _misfit(f"no such field in a {kind.__name__}", plain[unknown]).within(unknown)
        if not plain.keys() >= needed:
            missing = min(needed - plain.keys())
            raise FieldError(field=missing, expected=f"a field of a {kind.__name__}", found="absent")
        values: dict[str, Any] = {}
        for _, alias, _, form in listed():
            if alias in plain:
                part = plain[alias]
                try:
                    values[alias] = part if type(part) is form.same else form.read(part)
                except FieldError as misfit:
                    raise misfit.within(alias) from misfit.__cause__
        try:
            return kind(**values)
        except (InvalidInput, ValueError, TypeError) as error:
            raise _misfit(str(error), plain) from error

    return _Form(write, read)
