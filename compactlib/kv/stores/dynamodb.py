# SPDX-License-Identifier: Apache-2.0
"""`DynamoStore`: a key-value store in one DynamoDB table, for many processes on many machines.

An item is a cell: `p` the partition (hash key), `k` the key (range key), `v` the value, `n` the token: 16 bytes that
distinguish this write from all others; all binary. All reads are consistent, all conditions are condition expressions
on the token, and a `transact` is one TransactWriteItems. Nothing is ever sent twice behind the caller's back, except
what DynamoDB has refused for now: a write that is repeated after its answer was lost could fail its own condition, or
bring a value back over a later one.
"""

from __future__ import annotations

import json
import random
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from compactlib._arguments import require_id, require_seconds
from compactlib.clock import Clock, SystemClock
from compactlib.errors import AuditFailed, InvalidInput, MissingDependency
from compactlib.files.checksum import crc32
from compactlib.kv.errors import (
    ConnectFailed,
    DamagedStore,
    NotAStore,
    OutcomeUnknown,
    PredicateFailed,
    SlowDown,
    StoreFailed,
    TooLarge,
)
from compactlib.kv.store import (
    EXISTS,
    Address,
    KVEntry,
    KVLimits,
    KVStore,
    Predicate,
    Transaction,
    Versioned,
    checked_cell,
    checked_put,
    holds,
)

if TYPE_CHECKING:
    import boto3
    from typing_extensions import Buffer

_KEY_SCHEMA = [{"AttributeName": "p", "KeyType": "HASH"}, {"AttributeName": "k", "KeyType": "RANGE"}]
_ATTRIBUTES = [{"AttributeName": "p", "AttributeType": "B"}, {"AttributeName": "k", "AttributeType": "B"}]
_VERSION_BYTES = 16
_MAX_KEY_BYTES = 1024
_NO_VERSION = b"\0"
"""Shorter than any version, so no item has it."""

_ITEM_BYTES = 400_000
_TRANSACTION_BYTES = 4 << 20
_OVERHEAD_BYTES = 64
"""Names of the attributes and the token, with something to spare."""
_LIMITS = KVLimits(max_partition_bytes=2048, max_key_bytes=_MAX_KEY_BYTES,
                   max_value_bytes=_ITEM_BYTES - 2048 - _MAX_KEY_BYTES - _OVERHEAD_BYTES, max_transact=100,
                   max_get_many=100)
_TABLE = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_FIRST_WAIT_SECONDS = 0.025
_LONGEST_WAIT_SECONDS = 1.0
_TABLE_WAIT_SECONDS = 0.2
_TABLE_WAITS = 600
_CONNECTIONS = 50

_CONDITION_FAILED = "ConditionalCheckFailedException"
_CANCELED = "TransactionCanceledException"
_NO_TABLE = "ResourceNotFoundException"
_TABLE_IN_USE = "ResourceInUseException"

_THROTTLED = frozenset({
    "ProvisionedThroughputExceededException", "ThrottlingException", "Throttling", "ThrottledException",
    "RequestLimitExceeded", "RequestThrottled", "RequestThrottledException", "TooManyRequestsException", "SlowDown",
    # Another transaction has the item, or a replica elsewhere; it is over in a moment.
    "TransactionConflictException", "ReplicatedWriteConflictException",
})
_PASSING_REASONS = frozenset({"TransactionConflict", "ProvisionedThroughputExceeded", "ThrottlingError"})

ReadT = TypeVar("ReadT")


