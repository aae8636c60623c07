# SPDX-License-Identifier: Apache-2.0
"""`DynamoStore`: a key-value store in one DynamoDB table, for many processes on many machines.

An item is a cell, with binary attributes: `p` the partition (hash key), `k` the key (range key), `v` the value, `n` the
token, 16 bytes that are unique to a write. All reads are consistent, all conditions are condition expressions on the
token, and a `transact` is a TransactWriteItems; of a single cell it is a PutItem or DeleteItem, for half the price.
boto3's retries are off: a write that is repeated after a lost answer could fail its own condition, or overwrite a later
value. Only requests that DynamoDB has throttled are repeated.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compactlib._arguments import require_seconds
from compactlib._closing import closed_on_failure
from compactlib.clock import Clock, SystemClock
from compactlib.errors import MissingDependency
from compactlib.files.checksum import crc32
from compactlib.kv.errors import (
    ConnectFailed,
    DamagedStore,
    NotAStore,
    OutcomeUnknown,
    PredicateFailed,
    SlowDown,
    StoreFailed,
)
from compactlib.kv.scan import KVEntry
from compactlib.kv.store import EXISTS, Address, Changes, Conditions, KVLimits, KVStore, Predicate

if TYPE_CHECKING:
    import boto3

_KEY_SCHEMA = [{"AttributeName": "p", "KeyType": "HASH"}, {"AttributeName": "k", "KeyType": "RANGE"}]
_ATTRIBUTES = [{"AttributeName": "p", "AttributeType": "B"}, {"AttributeName": "k", "AttributeType": "B"}]
_TOKEN_BYTES = 16
_NO_TOKEN = b"\0"
"""No item has this token, since it is shorter than all."""
_MAX_KEY_BYTES = 1024
_ITEM_BYTES = 400_000
_OVERHEAD_BYTES = 64
"""For the names of the attributes and the token, with a margin."""
_LIMITS = KVLimits(max_partition_bytes=2048, max_key_bytes=_MAX_KEY_BYTES,
                   max_value_bytes=_ITEM_BYTES - 2048 - _MAX_KEY_BYTES - _OVERHEAD_BYTES, max_transact=100,
                   max_transact_bytes=4 << 20)
_FIRST_WAIT_SECONDS = 0.025
_LONGEST_WAIT_SECONDS = 1.0
_CONNECTIONS = 50
_READY_TRIES = 120
"""With a second between them."""

_CONDITION_FAILED = "ConditionalCheckFailedException"
_CANCELED = "TransactionCanceledException"
_NO_TABLE = "ResourceNotFoundException"
_TABLE_IN_USE = "ResourceInUseException"
_THROTTLED = frozenset({
    "ProvisionedThroughputExceededException", "ThrottlingException", "Throttling", "ThrottledException",
    "RequestLimitExceeded", "RequestThrottled", "RequestThrottledException", "TooManyRequestsException", "SlowDown",
    # Another transaction, or a replica in another region, has the item for a moment.
    "TransactionConflictException", "ReplicatedWriteConflictException",
})
_PASSING_REASONS = frozenset({"TransactionConflict", "ProvisionedThroughputExceeded", "ThrottlingError"})


class DynamoStore(KVStore):
    """A `KVStore` in a table of Amazon DynamoDB (extra `compactlib[dynamodb]`).

    A predicate never holds again after another write of the key. Threads may share a store; other processes open their
    own.

    A conditional write of one key is a PutItem. If DynamoDB's front end repeats it after it had succeeded, and another
    write was in between, the call raises `PredicateFailed`.

    Args:
        table: the table's name; created if absent, with payment by request.
        endpoint_url: another address, for servers with DynamoDB's protocol.
        session: the session of boto3, with credentials and region; default boto3's default session.
        timeout_seconds: limit of a connection, and of an answer.
        busy_seconds: how long a request that DynamoDB throttles, or that conflicts with another transaction, is
            repeated, with growing random waits, before it raises `SlowDown`.
        page_size: the most entries of a page of a scan; DynamoDB also ends a page at 1 MB.
        clock: the clock for these waits.

    Raises:
        ConnectFailed: DynamoDB cannot be reached.
        NotAStore: the table is not a store.
        SlowDown: the table is not ready after two minutes.
        StoreFailed: DynamoDB refused: the table's name, credentials, rights.
        MissingDependency: boto3 is not installed.
    """

    def __init__(self, table: str, *, endpoint_url: str | None = None, session: boto3.Session | None = None,
                 timeout_seconds: float = 10.0, busy_seconds: float = 10.0, page_size: int = 1000,
                 clock: Clock | None = None) -> None:
        try:
            import boto3
            from botocore import config, exceptions, parsers
        except ImportError:
            raise MissingDependency(package="boto3", extra="dynamodb", purpose="a store in DynamoDB") from None
        require_seconds("timeout_seconds", timeout_seconds, above_zero=True)
        require_seconds("busy_seconds", busy_seconds)
        super().__init__(f"the store table {table}", _LIMITS, page_size=page_size)
        self.table = table
        self._busy_seconds = busy_seconds
        self._clock: Clock = SystemClock() if clock is None else clock
        self._exceptions: Any = exceptions
        self._garbled: Any = parsers.ResponseParserError
        settings = config.Config(retries={"total_max_attempts": 1, "mode": "standard"},
                                 connect_timeout=timeout_seconds, read_timeout=timeout_seconds,
                                 max_pool_connections=_CONNECTIONS)
        try:
            self._client: Any = (session or boto3.Session()).client(
                "dynamodb", endpoint_url=endpoint_url, config=settings)
        except (exceptions.BotoCoreError, ValueError) as error:  # ValueError: the address has no scheme, say
            raise StoreFailed(operation="set up", path=table, detail=str(error)) from error
        self._client.meta.events.register("response-received.dynamodb", self._require_whole)
        with closed_on_failure(self):
            found = self._set_up()
        # With its id, since a deleted and created, or a restored, table has the same ARN.
        names = ("DynamoDB table", "TableArn"), ("id", "TableId")
        self._place = ", ".join(f"{word} {found[name]}" for word, name in names if found.get(name))

    def place(self) -> str | None:
        self._require_open()
        return self._place or None

    def _close(self) -> None:
        self._client.close()

    # -- reading

    def _get_many(self, cells: Sequence[Address]) -> list[KVEntry | None]:
        # A BatchGetItem, and more for the rest above 16 MB or for throttled keys; for one cell a GetItem.
        if len(cells) == 1:
            reply = self._ask("get", "get_item", Key=_key_of(*cells[0]), ConsistentRead=True)
            return [self._entry(reply["Item"]) if "Item" in reply else None]
        found: dict[Address, KVEntry] = {}
        keys: Sequence[Any] = [_key_of(*cell) for cell in cells]
        while keys:
            reply = self._ask("get_many", "batch_get_item", of_table=False, RequestItems={
                self.table: {"Keys": keys, "ConsistentRead": True}})
            for item in reply["Responses"].get(self.table, ()):
                found[bytes(item["p"]["B"]), bytes(item["k"]["B"])] = self._entry(item)
            keys = self._keys_in(reply.get("UnprocessedKeys"))
        return [found.get(cell) for cell in cells]

    def _page(self, partition: bytes, start: bytes, limit: int) -> tuple[list[KVEntry], bool]:
        request: dict[str, Any] = {**_from_position(partition, start), "ConsistentRead": True, "Limit": limit}
        while True:
            reply = self._ask("scan", "query", **request)
            page = [self._entry(item) for item in reply["Items"]]
            if page or "LastEvaluatedKey" not in reply:
                return page, "LastEvaluatedKey" not in reply
            # An empty page need not be the last.
            request["ExclusiveStartKey"] = reply["LastEvaluatedKey"]

    def _entry(self, item: Mapping[str, Any]) -> KVEntry:
        key, value, token = bytes(item["k"]["B"]), item.get("v", {}).get("B"), item.get("n", {}).get("B")
        if isinstance(value, bytes) and isinstance(token, bytes) and len(token) == _TOKEN_BYTES:
            return KVEntry(key, value, token)
        return KVEntry(key, b"", token, DamagedStore(
            path=f"table {self.table}", detail=f"the item {key!r} has not the attributes 'v' of bytes and 'n' of "
                                                f"{_TOKEN_BYTES} bytes"))

    # -- writing

    def _transact(self, conditions: Conditions, changes: Changes) -> None:
        requests = {cell: _request_of(cell, conditions, changes) for cell in {**conditions, **changes}}
        if len(requests) == 1:
            (cell, (kind, request)), = requests.items()
            if kind == "Put":
                reply = self._ask("set", "put_item", writes=True, **request)
                # DynamoDB's front end may have repeated a successful write: then the item has the token of this write.
                if _code_of(reply) == _CONDITION_FAILED and reply.get("Item", {}).get("n") != request["Item"]["n"]:
                    raise PredicateFailed(partition=cell[0], key=cell[1])
                return
            # As a transaction, whose token distinguishes a conditional delete that DynamoDB's front end has repeated
            # from a late delete. The absent item cannot show that.
            if not conditions:
                self._ask("delete", "delete_item", writes=True, **request)
                return
        # With the token, repetitions by DynamoDB's front end are one transaction.
        reply = self._ask("transact", "transact_write_items", writes=bool(changes), of_table=False,
                          TransactItems=[{kind: {"TableName": self.table, **request}}
                                         for kind, request in requests.values()],
                          ClientRequestToken=uuid.uuid4().hex)
        if _code_of(reply) == _CANCELED:
            failed = next(cell for cell, reason in zip(requests, reply["CancellationReasons"], strict=True)
                          if reason.get("Code") == "ConditionalCheckFailed")
            raise PredicateFailed(partition=failed[0], key=failed[1])

    # -- the service

    def _set_up(self) -> dict[str, Any]:
        """Create the table if it is absent, and wait until it is ready; return DynamoDB's description of it."""
        for _ in range(_READY_TRIES):
            reply = self._ask("set up", "describe_table")
            if _code_of(reply) == _NO_TABLE:
                reply = self._ask("set up", "create_table", KeySchema=_KEY_SCHEMA, AttributeDefinitions=_ATTRIBUTES,
                                  BillingMode="PAY_PER_REQUEST")
                if _code_of(reply) != _TABLE_IN_USE:
                    continue
            elif reply["Table"]["TableStatus"] in ("ACTIVE", "UPDATING"):
                break
            # Also a new table that DescribeTable does not know for some seconds, since it is eventually consistent.
            self._clock.sleep(1.0)
        else:
            raise SlowDown(operation="set up", detail=f"table {self.table} is still not active")
        found: dict[str, Any] = reply["Table"]
        if found["KeySchema"] != _KEY_SCHEMA or any(one not in found["AttributeDefinitions"] for one in _ATTRIBUTES):
            raise NotAStore(f"table {self.table} has the key {found['KeySchema']!r}, not that of a key-value store, "
                            f"{_KEY_SCHEMA!r} of binary attributes; name another table")
        return found

    def _ask(self, operation: str, method: str, *, writes: bool = False, of_table: bool = True,
             **arguments: Any) -> dict[str, Any]:
        """Return the answer; a failed condition and an absent table are answers with an error code."""
        if of_table:
            arguments["TableName"] = self.table
        waited, longest = 0.0, _FIRST_WAIT_SECONDS
        while True:
            try:
                return self._ask_once(operation, method, arguments, writes=writes)
            except SlowDown:
                wait = random.uniform(0.5, 1.0) * longest
                if waited + wait > self._busy_seconds:
                    raise
            self._clock.sleep(wait)
            waited, longest = waited + wait, min(2 * longest, _LONGEST_WAIT_SECONDS)

    def _require_whole(self, response_dict: dict[str, Any] | None, **_: object) -> None:
        """Check an answer: botocore takes a cut answer for an empty answer, in which all keys are absent."""
        if response_dict is not None and response_dict["status_code"] < 300 \
                and not _is_whole(response_dict["headers"], response_dict["body"]):
            raise self._garbled("the answer is cut or garbled")

    def _ask_once(self, operation: str, method: str, arguments: dict[str, Any], *, writes: bool) -> dict[str, Any]:
        self._require_open()
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
            raise _refused(operation, self.table, response, writes=writes) from error
        except (exceptions.EndpointConnectionError, exceptions.ConnectTimeoutError,
                exceptions.ProxyConnectionError) as error:
            raise ConnectFailed(operation=operation, path=self.table, detail=str(error)) from error
        except (exceptions.HTTPClientError, exceptions.ConnectionError, exceptions.ChecksumError,
                self._garbled) as error:
            kind = OutcomeUnknown if writes else StoreFailed
            raise kind(operation=operation, path=self.table, detail=str(error)) from error
        except exceptions.BotoCoreError as error:
            # Wrong credentials or region: nothing was sent.
            raise StoreFailed(operation=operation, path=self.table, detail=str(error)) from error
        left = self._keys_in(reply.get("UnprocessedKeys"))
        if left and len(left) == len(self._keys_in(arguments["RequestItems"])):
            # BatchGetItem reports throttling in this way.
            raise SlowDown(operation=operation, detail=f"DynamoDB has left all {len(left)} keys for later")
        return reply

    def _keys_in(self, items: Mapping[str, Any] | None) -> Sequence[Any]:
        keys: Sequence[Any] = (items or {}).get(self.table, {}).get("Keys", ())
        return keys


