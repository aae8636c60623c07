# SPDX-License-Identifier: Apache-2.0
"""The errors of key-value stores; leaves of the library's exception tree."""

from __future__ import annotations

import errno as _errno

from compactlib.errors import Busy, Conflict, CorruptData, InvalidInput, NotFound, StorageError

_MAX_SHOWN_BYTES = 60


def _shown(name: bytes) -> str:
    return repr(name) if len(name) <= _MAX_SHOWN_BYTES else f"{name[:_MAX_SHOWN_BYTES]!r}… ({len(name)} bytes)"


class TooLarge(InvalidInput):
    """A partition, key, value or request exceeds the store's `limits`; nothing was written."""

    def __init__(self, what: str, *, limit: int) -> None:
        super().__init__(f"{what} was given, this store takes at most {limit}; split it, or use a store whose limits "
                         f"allow it")


class NotAStore(InvalidInput):
    """The file does not hold a key-value store of this library. Check the path, or name a file that does not exist."""


class KeyNotFound(NotFound):
    """The key does not exist, or the partition does not.

    Attributes:
        partition: the key's partition.
        key: the absent key.
    """

    def __init__(self, *, partition: bytes, key: bytes) -> None:
        super().__init__(f"key {_shown(key)} is not in partition {_shown(partition)}")
        self.partition = partition
        self.key = key


class PredicateFailed(Conflict):
    """A condition did not hold: another writer was first. Nothing was written; re-read and decide again.

    Attributes:
        partition: the key's partition.
        key: the first key in an unexpected state, in the order of the conditions.
    """

    def __init__(self, *, partition: bytes, key: bytes) -> None:
        super().__init__(f"key {_shown(key)} in partition {_shown(partition)} is not in the state that the predicate "
                         f"demands; nothing was written, read again")
        self.partition = partition
        self.key = key


class SlowDown(Busy):
    """The store throttles, or was locked for too long. Nothing was changed; wait and retry.

    Attributes:
        operation: the refused operation.
        detail: from the back-end.
    """

    def __init__(self, *, operation: str, detail: str) -> None:
        super().__init__(f"{operation} was refused for now: {detail}; nothing was changed, wait and try again")
        self.operation = operation
        self.detail = detail


class StoreFailed(StorageError):
    """The back-end returned an error, which is `detail`; `path` is its file or address. Nothing was read or written."""

    _advice = "see the backend's message"

    def __init__(self, *, operation: str, path: str, detail: str, errno: int = _errno.EIO) -> None:
        super().__init__(operation=operation, path=path, errno=errno, detail=detail)


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
