# SPDX-License-Identifier: Apache-2.0
"""Objects in S3, GCS, Azure, or whatever else obstore reaches."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Literal, TypeAlias

from compactlib._arguments import require_one_of
from compactlib._closing import Closing
from compactlib._forks import OpenState
from compactlib.errors import MissingDependency
from compactlib.objects.errors import AccessDenied, ConditionsIgnored, ObjectExists, ObjectNotFound, ObjectStoreFailed
from compactlib.objects.store import (
    Digest,
    ObjectInfo,
    ObjectRef,
    check_key,
    check_prefix,
    check_range,
    checked_keys,
)

if TYPE_CHECKING:
    import obstore.store

Conditions: TypeAlias = Literal["probe", "trusted", "unchecked"]
"""Whether a create may rely on the store: `"probe"` finds out on opening, `"trusted"` takes its word, `"unchecked"`
reads before each create instead, which is safe for a single writer only."""

_PROBE = "compactlib-probe"
_MAX_DELETES = 1000  # what S3 removes in one request
_PAGE = 1000
_FARTHEST = 1 << 62
"""No object reaches as far."""


class RemoteObjects(Closing):
    """An `ObjectStore` over any store of obstore: `S3Store`, `GCSStore`, `AzureStore`, `MemoryStore`.

    Not over `obstore.store.LocalStore`, which does not sync; use `LocalObjects`.

    Opening probes whether the store honours conditional writes: some that speak S3 overwrite without a word. The
    probe creates one object twice under a name of its own and deletes it.

    Args:
        store: a store of obstore, configured with bucket, credentials, retries and time-outs.
        conditions: see `Conditions`.
        new_name: gives the probe its name.

    Raises:
        ConditionsIgnored: the store overwrites what it was asked to create only.
        AccessDenied: the credentials may not write there.
        ObjectStoreFailed: the store cannot be asked.
        MissingDependency: obstore is not installed.
    """

    def __init__(self, store: obstore.store.ObjectStore, *, conditions: Conditions = "probe",
                 new_name: Callable[[], str] = lambda: uuid.uuid4().hex) -> None:
        require_one_of("conditions", conditions, Conditions)
        try:
            import obstore
            from obstore import exceptions
        except ImportError:
            raise MissingDependency(package="obstore", extra="objects", purpose="an object store") from None
        self._client = obstore
        self._exceptions = exceptions
        self._store = store
        self._conditions = conditions
        self._state = OpenState(repr(self))
        if conditions == "probe":
            self._probe(f"{_PROBE}/{new_name()}")

    def _probe(self, key: str) -> None:
        honoured = False
        try:
            # The name is new: what is there is this very probe, if the client below has asked again for a lost answer.
            with contextlib.suppress(ObjectExists):
                self.create(key, b"first")
            try:
                self.create(key, b"second")
            except ObjectExists:
                honoured = True
        finally:
            # What is wrong with the store says more than that the probe could not be removed from it.
            with contextlib.nullcontext() if honoured else contextlib.suppress(ObjectStoreFailed):
                self.delete([key])
        if not honoured:
            raise ConditionsIgnored(store=repr(self._store))

    def create(self, key: str, data: bytes | memoryview) -> ObjectRef:
        """See `ObjectStore.create`. One request, so at most what the store takes in one (5 GB in S3).

        A create whose answer was lost (`ObjectStoreFailed`) may have happened: `info` shows it. If the client below
        tries again by itself, that may also end in `ObjectExists`. Then, as always before that answer, a second request
        has seen the object: what such a store shows is durable.
        """
        self._check(key)
        if self._conditions == "unchecked":
            with contextlib.suppress(ObjectNotFound):
                self.info(key)
                raise ObjectExists(key=key)
        try:
            with self._named("create", key):
                # Parts cannot be put on a condition everywhere, so one request it is.
                self._client.put(self._store, key, data, use_multipart=False,
                                 mode="overwrite" if self._conditions == "unchecked" else "create")
        except ObjectExists:
            self._require_seen(key)
            raise
        return ObjectRef(key, memoryview(data).nbytes, Digest.of(data))

    def _require_seen(self, key: str) -> None:
        """Read the object's size: a store refuses as well while another create or delete is under way.

        Raises:
            ObjectStoreFailed: none is to be seen; the outcome of the other request is not known yet.
        """
        try:
            self.info(key)
        except ObjectNotFound:
            raise ObjectStoreFailed(operation="create", key=key,
                              detail="the store says that it is there, and it is not to be seen; another request for "
                                     "it is under way") from None

    def get(self, key: str) -> bytes:
        self._check(key)
        with self._named("get", key):
            return bytes(self._client.get(self._store, key).bytes())

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `ObjectStore.get_range`. One request; two or three where it begins beyond the end, or the server does not
        answer a range of everything as a range.
        """
        check_range(start, length)
        self._check(key)
        if length and start < _FARTHEST:
            with contextlib.suppress(ObjectStoreFailed), self._named("get range of", key):
                return bytes(self._client.get_range(self._store, key, start=start,
                                                    end=min(start + length, _FARTHEST)))
        size = self.info(key).size_bytes
        stop = min(size, start + length)
        if stop <= start:
            return b""
        if stop - start == size:
            return self.get(key)
        with self._named("get range of", key):
            return bytes(self._client.get_range(self._store, key, start=start, end=stop))

    def info(self, key: str) -> ObjectInfo:
        self._check(key)
        with self._named("read the size of", key):
            found = self._client.head(self._store, key)
        return ObjectInfo(key, found["size"], found["last_modified"].timestamp())

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`. Pages of a thousand, asked for as they are needed."""
        self._state.require()
        check_prefix(prefix)
        return self._pages(prefix, after)

    def _pages(self, prefix: str, after: str) -> Iterator[ObjectInfo]:
        # obstore takes a prefix as whole segments, so what is left of the last segment is compared here.
        folder = prefix[:prefix.rfind("/") + 1]
        before = ""
        with self._named("list", prefix):
            pages = self._client.list(self._store, folder or None, offset=after or None, chunk_size=_PAGE)
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
                        # Behind all that begin with it.
                        return
                elif key > after and not key.startswith(_PROBE + "/"):
                    yield ObjectInfo(key, found["size"], found["last_modified"].timestamp())

    def delete(self, keys: Iterable[str]) -> None:
        """See `ObjectStore.delete`. S3 removes a thousand in one request; for other stores the client below asks for
        each, several at once.
        """
        self._state.require()
        waiting = iter(checked_keys(keys))
        while part := list(islice(waiting, _MAX_DELETES)):
            if len(part) > 1:
                with contextlib.suppress(ObjectNotFound), self._named("delete", ", ".join(part[:3])):
                    self._client.delete(self._store, part)
                    continue
            # A store that minds that one is absent may have left others.
            for key in part:
                with contextlib.suppress(ObjectNotFound), self._named("delete", key):
                    self._client.delete(self._store, key)

    @contextlib.contextmanager
    def _named(self, operation: str, key: str) -> Iterator[None]:
        """Give what obstore raises a name of ours."""
        exceptions = self._exceptions
        try:
            yield
        except FileNotFoundError:
            raise ObjectNotFound(key=key) from None
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
            # Of what is not put on a condition a store says so for reasons of its own: a lease, another request.
            if operation != "create":
                raise ObjectStoreFailed(operation=operation, key=key, detail=_first_line(error)) from error
            raise ObjectExists(key=key) from None
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise AccessDenied(operation=operation, key=key, detail=_first_line(error)) from error
        except (exceptions.BaseError, OSError) as error:
            raise ObjectStoreFailed(operation=operation, key=key, detail=_first_line(error)) from error

    def _check(self, key: str) -> None:
        self._state.require()
        check_key(key)

    def available_bytes(self) -> int | None:
        self._state.require()
        return None

    def close(self) -> None:
        self._state.close()

    def __repr__(self) -> str:
        return f"RemoteObjects({self._store!r}, conditions={self._conditions!r})"


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
