# SPDX-License-Identifier: Apache-2.0
"""`RemoteObjects`: objects in S3, GCS, Azure, or another store of obstore."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from compactlib.errors import MissingDependency
from compactlib.objects.errors import AccessDenied, ConditionsIgnored, ObjectExists, ObjectNotFound, ObjectStoreFailed
from compactlib.objects.store import ObjectInfo, ObjectStore

if TYPE_CHECKING:
    import obstore.store

_PROBE = "compactlib-probe"
_MAX_DELETES = 1000  # S3's limit of a request
_PAGE = 1000
_FARTHEST = 1 << 62
"""Beyond the end of any object."""


class RemoteObjects(ObjectStore):
    """An `ObjectStore` over any store of obstore: `S3Store`, `GCSStore`, `AzureStore`, `MemoryStore`.

    Not over `obstore.store.LocalStore`, which does not sync; use `LocalObjects`.

    A create is one request, at most 5 GB in S3. One without an answer (`ObjectStoreFailed`) may have happened: `info`
    shows it; if the client library repeats it, the result may also be `ObjectExists`. A delete of a thousand keys is
    one request to S3, and one for each key to other stores.

    Opening tests whether the store has conditional writes, with an object that it deletes if the credentials may
    delete. Credentials for reads alone open the store without it.

    Args:
        store: a store of obstore, configured with bucket, credentials, retries and time-outs.

    Raises:
        ConditionsIgnored: the store ignores the condition of a create.
        ObjectStoreFailed: the store cannot be reached.
        MissingDependency: obstore is not installed.
    """

    def __init__(self, store: obstore.store.ObjectStore) -> None:
        try:
            import obstore
            from obstore import exceptions
        except ImportError:
            raise MissingDependency(package="obstore", extra="objects", purpose="an object store") from None
        self._client = obstore
        self._exceptions = exceptions
        self._store = store
        super().__init__(f"the objects in {store!r}")
        key = f"{_PROBE}/{uuid.uuid4().hex}"
        try:
            # The name is new, so the object is of this test, if the client library repeated a request.
            with contextlib.suppress(ObjectExists):
                self.create(key, b"first")
            with contextlib.suppress(ObjectExists):
                self.create(key, b"second")
                raise ConditionsIgnored(
                    f"{store!r} overwrote an object that it was asked to create only if there was none: it ignores "
                    f"conditional writes (If-None-Match), so two writers could destroy each other's objects; use a "
                    f"store that honours them")
        except AccessDenied:
            pass  # without the right to write, for reads alone
        finally:
            # A store that denies deletes keeps it, and no listing shows it.
            with contextlib.suppress(ObjectStoreFailed):
                self.delete([key])

    def _create(self, key: str, data: bytes | memoryview) -> None:
        try:
            with self._named("create", key):
                # One request, since not all stores have conditions for uploads in parts.
                self._client.put(self._store, key, data, use_multipart=False, mode="create")
        except ObjectExists:
            try:
                # A store also refuses during another create or delete, which may leave no object.
                self._info(key)
            except ObjectNotFound:
                raise ObjectStoreFailed(operation="create", key=key, detail="the store says that it exists, and it is "
                                        "not visible; another request for it is under way") from None
            raise

    def _read(self, key: str, start: int, stop: int | None) -> bytes:
        if stop is None:
            with self._named("get", key):
                return bytes(self._client.get(self._store, key).bytes())
        stop = min(stop, _FARTHEST)
        if start < stop:
            # It fails beyond the end, or if the server does not treat a range of all bytes as a range.
            with contextlib.suppress(ObjectStoreFailed):
                return self._range(key, start, stop)
        size = self._info(key).size_bytes
        stop = min(size, stop)
        if stop <= start:
            return b""
        return self._read(key, 0, None) if stop - start == size else self._range(key, start, stop)

    def _range(self, key: str, start: int, stop: int) -> bytes:
        with self._named("get range of", key):
            return bytes(self._client.get_range(self._store, key, start=start, end=stop))

    def _info(self, key: str) -> ObjectInfo:
        with self._named("read the size of", key):
            found = self._client.head(self._store, key)
        return ObjectInfo(key, found["size"], found["last_modified"].timestamp())

    def _list(self, prefix: str) -> Iterator[ObjectInfo]:
        # obstore takes whole segments as a prefix; the rest of the prefix is compared here.
        folder = prefix[:prefix.rfind("/") + 1]
        before = ""
        with self._named("list", prefix):
            pages = self._client.list(self._store, folder or None, chunk_size=_PAGE)
        while True:
            with self._named("list", prefix):
                page = next(pages, None)
            if page is None:
                return
            for found in page:
                key = found["path"]
                if key <= before:
                    raise ObjectStoreFailed(operation="list", key=prefix,
                                      detail=f"the store answered {key!r} after {before!r}, which is out of order")
                before = key
                if not key.startswith(prefix):
                    if key > prefix:
                        # After all keys with the prefix.
                        return
                elif not key.startswith(_PROBE + "/"):
                    yield ObjectInfo(key, found["size"], found["last_modified"].timestamp())

    def _delete(self, keys: Sequence[str]) -> None:
        waiting = iter(keys)
        while part := list(islice(waiting, _MAX_DELETES)):
            if len(part) > 1:
                with contextlib.suppress(ObjectNotFound), self._named("delete", ", ".join(part[:3])):
                    self._client.delete(self._store, part)
                    continue
            # A store for which an absent object is an error may have skipped others.
            for key in part:
                with contextlib.suppress(ObjectNotFound), self._named("delete", key):
                    self._client.delete(self._store, key)

    @contextlib.contextmanager
    def _named(self, operation: str, key: str) -> Iterator[None]:
        """Convert obstore's exceptions in the block into errors of the library."""
        exceptions = self._exceptions
        try:
            yield
        except FileNotFoundError:
            raise ObjectNotFound(key=key) from None
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
            # For a request without a condition, a store uses these errors for other reasons: a lease, another request.
            if operation != "create":
                raise ObjectStoreFailed(operation=operation, key=key, detail=_first_line(error)) from error
            raise ObjectExists(key=key) from None
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise AccessDenied(operation=operation, key=key, detail=_first_line(error)) from error
        except (exceptions.BaseError, OSError) as error:
            raise ObjectStoreFailed(operation=operation, key=key, detail=_first_line(error)) from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
