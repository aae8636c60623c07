# SPDX-License-Identifier: Apache-2.0
"""`EtcdStore`: a host's own key-value store, in etcd, for small data that many machines must agree on.

Needs etcd3gw. `KVStoreConformance` in `tests/promises/kv/test_kv_conformance_etcd.py` tests it.

Writes go through etcd's Raft log; reads are linearizable. Every condition is a compare on the revision of the key's
last write, and a `transact` is one etcd transaction. There are no leases: a written value stays.

Each page of a scan is one range read of the present, not of a revision fixed when the scan began: etcd forgets old
revisions as it is configured to, and a scan over a forgotten revision would end in the middle.

The cell (partition, key) is the etcd key `root + length of partition (2 bytes, big-endian) + partition + key`: no pair
is another pair, and the keys of a partition lie together in their own order. The empty partition, which no user can
name, holds the schema's version. Numbers of 64 bits travel as text, bytes as base64.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import functools
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import etcd3gw
import requests
from etcd3gw.exceptions import Etcd3Exception
from requests.exceptions import ConnectTimeout, RequestException
from urllib3.exceptions import NewConnectionError

from compactlib.errors import DiskFull, InvalidInput, StorageError, Unsupported
from compactlib.kv import EXISTS, Address, Changes, Conditions, KVEntry, KVLimits, KVStore, Predicate
from compactlib.kv.errors import (
    ConnectFailed,
    OutcomeUnknown,
    PredicateFailed,
    SlowDown,
    StoreFailed,
)
from compactlib.kv.store import holds

_LIMITS = KVLimits(max_partition_bytes=1 << 12, max_key_bytes=1 << 12, max_value_bytes=1_400_000, max_transact=128,
                   max_transact_bytes=1_550_000)
"""As etcd is set by default: 1.5 MiB for a request (`--max-request-bytes`), 128 operations for a transaction
(`--max-txn-ops`)."""
_SCHEMA_VERSION = b"1"
_PAGE_BYTES = 4 << 20
_FIRST_GUESS_BYTES = 1 << 16


class EtcdStore(KVStore):
    """A `KVStore` in etcd 3.4 or later, through its JSON gateway.

    A predicate is the revision of the write that it came from, so it never holds again once the key was written or
    deleted. etcd keeps everything in memory and is made for a few gigabytes at most; each write keeps the old value
    until the server compacts its history, so start it with `--auto-compaction-retention`.

    Args:
        host: the server's name or address.
        port: its port for clients.
        root: what all etcd keys of this store begin with; stores with different roots that do not begin with each other
            share a server.
        protocol: `"http"` or `"https"`.
        ca_cert: file of the certificates that a server of `https` is checked against.
        cert: files of this client's certificate and key, if the server asks for one.
        timeout_seconds: the longest wait for an answer, > 0.
        page_size: the most entries of one page of a scan; fewer where the last values were so large
            that more would pass 4 MiB, but a page cannot be cut while it is read.

    Raises:
        ConnectFailed: the server cannot be reached.
        InvalidInput: the root is empty, or the timeout is not positive.
        Unsupported: the store was written by a later release.
        StoreFailed: the server refused.
    """

    def __init__(self, host: str = "localhost", port: int = 2379, *, root: bytes = b"compactlib/",
                 protocol: str = "http", ca_cert: str | None = None, cert: tuple[str, str] | None = None,
                 timeout_seconds: float = 10.0, page_size: int = 1000) -> None:
        if not root:
            raise InvalidInput("the root is empty; give the prefix of the store's keys in etcd")
        if not timeout_seconds > 0:
            raise InvalidInput(f"timeout_seconds is {timeout_seconds}; give a number above 0")
        self._path = f"{protocol}://{host}:{port}/{root!r}"
        self._keys = KeySpace(root)
        self._largest = _FIRST_GUESS_BYTES
        super().__init__(f"the store {self._path}", _LIMITS, page_size=page_size)
        settings: dict[str, Any] = {"host": host, "port": port, "protocol": protocol, "timeout": timeout_seconds,
                                    # Every server of 3.4 and later has it, so none need be asked.
                                    "api_path": "/v3/"}
        self._connect = functools.partial(_Gateway.connected, self._path, settings, ca_cert, cert)
        self._idle: list[_Gateway] = []
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise

    def _get_many(self, cells: Sequence[Address]) -> list[KVEntry | None]:
        """One request: a transaction without conditions and changes, or for one cell a read."""
        names = [self._keys.of_partition(partition) + key for partition, key in cells]
        if len(names) == 1:
            replies = [self._ask("get", "/kv/range", read_request(names[0]))]
        else:
            answer = self._ask("get_many", "/kv/txn", {"success": [
                {"request_range": read_request(name)} for name in names]})
            replies = [one["response_range"] for one in answer["responses"]]
        found = [next(iter(entries_of(reply)), None) for reply in replies]
        return [None if one is None else KVEntry(cell[1], value_of(one), revision_of(one))
                for cell, one in zip(cells, found, strict=True)]

    def _page(self, partition: bytes, start: bytes, limit: int) -> tuple[list[KVEntry], bool]:
        """One request, for the present. etcd limits how many entries a page has, but not how many bytes."""
        prefix = self._keys.of_partition(partition)
        limit = min(limit, max(1, _PAGE_BYTES // self._largest))
        reply = self._ask("scan", "/kv/range", read_request(prefix + start, end_of(prefix), limit=limit))
        page = [entry_of(found, len(prefix)) for found in entries_of(reply)]
        largest = max((len(entry.key) + len(entry.value) for entry in page), default=1)
        self._largest = max(largest, self._largest // 2)
        return page, not reply.get("more")

    def _transact(self, conditions: Conditions, changes: Changes) -> None:
        """One request."""
        held = [(self._keys.of_partition(partition) + key, predicate)
                for (partition, key), predicate in conditions.items()]
        wanted = [change(self._keys.of_partition(partition) + key, value)
                  for (partition, key), value in changes.items()]
        reply = self._ask("write", "/kv/txn", {
            "compare": [compare(*condition) for condition in held],
            "success": wanted,
            # In the same step: which condition it was.
            "failure": [{"request_range": read_request(name, keys_only=True)} for name, _ in held],
        }, writes=bool(wanted))
        if reply.get("succeeded"):
            return
        for ((partition, key), predicate), response in zip(conditions.items(), reply["responses"], strict=True):
            found = next(iter(entries_of(response["response_range"])), None)
            if not holds(predicate, None if found is None else revision_of(found)):
                raise PredicateFailed(partition=partition, key=key)
        raise StoreFailed(operation="write", path=self._path, detail="etcd refused a transaction although all of its "
                          "conditions hold")

    def _close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def __repr__(self) -> str:
        return f"EtcdStore({self._path})"

    def _set_up(self) -> None:
        name = self._keys.schema
        reply = self._ask("set up", "/kv/txn", {
            "compare": [compare(name, None)],
            "success": [change(name, _SCHEMA_VERSION)],
            "failure": [{"request_range": read_request(name)}],
        }, writes=False)
        if reply.get("succeeded"):
            return
        found = value_of(entries_of(reply["responses"][0]["response_range"])[0])
        if found != _SCHEMA_VERSION:
            raise Unsupported(f"{self._path} has schema version {found!r}; this release knows {_SCHEMA_VERSION!r}: "
                              f"upgrade")

    def _ask(self, operation: str, path: str, request: Mapping[str, Any], *, writes: bool = False) -> dict[str, Any]:
        try:
            gateway = self._idle.pop()  # a session is for one thread at a time
        except IndexError:
            gateway = self._connect()
        try:
            return gateway.post(operation, path, request, writes=writes)
        finally:
            self._idle.append(gateway)


@attrs.frozen
class _Gateway:
    """One connection to etcd's gateway, for one thread at a time."""

    client: Any
    path: str

    @classmethod
    def connected(cls, path: str, settings: Mapping[str, Any], ca_cert: str | None,
                  cert: tuple[str, str] | None) -> _Gateway:
        session = requests.Session()
        # Otherwise proxies and certificates come from the environment.
        session.trust_env = False
        session.verify = ca_cert if ca_cert is not None else True
        session.cert = cert
        return cls(etcd3gw.Etcd3Client(session=session, **settings), path)

    def post(self, operation: str, path: str, request: Mapping[str, Any], *, writes: bool) -> dict[str, Any]:
        with self._named(operation, writes=writes):
            reply = self.client.post(self.client.get_url(path), json=request)
            # Without it an answer, by something in front of etcd for example, might pass for "nothing found".
            if not isinstance(reply, dict) or "header" not in reply:
                raise lost(operation, self.path, f"the answer {str(reply)[:100]!r} is no answer of etcd", writes=writes,
                           unreachable=False)
        return reply

    @contextlib.contextmanager
    def _named(self, operation: str, *, writes: bool) -> Iterator[None]:
        """Turn what etcd3gw raises in the block into errors of the library."""
        try:
            yield
        except Etcd3Exception as error:
            text = str(error.detail_text)
            if not isinstance(error.__context__, RequestException):
                raise refused(operation, self.path, text, " ".join(map(str, error.args)), writes=writes) from error
            if _never_sent(error):
                raise ConnectFailed(operation=operation, path=self.path, detail=text) from error
            raise lost(operation, self.path, text, writes=writes, unreachable=True) from error
        except OSError as error:
            # Errors of requests; and, unchanged, of files with certificates, which the client reads each time.
            raise lost(operation, self.path, str(error), writes=writes, unreachable=False) from error

    def close(self) -> None:
        self.client.session.close()