def _is_whole(headers: Mapping[str, str], body: bytes) -> bool:
    """Return whether an answer is complete: by its checksum, or, from a server or proxy without checksums, as JSON."""
    stated = headers.get("x-amz-crc32")
    if stated is not None:
        return stated == str(crc32(body))
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


def _key_of(partition: bytes, key: bytes) -> dict[str, Any]:
    return {"p": {"B": partition}, "k": {"B": key}}


def _from_position(partition: bytes, position: bytes) -> dict[str, Any]:
    """Return the condition of a query for the keys from `position` on, which may be longer than any key."""
    values = {":p": {"B": partition}}
    if not position:
        return {"KeyConditionExpression": "p = :p", "ExpressionAttributeValues": values}
    # A position longer than any key comes directly after its longest prefix that is a key.
    compared = ">=" if len(position) <= _MAX_KEY_BYTES else ">"
    return {"KeyConditionExpression": f"p = :p AND k {compared} :k",
            "ExpressionAttributeValues": {**values, ":k": {"B": position[:_MAX_KEY_BYTES]}}}


def _request_of(cell: Address, conditions: Conditions, changes: Changes) -> tuple[str, dict[str, Any]]:
    """Return kind and content of the request for a cell, which a transaction may have only once."""
    demanded = _demand(conditions[cell]) if cell in conditions else {}
    value = changes.get(cell)
    if value is not None:
        return "Put", {"Item": {**_key_of(*cell), "v": {"B": value}, "n": {"B": uuid.uuid4().bytes}}, **demanded}
    return "Delete" if cell in changes else "ConditionCheck", {"Key": _key_of(*cell), **demanded}