class DynamoStore(KVStore):
    """A `KVStore` in a table of Amazon DynamoDB (extra `compactlib[dynamodb]`).

    A predicate is the token of the write that it came from, 16 bytes that no other write has, so it never holds again
    once the key was written. Threads may share a store; other processes open their own.

    Args:
        table: the table's name; made, paid by request, if there is none.
        region: AWS region, unless the session or boto3's configuration has one.
        endpoint_url: another address, for servers that speak DynamoDB's protocol.
        session: boto3's, with the credentials; its default one if not given.
        create: whether a table that is absent is made. Give `False` where there must be one.
        timeout_seconds: how long a connection and an answer may take, each.
        busy_seconds: how long a request that DynamoDB refuses for now (throttled, or in conflict with another
            transaction) is tried again, with growing random waits, before it raises `SlowDown`.
        page_size: how many entries one page of a scan holds, at most; DynamoDB also ends a page at 1 MB.
        clock: waits.
        rng: spreads the waits.
        new_version: gives each write its token: 16 bytes, never the same. Threads may call it at once.

    Raises:
        ConnectFailed: DynamoDB cannot be reached.
        InvalidInput: the table's name is none, or an argument is of another type.
        NotAStore: the table holds something else, or is absent although `create` is `False`.
        SlowDown: the table is not ready after two minutes.
        StoreFailed: DynamoDB refused: credentials, rights.
        MissingDependency: boto3 is not installed.
    """

    def __init__(self, table: str, *, region: str | None = None, endpoint_url: str | None = None,
                 session: boto3.Session | None = None, create: bool = True, timeout_seconds: float = 10.0,
                 busy_seconds: float = 10.0, page_size: int = 1000, clock: Clock | None = None,
                 rng: random.Random | None = None,
                 new_version: Callable[[], bytes] = lambda: uuid.uuid4().bytes) -> None:
        try:
            import boto3
            from botocore import config, exceptions, parsers
        except ImportError:
            raise MissingDependency(package="boto3", extra="dynamodb", purpose="a store in DynamoDB") from None
        if not _TABLE.fullmatch(table):
            raise InvalidInput(f"table is {table!r}; give 3 to 255 letters, digits or any of '_.-'")
        require_seconds("timeout_seconds", timeout_seconds, above_zero=True)
        require_seconds("busy_seconds", busy_seconds)
        super().__init__(f"the store table {table}", _LIMITS, page_size=page_size)
        self._table = table
        self._busy_seconds = busy_seconds
        self._clock: Clock = SystemClock() if clock is None else clock
        self._rng: random.Random = random.Random() if rng is None else rng
        self._new_version: Callable[[], bytes] = lambda: require_id("new_version", new_version(), _VERSION_BYTES)
        self._exceptions: Any = exceptions
        self._garbled: Any = parsers.ResponseParserError
        settings = config.Config(retries={"total_max_attempts": 1, "mode": "standard"},
                                 connect_timeout=timeout_seconds, read_timeout=timeout_seconds,
                                 max_pool_connections=_CONNECTIONS)
        try:
            self._client: Any = (session or boto3.Session()).client(
                "dynamodb", region_name=region, endpoint_url=endpoint_url, config=settings)
        except exceptions.BotoCoreError as error:
            raise StoreFailed(operation="set up", path=table, detail=str(error)) from error
        except (TypeError, AttributeError, ValueError) as error:
            raise InvalidInput(f"region {region!r}, endpoint_url {endpoint_url!r} and session {session!r:.100} make no "
                               f"client: {error}; give an address with http:// or https://, and a session of boto3's"
                               ) from error
        self._client.meta.events.register("response-received.dynamodb", self._require_whole)
        try:
            found = self._set_up(create)
        except BaseException:
            self.close()
            raise
        # A table that is deleted and made again, or restored, has the same ARN.
        names = ("DynamoDB table", "TableArn"), ("id", "TableId")
        self._place = ", ".join(f"{word} {found[name]}" for word, name in names if found.get(name))

    @property
    def table(self) -> str:
        """The table's name."""
        return self._table

    def place(self) -> str | None:
        """Return the table's ARN and id, from when it was opened. No request."""
        self._state.require()
        return self._place or None

    def set(self, partition: bytes, key: bytes, value: Buffer) -> None:
        """Write a value, whatever was there. One write."""
        self._put("set", checked_put(partition, key, value, _LIMITS), ())

    def set_if(self, partition: bytes, key: bytes, value: Buffer, predicate: Predicate | None) -> None:
        """Write a value if the key is in the expected state. One conditional write.

        If DynamoDB's own front end repeats it after it had counted, and another write came between, that is
        `PredicateFailed`; a `transact` with one `Condition` and one `Put`, at twice the price, has no such moment.
        """
        self._put("set_if", checked_put(partition, key, value, _LIMITS), (predicate,))

    def delete(self, partition: bytes, key: bytes) -> None:
        """Remove a key. One write; `delete_if` is a transaction, which costs twice what a single write does.

        What is gone does not say who took it away: only a transaction's token tells one that DynamoDB's front end has
        repeated from one that came too late.
        """
        cell = checked_cell(partition, key, _LIMITS)
        self._ask("delete", "delete_item", writes=True, Key=_key_of(*cell))

    def _close(self) -> None:
        self._client.close()

    def audit(self) -> None:
        """Check that every item of the table is one of a store, and no token was given out twice."""
        versions: set[Predicate] = set()
        for item in self._all_items():
            version = self._read(_cell_in, item).predicate
            if version in versions:
                raise AuditFailed(f"the token of key {item['k']!r} was given out twice")
            versions.add(version)

    def __repr__(self) -> str:
        return f"DynamoStore({self._table!r})"

    # -- reading

    def _get_many(self, cells: Sequence[Address]) -> list[Versioned | None]:
        """One BatchGetItem, another for what passes 16 MB, or DynamoDB leaves for later; for one cell one GetItem."""
        if len(cells) == 1:
            reply = self._ask("get", "get_item", Key=_key_of(*cells[0]), ConsistentRead=True)
            return [self._read(_cell_in, reply["Item"]) if "Item" in reply else None]
        found: dict[Address, Versioned] = {}
        keys: Sequence[Any] = [_key_of(*cell) for cell in cells]
        while keys:
            reply = self._ask("get_many", "batch_get_item", of_table=False, RequestItems={
                self._table: {"Keys": keys, "ConsistentRead": True}})
            for item in reply["Responses"].get(self._table, ()):
                found[bytes(item["p"]["B"]), bytes(item["k"]["B"])] = self._read(_cell_in, item)
            keys = self._keys_in(reply.get("UnprocessedKeys"))
        return [found.get(cell) for cell in cells]

    def _page(self, partition: bytes, start: bytes, limit: int, keys_only: bool) -> tuple[list[KVEntry], bool]:
        request: dict[str, Any] = {**_from_position(partition, start), "ConsistentRead": True, "Limit": limit}
        if keys_only:
            request["ProjectionExpression"] = "k, n"
        while True:
            reply = self._ask("scan", "query", **request)
            page = [self._read(_name_in if keys_only else _entry_in, item) for item in reply["Items"]]
            if page or "LastEvaluatedKey" not in reply:
                return page, "LastEvaluatedKey" not in reply
            # Nothing found so far is not the end.
            request["ExclusiveStartKey"] = reply["LastEvaluatedKey"]

    def _all_items(self) -> Iterator[dict[str, Any]]:
        request: dict[str, Any] = {"ConsistentRead": True}
        while True:
            reply = self._ask("audit", "scan", **request)
            yield from reply["Items"]
            if "LastEvaluatedKey" not in reply:
                return
            request["ExclusiveStartKey"] = reply["LastEvaluatedKey"]

    def _read(self, reader: Callable[[dict[str, Any]], ReadT], item: dict[str, Any]) -> ReadT:
        try:
            return reader(item)
        except _ForeignItem as error:
            raise DamagedStore(path=f"table {self._table}", detail=str(error)) from error

    # -- writing

    def _put(self, operation: str, put: tuple[bytes, bytes, bytes], predicates: tuple[Predicate | None, ...]) -> None:
        version = self._new_version()
        reply = self._ask(operation, "put_item", writes=True, Item=_item_of(*put, version),
                          **_demand(predicates))
        if _code_of(reply) != _CONDITION_FAILED:
            return
        # DynamoDB's front end may itself have repeated a write that was carried out: then it is ours that is there.
        if reply.get("Item", {}).get("n", {}).get("B") != version:
            raise PredicateFailed(partition=put[0], key=put[1])

    def _transact(self, transaction: Transaction) -> None:
        size = sum(len(partition) + len(key) + len(value or b"") + _OVERHEAD_BYTES
                   for partition, key, value in transaction.changes)
        if size > _TRANSACTION_BYTES:
            raise TooLarge(what="transaction", size_bytes=size, limit_bytes=_TRANSACTION_BYTES)
        request = _Request.of(transaction, self._table, self._versions())
        # The token makes what DynamoDB's front end repeats one transaction.
        reply = self._ask("transact", "transact_write_items", writes=bool(transaction.changes), of_table=False,
                          TransactItems=request.items, ClientRequestToken=self._new_version().hex())
        if _code_of(reply) == _CANCELED:
            failed = request.first_failed(transaction, reply["CancellationReasons"])
            if failed is None:
                raise StoreFailed(operation="transact", path=self._table, detail=f"the reasons "
                                  f"{reply['CancellationReasons']!r} name no condition")
            raise PredicateFailed(partition=failed[0], key=failed[1])

    def _versions(self) -> Iterator[bytes]:
        while True:
            yield self._new_version()

    # -- the service

    def _set_up(self, create: bool) -> dict[str, Any]:
        """Make the table if need be; gives what DynamoDB says of it."""
        for turn in range(_TABLE_WAITS):
            # A table that was made a moment ago is known at once, as a rule.
            if turn > 1:
                self._clock.sleep(_TABLE_WAIT_SECONDS)
            reply = self._ask("set up", "describe_table")
            if _code_of(reply) == _NO_TABLE:
                if not create:
                    raise NotAStore(f"there is no table {self._table}; check the name and the region, or open it with "
                                    f"create=True", path=self._table)
                self._ask("set up", "create_table", KeySchema=_KEY_SCHEMA, AttributeDefinitions=_ATTRIBUTES,
                          BillingMode="PAY_PER_REQUEST")
                continue
            found: dict[str, Any] = reply["Table"]
            if found["KeySchema"] != _KEY_SCHEMA or any(one not in found["AttributeDefinitions"]
                                                            for one in _ATTRIBUTES):
                raise NotAStore(f"table {self._table} has the key {found['KeySchema']!r}, not that of a key-value "
                                f"store, {_KEY_SCHEMA!r} of binary attributes; name another table",
                                path=self._table)
            # While it is being updated it can be used as well.
            if found["TableStatus"] in ("ACTIVE", "UPDATING"):
                return found
        raise SlowDown(operation="set up", detail=f"table {self._table} is still not active")

    def _ask(self, operation: str, method: str, *, writes: bool = False, of_table: bool = True,
             **arguments: Any) -> dict[str, Any]:
        """The answer; that a condition failed or a table is not there is one, and its error code is in it."""
        if of_table:
            arguments["TableName"] = self._table
        waited, longest = 0.0, _FIRST_WAIT_SECONDS
        while True:
            try:
                return self._ask_once(operation, method, arguments, writes=writes)
            except SlowDown:
                wait = self._rng.uniform(0.5, 1.0) * longest
                if waited + wait > self._busy_seconds:
                    raise
            self._clock.sleep(wait)
            waited, longest = waited + wait, min(2 * longest, _LONGEST_WAIT_SECONDS)

    def _require_whole(self, response_dict: dict[str, Any] | None, **_: object) -> None:
        """Check an answer: botocore takes one that is cut for one that is empty, and so a key in it for absent."""
        if response_dict is not None and response_dict["status_code"] < 300 \
                and not is_whole(response_dict["headers"], response_dict["body"]):
            raise self._garbled("the answer is cut or garbled")

    def _ask_once(self, operation: str, method: str, arguments: dict[str, Any], *, writes: bool) -> dict[str, Any]:
        self._state.require()
        exceptions = self._exceptions
        try:
            reply: dict[str, Any] = getattr(self._client, method)(**arguments)
        except exceptions.ClientError as error:
            response: dict[str, Any] = error.response
            reasons = {reason.get("Code") for reason in response.get("CancellationReasons", ())}
            if "ConditionalCheckFailed" in reasons or _code_of(response) == _CONDITION_FAILED:
                return response
            if operation == "set up" and _code_of(response) in (_NO_TABLE, _TABLE_IN_USE):
                return response
            raise refused(operation, self._table, response, writes=writes) from error
        except (exceptions.EndpointConnectionError, exceptions.ConnectTimeoutError,
                exceptions.ProxyConnectionError) as error:
            raise ConnectFailed(operation=operation, path=self._table, detail=str(error)) from error
        except (exceptions.HTTPClientError, exceptions.ConnectionError, exceptions.ChecksumError,
                self._garbled) as error:
            kind = OutcomeUnknown if writes else StoreFailed
            raise kind(operation=operation, path=self._table, detail=str(error)) from error
        except exceptions.BotoCoreError as error:
            # Credentials, region: nothing was sent.
            raise StoreFailed(operation=operation, path=self._table, detail=str(error)) from error
        left = self._keys_in(reply.get("UnprocessedKeys"))
        if left and len(left) == len(self._keys_in(arguments["RequestItems"])):
            # Throttled, in an answer of its own kind.
            raise SlowDown(operation=operation, detail=f"DynamoDB has left all {len(left)} keys for later")
        return reply

    def _keys_in(self, items: Mapping[str, Any] | None) -> Sequence[Any]:
        keys: Sequence[Any] = (items or {}).get(self._table, {}).get("Keys", ())
        return keys