def _never_sent(error: BaseException) -> bool:
    """Whether no connection was made, so that the server cannot have seen the request."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConnectTimeout | NewConnectionError):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


# ---------- requests and answers


_LENGTH = struct.Struct(">H")


@attrs.frozen
class Revision:
    """The predicate of a key in etcd: the revision of the whole store at which the key was last written.

    Revisions only grow, deletes included, so a key never has the same one again.

    Attributes:
        mod_revision: etcd's number, 1 or more.
    """

    mod_revision: int


@attrs.frozen
class KeySpace:
    """The part of etcd's keys that one store has.

    Attributes:
        root: what all its keys begin with; not empty.
    """

    root: bytes

    @property
    def schema(self) -> bytes:
        """Where the schema's version is."""
        return self.of_partition(b"") + b"schema"

    def of_partition(self, partition: bytes) -> bytes:
        """Return the prefix of the keys of a partition."""
        return self.root + _LENGTH.pack(len(partition)) + partition


def end_of(prefix: bytes) -> bytes:
    """Return the first name above all names with `prefix`; without one a zero byte, etcd's sign of the end."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b"\0"


def read_request(name: bytes, end: bytes | None = None, *, limit: int = 0, keys_only: bool = False) -> dict[str, Any]:
    """A range request: one key, or all from `name` to below `end`, ascending."""
    request: dict[str, Any] = {"key": _text(name)}
    if end is not None:
        request |= {"range_end": _text(end), "limit": limit}
    if keys_only:
        request["keys_only"] = True
    return request


def put_request(name: bytes, value: bytes) -> dict[str, Any]:
    """A put request."""
    return {"key": _text(name), "value": _text(value)}


def delete_request(name: bytes) -> dict[str, Any]:
    """A delete request; for a key that is not there too."""
    return {"key": _text(name)}


def change(name: bytes, value: bytes | None) -> dict[str, Any]:
    """One change of a transaction: a put, or a delete if the value is `None`."""
    if value is None:
        return {"request_delete_range": delete_request(name)}
    return {"request_put": put_request(name, value)}


def compare(name: bytes, predicate: Predicate | None) -> dict[str, Any]:
    """One condition of a transaction. A predicate that etcd did not give out never holds."""
    if predicate is None or predicate is EXISTS:
        return {"key": _text(name), "target": "CREATE", "create_revision": "0",
                "result": "EQUAL" if predicate is None else "GREATER"}
    # An absent key counts as a key of revision 0, and no revision is lower.
    revision = predicate.mod_revision if type(predicate) is Revision and predicate.mod_revision > 0 else -1
    return {"key": _text(name), "target": "MOD", "mod_revision": str(revision), "result": "EQUAL"}


def entries_of(reply: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the entries of an answer to a range request; protobuf leaves out an empty list."""
    found: Sequence[Mapping[str, Any]] = reply.get("kvs", ())
    return found