def _demand(predicate: Predicate | None) -> dict[str, Any]:
    """Return the condition expression of a predicate. A failed condition returns the item."""
    demanded: dict[str, Any] = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    if predicate is None or predicate is EXISTS:
        verb = "attribute_exists" if predicate is EXISTS else "attribute_not_exists"
        return {**demanded, "ConditionExpression": f"{verb}(p)"}
    is_token = isinstance(predicate, bytes) and len(predicate) == _TOKEN_BYTES
    return {**demanded, "ConditionExpression": "n = :n",
            "ExpressionAttributeValues": {":n": {"B": predicate if is_token else _NO_TOKEN}}}


def _code_of(response: Mapping[str, Any]) -> str:
    return str(response.get("Error", {}).get("Code", ""))


def _refused(operation: str, table: str, response: Mapping[str, Any], *, writes: bool) -> StoreFailed | SlowDown:
    """Return the library's error for an error code of DynamoDB."""
    code = _code_of(response)
    detail = f"{code}: {response.get('Error', {}).get('Message', 'no message')}"
    reasons = {str(reason.get("Code")) for reason in response.get("CancellationReasons", ())} - {"None"}
    if code in _THROTTLED or (code == _CANCELED and reasons and reasons <= _PASSING_REASONS):
        return SlowDown(operation=operation, detail=detail)
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if writes and code != _CANCELED and (not 400 <= status < 500 or code == "TransactionInProgressException"):
        # An internal error may have come after the write of the item.
        return OutcomeUnknown(operation=operation, path=table, detail=detail)
    return StoreFailed(operation=operation, path=table, detail=detail)
