# SPDX-License-Identifier: Apache-2.0
"""The errors of object stores; leaves of the library's exception tree."""

from __future__ import annotations

from compactlib.errors import CompactlibError, Conflict, CorruptData, InvalidInput, NotFound, Unsupported


class BadKey(InvalidInput):
    """The key is not valid in every store. See `check_key` of `compactlib.objects.store`."""


class ObjectNotFound(NotFound):
    """There is no object of the key `key`: it was never created, or was deleted."""

    def __init__(self, *, key: str) -> None:
        super().__init__(f"there is no object {key!r}")
        self.key = key


class ObjectExists(Conflict):
    """An object of the key `key` exists, and objects never change. Read it, or choose another key."""

    def __init__(self, *, key: str) -> None:
        super().__init__(f"the object {key!r} exists; objects are never overwritten: read it, or choose another key")
        self.key = key


class BadDigest(CorruptData):
    """The digest of an object's bytes does not match. Restore it from a copy; nothing was returned."""


class ConditionsIgnored(Unsupported):
    """The store ignores the condition of a create, and overwrites. Use a store with conditional writes."""


class ObjectStoreFailed(CompactlibError):
    """The store cannot be reached, or refused; a change may have been made. Call again.

    `operation` failed for `key`, a key or a prefix; `detail` is from the client library.
    """

    def __init__(self, *, operation: str, key: str, detail: str) -> None:
        super().__init__(f"{operation} {key!r} failed: {detail}; check whether the object exists before you try again")
        self.operation = operation
        self.key = key
        self.detail = detail


class AccessDenied(ObjectStoreFailed):
    """The credentials have no right to the operation. Check them and their rights."""