def name_of(found: Mapping[str, Any]) -> bytes:
    """Return the key of an entry."""
    return base64.b64decode(found["key"])


def value_of(found: Mapping[str, Any]) -> bytes:
    """Return the value of an entry; protobuf leaves out an empty value."""
    return base64.b64decode(found.get("value", ""))


def revision_of(found: Mapping[str, Any]) -> Revision:
    """Return the predicate of an entry."""
    return Revision(int(found["mod_revision"]))


def entry_of(found: Mapping[str, Any], skip: int) -> KVEntry:
    """One entry of a scan, its key without the first `skip` bytes."""
    return KVEntry(name_of(found)[skip:], value_of(found), revision_of(found))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


# ---------- errors


_RESOURCE_EXHAUSTED = 8
_UNAVAILABLE = 14
_REFUSED = frozenset({3, 5, 6, 7, 9, 11, 12, 16})
"""Answers of a server that has read the request and refuses it: bad argument, no permission, ..."""


def refused(operation: str, path: str, text: str, reason: str, *, writes: bool) -> StorageError | SlowDown:
    """The library's error for an answer of etcd that is not a result.

    Args:
        operation: name of the request.
        path: which store.
        text: the answer's body, in which the gateway puts a code and a message.
        reason: the answer's HTTP reason, for answers of something in front of etcd.
        writes: whether the operation writes: if it cannot be known that it was not carried out, say so.
    """
    code, message = _parsed(text)
    detail = message or reason or "an answer without a message"
    if code == _RESOURCE_EXHAUSTED or (code is None and reason == "Too Many Requests"):
        if "space exceeded" in detail:
            return DiskFull(operation=operation, path=path, errno=errno.EDQUOT, detail=f"etcd's own quota is full "
                            f"({detail})", advice="compact and defragment etcd and disarm its alarm (etcdctl alarm "
                            "disarm), or raise its --quota-backend-bytes, and call again")
        if "larger than max" not in detail:
            return SlowDown(operation=operation, detail=detail)
    elif code not in _REFUSED:
        # A leader that is lost, or a time-out inside of etcd: the proposal may still be on its way.
        return lost(operation, path, detail, writes=writes, unreachable=code == _UNAVAILABLE)
    return StoreFailed(operation=operation, path=path, detail=detail)


def lost(operation: str, path: str, detail: str, *, writes: bool, unreachable: bool) -> StoreFailed:
    """The library's error for a request that got no answer, or one that does not say whether it was carried out."""
    kind = OutcomeUnknown if writes else ConnectFailed if unreachable else StoreFailed
    return kind(operation=operation, path=path, detail=detail)


def _parsed(text: str) -> tuple[int | None, str]:
    try:
        answer = json.loads(text)
        return int(answer["code"]), str(answer.get("message", answer.get("error", "")))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None, text[:500].strip()
