# SPDX-License-Identifier: Apache-2.0
"""The errors of key-value stores; leaves of the library's exception tree."""

from __future__ import annotations

import errno

from compactlib.errors import Busy, Conflict, CorruptData, InvalidInput, NotFound, StorageError


def _shown(name: bytes) -> str:
    return repr(name) if len(name) <= 60 else f"{name[:60]!r}… ({len(name)} bytes)"


class TooLarge(InvalidInput):
    """A partition, key, value or request exceeds the store's `limits`; nothing was written."""

    def __init__(self, what: str, *, limit: int) -> None:
        super().__init__(f"{what} was given, this store takes at most {limit}; split it, or use a store whose limits "
                         f"allow it")


class NotAStore(InvalidInput):
    """The file or table does not hold a key-value store of this library. Check the name, or give an unused one."""


class KeyNotFound(NotFound):
    """The partition `partition` has no key `key`, or does not exist."""

    def __init__(self, *, partition: bytes, key: bytes) -> None:
        super().__init__(f"key {_shown(key)} is not in partition {_shown(partition)}")
        self.partition = partition
        self.key = key


class PredicateFailed(Conflict):
    """A condition did not hold: another writer was first. Nothing was written; re-read and decide again.

    `partition` and `key` are those of the first condition that did not hold.
    """

    def __init__(self, *, partition: bytes, key: bytes) -> None:
        super().__init__(f"key {_shown(key)} in partition {_shown(partition)} is not in the state that the predicate "
                         f"demands; nothing was written, read again")
        self.partition = partition
        self.key = key


class SlowDown(Busy):
    """The store throttles, or was locked for too long. Nothing was changed; wait and retry.

    `operation` was refused; `detail` is from the back-end.
    """

    def __init__(self, *, operation: str, detail: str) -> None:
        super().__init__(f"{operation} was refused for now: {detail}; nothing was changed, wait and try again")
        self.operation = operation
        self.detail = detail


class StoreFailed(StorageError):
    """The back-end returned an error, which is `detail`; `path` is its file or address. Nothing was read or written."""

    _advice = "see the backend's message"

    def __init__(self, *, operation: str, path: str, detail: str) -> None:
        super().__init__(operation=operation, path=path, errno=errno.EIO, detail=detail)


class ConnectFailed(StoreFailed):
    """The store cannot be reached. Nothing was changed; check the address and that the server runs."""

    _advice = "check the address and that the store is there"


class OutcomeUnknown(StoreFailed):
    """A write got no answer: it may have happened, happen later, or never. Read to find out."""

    _advice = "it may or may not have happened, read to find out"


class DamagedStore(CorruptData):
    """The store's file is damaged. Restore it from a copy; nothing was cut or hidden. The offset is unknown: -1."""

    def __init__(self, *, path: str, detail: str) -> None:
        super().__init__(path=path, offset=-1, expected="a sound key-value store", found=detail)
