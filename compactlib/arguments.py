"""Arguments at a face: what is not of the type that is asked for is `InvalidInput`, before anything is done with it."""

from __future__ import annotations

from compactlib.errors import InvalidInput


def require_type(name: str, value: object, kind: type | tuple[type, ...], wanted: str) -> None:
    """Return if `value` is of this type, or of one of these.

    Args:
        name: of the argument.
        value: what was given.
        kind: what it must be.
        wanted: the same in words: `"a Budget"`.

    Raises:
        InvalidInput: it is not.
    """
    if not isinstance(value, kind):
        raise InvalidInput(f"{name} is {value!r:.100}; give {wanted}")


def require_method(name: str, value: object, *methods: str) -> None:
    """Return if `value` has all these methods.

    Raises:
        InvalidInput: it has not.
    """
    for method in methods:
        if not callable(getattr(value, method, None)):
            raise InvalidInput(f"{name} is {value!r:.100}; give an object with the method {method}()")
