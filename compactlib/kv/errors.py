# SPDX-License-Identifier: Apache-2.0
"""The errors of key-value stores; leaves of the library's exception tree."""

from __future__ import annotations

import errno as _errno

from compactlib.errors import Busy, CompactlibError, Conflict, CorruptData, InvalidInput, NotFound, StorageError

_MAX_SHOWN_BYTES = 60


def _shown(name: bytes) -> str:
    return repr(name) if len(name) <= _MAX_SHOWN_BYTES else f"{name[:_MAX_SHOWN_BYTES]!r}… ({len(name)} bytes)"


class TooLarge(InvalidInput):
    """A partition, key, value or request is larger than this store takes, see its `limits`; nothing was written.

    Attributes:
        what: `"partition"`, `"key"`, `"value"` or `"transaction"`, measured in bytes; or `"request"`, of so many cells
            to read, or conditions, puts and deletes together.
        size: how large it is.
        limit: how large it may be.
    """

    def __init__(self, *, what: str, size: int, limit: int) -> None:
        unit = "cells, conditions, puts or deletes" if what == "request" else "bytes"
        super().__init__(f"a {what} of {size} {unit} was given, this store takes at most {limit}; split it, or use a "
                         f"store whose limits allow it")
        self.what = what
        self.size = size
        self.limit = limit


class NotAStore(InvalidInput):
    """The file does not hold a key-value store of this library. Check the path, or name a file that does not exist."""

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path


class KeyNotFound(NotFound):
    """The partition holds no such key; a partition that does not exist answers the same.

    Attributes:
        partition: where it was looked for.
        key: what was looked for.
    """

    def __init__(self, *, partition: bytes, key: bytes) -> None:
        super().__init__(f"key {_shown(key)} is not in partition {_shown(partition)}")
        self.partition = partition
        self.key = key


class PredicateFailed(Conflict):
    """A condition did not hold: another writer was first. Nothing was written; read again and decide anew.

    Attributes:
        partition: where.
        key: the key whose state is not the expected one; of several, the first in the order given.
    """

    def __init__(self, *, partition: bytes, key: bytes) -> None:
        super().__init__(f"key {_shown(key)} in partition {_shown(partition)} is not in the state that the predicate "
                         f"demands; nothing was written, read again")
        self.partition = partition
        self.key = key


class SlowDown(Busy):
    """The store does not take the request now: throttled, or locked for too long. Nothing was changed; wait, try again.

    Attributes:
        operation: what was asked for.
        detail: what the backend said.
    """

    def __init__(self, *, operation: str, detail: str) -> None:
        super().__init__(f"{operation} was refused for now: {detail}; nothing was changed, wait and try again")
        self.operation = operation
        self.detail = detail


class StoreFailed(StorageError):
    """The store answered with an error of its own; nothing was read. A write was not carried out.

    Attributes:
        operation: what was asked for.
        path: the file or address of the store.
        errno: the nearest number of the operating system; `EIO` where there is none.
        detail: what the backend said.
    """

    _advice = "see what the backend said"

    def __init__(self, *, operation: str, path: str, detail: str, errno: int = _errno.EIO) -> None:
        super().__init__(operation=operation, path=path, errno=errno, detail=detail)


class ConnectFailed(StoreFailed):
    """The store cannot be reached. Nothing was changed; check the address and that the server runs."""

    _advice = "check the address and that the store is there"


class OutcomeUnknown(StoreFailed):
    """A write was sent and no answer came: it may have happened, happen later, or never. Read to find out."""

    _advice = "it may or may not have happened, read to find out"


class DamagedStore(CorruptData):
    """The store's file is damaged. Restore it from a copy; nothing was cut or hidden.

    Attributes:
        detail: what the check found.
        offset: -1, because the backend does not say where in the file.
    """

    def __init__(self, *, path: str, detail: str) -> None:
        CompactlibError.__init__(self, f"corrupt data in {path}: {detail}; restore the file from a copy")
        self.path: str = path
        self.detail = detail
        self.offset = -1
        self.expected = "a sound key-value store"
        self.found = detail
        self.index: int | None = None
