# SPDX-License-Identifier: Apache-2.0
"""Arguments at a face: what is not of the type that is asked for is `InvalidInput`, before anything is done with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from itertools import islice
from sys import float_info
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

import attrs

from compactlib.errors import InvalidInput

AnswerT = TypeVar("AnswerT")
ParamsP = ParamSpec("ParamsP")
_LOOKED_AT = 1000
"""Items of a sequence that are looked at."""
_LONGEST_SECONDS = 2_000_000


def require_type(name: str, value: object, kind: type | tuple[type, ...], wanted: str = "", *,
                 or_none: bool = False) -> None:
    """Return if `value` is of this type, or of one of these.

    Args:
        name: of the argument.
        value: what was given.
        kind: what it must be.
        wanted: the same in words, `"a Budget"`; default the types' names.
        or_none: whether it may be `None`.

    Raises:
        InvalidInput: it is not.
    """
    if not (isinstance(value, kind) or (or_none and value is None)):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        raise InvalidInput(f"{name} is {value!r:.100}; give "
                           f"{wanted or ' or '.join([each.__name__ for each in kinds] + ['None'] * or_none)}")


def require_names(name: str, value: object) -> None:
    """Return if `value` is several names; one text would be read as one name for each of its letters.

    Raises:
        InvalidInput: it is one, or nothing of the kind.
    """
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidInput(f"{name} is {value!r:.100}; give a list of names")


def require_id(name: str, value: object, length: int) -> bytes:
    """`value`, which the function of this name gave, if it is so many bytes: stored forms have room for that.

    Raises:
        InvalidInput: it is not.
    """
    if not isinstance(value, bytes) or len(value) != length:
        raise InvalidInput(f"{name} gave {value!r:.100}; it must give {length} bytes, never the same")
    return value


def require_one_of(name: str, value: object, choices: Any) -> None:
    """Return if `value` is one of the texts of this `Literal`.

    Raises:
        InvalidInput: it is not.
    """
    if not isinstance(value, str) or value not in get_args(choices):
        raise InvalidInput(f"{name} is {value!r:.100}; give one of {', '.join(get_args(choices))}")


def require_seconds(name: str, value: object, *, above_zero: bool = False) -> None:
    """Return if `value` is a time that a call can wait: systems count it in milliseconds of 32 bits.

    Raises:
        InvalidInput: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LONGEST_SECONDS or (
            above_zero and value == 0):
        least = "more than 0" if above_zero else "0 or more"
        raise InvalidInput(f"{name} is {value!r:.100}; give {least}, up to {_LONGEST_SECONDS} seconds")


def require_age(now: float, older_than_seconds: float) -> None:
    """Return if what is so old at that time may be removed: below 0 what is being made now would be, too.

    Raises:
        InvalidInput: `now` is no number, or `older_than_seconds` none from 0 on.
    """
    numbers = all(isinstance(each, int | float) for each in (now, older_than_seconds))
    if not numbers or not older_than_seconds >= 0 or now != now:
        raise InvalidInput(f"now is {now!r:.100} and older_than_seconds {older_than_seconds!r:.100}; give a time, and "
                           f"seconds from 0 on")


def require_whole(name: str, value: object, least: int = 0, *, or_none: bool = False) -> None:
    """Return if `value` is a whole number of at least `least`, or is `None`, where that may be.

    Raises:
        InvalidInput: it is not.
    """
    if not ((isinstance(value, int) and not isinstance(value, bool) and value >= least) or (or_none and value is None)):
        raise InvalidInput(f"{name} is {value!r:.100}; it must be a whole number, at least {least}"
                           + ", or None" * or_none)


def require_above_zero(numbers: attrs.AttrsInstance) -> None:
    """Return if every field of a value is a number above 0.

    Raises:
        InvalidInput: one is not; it is named.
    """
    for name, value in attrs.asdict(numbers).items():
        if not isinstance(value, int | float) or not value > 0:
            raise InvalidInput(f"{name} is {value!r:.100}; give a number above 0")


def is_whole(least: int = 0, *, or_none: bool = False) -> Callable[[object, Any, Any], None]:
    """`require_whole` as a validator of `attrs`."""
    return lambda _, field, value: require_whole(field.name, value, least, or_none=or_none)


def is_seconds(least: float = 0, most: float = float_info.max) -> Callable[[object, Any, Any], None]:
    """A validator of `attrs`: `InvalidInput` if a field is no number of seconds from `least` to `most`."""
    def check(_: object, field: Any, value: object) -> None:
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
            raise InvalidInput(f"{field.name} is {value!r:.100}; it must be a number of seconds, at least {least}"
                               + f" and at most {most:.3g}" * (most < float_info.max))

    return check


def is_above(limit: float, *, or_none: bool = False) -> Callable[[object, Any, Any], None]:
    """A validator of `attrs`: `InvalidInput` if a field is no finite number above `limit`, nor `None`, where it may be.
    """
    def check(_: object, field: Any, value: object) -> None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not ((is_number and limit < value <= float_info.max) or (or_none and value is None)):  # type: ignore[operator]
            raise InvalidInput(f"{field.name} is {value!r:.100}; it must be a number above {limit}"
                               + ", or None" * or_none)

    return check


def _has_what_it_seems(value: Any, kind: type) -> bool:
    """`False` for arrays of no dimension, which have the method of an iterable, and tuples of what has no hash."""
    try:
        if kind is Iterable:
            iter(value)
        elif kind is Hashable:
            hash(value)
    except TypeError:
        return False
    return True


def _fits(value: object, hint: Any) -> bool:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return any(value is part or (type(value) is type(part) and value == part) for part in parts)
    if isinstance(origin, type):
        if not isinstance(value, origin) or not _has_what_it_seems(value, origin):
            return False
        if not parts or not isinstance(value, Collection):
            return True
        if isinstance(value, Mapping) and issubclass(origin, Mapping):
            return all(_fits(key, parts[0]) and _fits(item, parts[1])
                       for key, item in islice(value.items(), _LOOKED_AT))
        if origin is tuple and parts[1:] != (...,):
            return len(value) == len(parts) and all(map(_fits, value, parts))
        return all(_fits(item, parts[0]) for item in islice(value, _LOOKED_AT))
    if hint is None or hint is NoneType:
        return value is None
    if hint is Any or not isinstance(hint, type):
        return True
    if getattr(hint, "_is_protocol", False):
        names = {name for kind in hint.__mro__ if getattr(kind, "_is_protocol", False) for name in vars(kind)}
        return all(hasattr(value, name) for name in names if not name.startswith("_"))
    if hint is float and isinstance(value, int):
        return abs(value) <= float_info.max
    return isinstance(value, hint) and _has_what_it_seems(value, hint)
