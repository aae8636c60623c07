# SPDX-License-Identifier: Apache-2.0
"""The errors of object stores; leaves of the library's exception tree."""

from __future__ import annotations

from compactlib.errors import CompactlibError, Conflict, CorruptData, InvalidInput, NotFound, Unsupported


class BadKey(InvalidInput):
    """The key is none that every store can hold. See `check_key` of `compactlib.objects.store`.

    Attributes:
        key: what was given.
    """

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(message)
        self.key = key


class ObjectNotFound(NotFound):
    """There is no object of this key: it was never created, or it was deleted.

    Attributes:
        key: what was looked for.
    """

    def __init__(self, *, key: str) -> None:
        super().__init__(f"there is no object {key!r}")
        self.key = key


class ObjectExists(Conflict):
    """An object of this key is there already, and objects never change. Read it, or choose another key.

    Attributes:
        key: what was to be created.
    """

    def __init__(self, *, key: str) -> None:
        super().__init__(f"the object {key!r} exists; objects are never overwritten: read it, or choose another key")
        self.key = key


class BadDigest(CorruptData):
    """An object's bytes are not those that were created. Restore it from a copy; nothing was returned."""


class ConditionsIgnored(Unsupported):
    """The store overwrites objects that it was asked to create only. Use one that honours conditional writes.

    Attributes:
        store: which store.
    """

    def __init__(self, *, store: str) -> None:
        super().__init__(f"{store} overwrote an object that it was asked to create only if there was none: it ignores "
                         f"conditional writes (If-None-Match), so two writers could destroy each other's objects; use "
                         f"a store that honours them, or open it with conditions='unchecked' for a single writer")
        self.store = store


class ObjectStoreFailed(CompactlibError):
    """The store could not be asked, or refused; whether a change was made is not known. Ask again.

    Attributes:
        operation: what was tried.
        key: for which key, or prefix.
        detail: what the client said.
    """

    def __init__(self, *, operation: str, key: str, detail: str) -> None:
        super().__init__(f"{operation} {key!r} failed: {detail}; look for the object before you try again")
        self.operation = operation
        self.key = key
        self.detail = detail


class AccessDenied(ObjectStoreFailed):
    """The store does not let these credentials do that. Check them, and the rights they have."""