# ------------------------------------------------------------------------------------------- items and expressions


class _ForeignItem(ValueError):
    """An item that no store of this library has written."""


def is_whole(headers: Mapping[str, str], body: bytes) -> bool:
    """Whether an answer came as it was sent: by its checksum, or as JSON if a server of other make gives none."""
    stated = headers.get("x-amz-crc32")
    if stated is not None:
        return stated == str(crc32(body))
    try:
        return isinstance(json.loads(body), dict)
    except (ValueError, RecursionError):
        return False


def _key_of(partition: bytes, key: bytes) -> dict[str, Any]:
    """The primary key of a cell's item."""
    return {"p": {"B": partition}, "k": {"B": key}}


def _item_of(partition: bytes, key: bytes, value: bytes, version: bytes) -> dict[str, Any]:
    """A cell's item."""
    return {**_key_of(partition, key), "v": {"B": value}, "n": {"B": version}}


def _cell_in(item: Mapping[str, Any]) -> Versioned:
    """The value and the predicate of an item.

    Raises:
        _ForeignItem: it has none.
    """
    try:
        value, version = bytes(item["v"]["B"]), bytes(item["n"]["B"])
    except (LookupError, TypeError) as error:
        raise _ForeignItem(f"the item {item['k']['B']!r} has not the attributes 'v' and 'n' of bytes") from error
    if len(version) != _VERSION_BYTES:
        raise _ForeignItem(f"the item {item['k']['B']!r} has a version of {len(version)} bytes, not {_VERSION_BYTES}")
    return Versioned(value, version)


