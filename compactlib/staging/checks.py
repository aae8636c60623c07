"""Arguments of the public face are what they should be, or are refused by name."""

from __future__ import annotations

from compactlib.errors import InvalidInput


def check_type(name: str, value: object, *kinds: type, or_none: bool = False) -> None:
    """Pass an argument that is an instance of one of `kinds`.

    Raises:
        InvalidInput: it is something else; says what.
    """
    if not (isinstance(value, kinds) or (or_none and value is None)):
        wanted = " or ".join([kind.__name__ for kind in kinds] + ["None"] * or_none)
        raise InvalidInput(f"{name} is a {type(value).__name__}; give {wanted}")


def check_offers(name: str, value: object, *methods: str, or_none: bool = False) -> None:
    """Pass an argument that has these methods, whatever its class.

    Raises:
        InvalidInput: it lacks one.
    """
    if or_none and value is None:
        return
    missing = [method for method in methods if not callable(getattr(value, method, None))]
    if missing or isinstance(value, type):
        lacks = f", which has no {missing[0]}()" if missing else ", a class and not an object of it"
        raise InvalidInput(f"{name} is {_short(value)}{lacks}; give one that has {', '.join(methods)}")



def check_callable(name: str, value: object) -> None:
    """Pass an argument that can be called.

    Raises:
        InvalidInput: it cannot.
    """
    if not callable(value):
        raise InvalidInput(f"{name} is {_short(value)}; give a function")


def _short(value: object) -> str:
    return value.__name__ if isinstance(value, type) else f"a {type(value).__name__}"