def _entry_in(item: Mapping[str, Any]) -> KVEntry:
    """The entry of a scan.

    Raises:
        _ForeignItem: see `_cell_in`.
    """
    cell = _cell_in(item)
    return KVEntry(bytes(item["k"]["B"]), cell.value, cell.predicate)


def _name_in(item: Mapping[str, Any]) -> KVEntry:
    """The entry of a scan that did not ask for the value.

    Raises:
        _ForeignItem: see `_cell_in`.
    """
    return _entry_in({**item, "v": {"B": b""}})


def _from_position(partition: bytes, position: bytes) -> dict[str, Any]:
    """The part of a query that names the keys of a partition from `position` on, which may be longer than any key."""
    values = {":p": {"B": partition}}
    if not position:
        return {"KeyConditionExpression": "p = :p", "ExpressionAttributeValues": values}
    # What no key is long enough to be lies right behind its own beginning.
    compared = ">=" if len(position) <= _MAX_KEY_BYTES else ">"
    return {"KeyConditionExpression": f"p = :p AND k {compared} :k",
            "ExpressionAttributeValues": {**values, ":k": {"B": position[:_MAX_KEY_BYTES]}}}


def _demand(predicates: Sequence[Predicate | None]) -> dict[str, Any]:
    """The part of a write that demands all these states of its item; with none of them, nothing."""
    texts: list[str] = []
    values: dict[str, Any] = {}
    for number, predicate in enumerate(predicates):
        if predicate is None:
            texts.append("attribute_not_exists(p)")
        elif predicate is EXISTS:
            texts.append("attribute_exists(p)")
        else:
            texts.append(f"n = :n{number}")
            values[f":n{number}"] = {"B": predicate if _is_version(predicate) else _NO_VERSION}
    if not texts:
        return {}
    demanded: dict[str, Any] = {"ConditionExpression": " AND ".join(texts),
                                "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    return {**demanded, "ExpressionAttributeValues": values} if values else demanded


def _is_version(predicate: Predicate | None) -> bool:
    return isinstance(predicate, bytes) and len(predicate) == _VERSION_BYTES


@attrs.define
class _Cell:
    """All that one transaction has to do with one cell, which DynamoDB lets it name only once."""

    predicates: list[Predicate | None] = attrs.Factory(list)
    changes: bool = False
    value: bytes | None = None


@attrs.frozen
class _Request:
    """A transaction as DynamoDB takes it.

    Attributes:
        items: one for each cell.
        cells: their partitions and keys.
    """

    items: list[dict[str, Any]]
    cells: list[tuple[bytes, bytes]]

    @classmethod
    def of(cls, transaction: Transaction, table: str, versions: Iterable[bytes]) -> _Request:
        """The request for a transaction; takes a version for each put."""
        cells: dict[tuple[bytes, bytes], _Cell] = {}
        for partition, key, predicate in transaction.conditions:
            cells.setdefault((partition, key), _Cell()).predicates.append(predicate)
        for partition, key, value in transaction.changes:
            cell = cells.setdefault((partition, key), _Cell())
            cell.changes, cell.value = True, value
        unused = iter(versions)
        items: list[dict[str, Any]] = []
        for name, cell in cells.items():
            demanded = {"TableName": table, **_demand(cell.predicates)}
            if not cell.changes:
                items.append({"ConditionCheck": {"Key": _key_of(*name), **demanded}})
            elif cell.value is None:
                items.append({"Delete": {"Key": _key_of(*name), **demanded}})
            else:
                items.append({"Put": {"Item": _item_of(*name, cell.value, next(unused)), **demanded}})
        return cls(items, list(cells))

    def first_failed(self, transaction: Transaction,
                     reasons: Sequence[Mapping[str, Any]]) -> tuple[bytes, bytes] | None:
        """The cell of the first condition that did not hold, by the reasons that DynamoDB gives, one for each item;
        `None` if it was none of the conditions."""
        failed = {cell: _version_in(reason.get("Item")) for cell, reason in zip(self.cells, reasons, strict=True)
                  if reason.get("Code") == "ConditionalCheckFailed"}
        for partition, key, predicate in transaction.conditions:
            if (partition, key) in failed and not holds(predicate, failed[partition, key]):
                return partition, key
        return next(iter(failed), None)


def _version_in(item: Mapping[str, Any] | None) -> bytes | None:
    return None if item is None else bytes(item.get("n", {}).get("B", b""))


# ------------------------------------------------------------------------------------------------------------ errors


def _code_of(response: Mapping[str, Any]) -> str:
    """The error code of an answer."""
    return str(response.get("Error", {}).get("Code", ""))


def refused(operation: str, table: str, response: Mapping[str, Any], *, writes: bool) -> StoreFailed | SlowDown:
    """The library's error for an answer of DynamoDB that is not a result, nor a condition that failed.

    Args:
        operation: what was asked for.
        table: of which table.
        response: the answer.
        writes: whether the operation writes: if it cannot be known that it was not carried out, say so.
    """
    code = _code_of(response)
    detail = f"{code}: {response.get('Error', {}).get('Message', 'no message')}"
    if code in _THROTTLED:
        return SlowDown(operation=operation, detail=detail)
    if code == _CANCELED:
        codes = {str(reason.get("Code")) for reason in response.get("CancellationReasons", ())} - {"None"}
        if codes and codes <= _PASSING_REASONS:
            return SlowDown(operation=operation, detail=detail)
        return StoreFailed(operation=operation, path=table, detail=detail)
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if writes and (not 400 <= status < 500 or code == "TransactionInProgressException"):
        # What failed inside of DynamoDB may have failed after the item was written.
        return OutcomeUnknown(operation=operation, path=table, detail=detail)
    return StoreFailed(operation=operation, path=table, detail=detail)
