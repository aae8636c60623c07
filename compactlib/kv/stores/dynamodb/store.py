# SPDX-License-Identifier: Apache-2.0
"""`DynamoStore`: a key-value store in one DynamoDB table, for many processes on many machines.

All reads are consistent, all conditions are condition expressions on a token that each write leaves in its item, and a
`transact` is one TransactWriteItems. Nothing is ever sent twice behind the caller's back, except what DynamoDB has
refused for now: a write that is repeated after its answer was lost could fail its own condition, or bring a value back
over a later one.
"""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from compactlib._arguments import require_id, require_seconds
from compactlib.clock import Clock, SystemClock
from compactlib.errors import AuditFailed, InvalidInput, MissingDependency
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
    Address,
    KVEntry,
    KVLimits,
    KVStore,
    Predicate,
    Transaction,
    Versioned,
    checked_cell,
    checked_put,
)
from compactlib.kv.stores.dynamodb import wire
from compactlib.kv.stores.dynamodb.errors import CANCELED, CONDITION_FAILED, NO_TABLE, TABLE_IN_USE, code_of, refused

if TYPE_CHECKING:
    import boto3
    from typing_extensions import Buffer

_ITEM_BYTES = 400_000
_TRANSACTION_BYTES = 4 << 20
_OVERHEAD_BYTES = 64
"""Names of the attributes and the token, with something to spare."""
_LIMITS = KVLimits(max_partition_bytes=2048, max_key_bytes=wire.MAX_KEY_BYTES,
                   max_value_bytes=_ITEM_BYTES - 2048 - wire.MAX_KEY_BYTES - _OVERHEAD_BYTES, max_transact=100,
                   max_get_many=100)
_TABLE = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_FIRST_WAIT_SECONDS = 0.025
_LONGEST_WAIT_SECONDS = 1.0
_TABLE_WAIT_SECONDS = 0.2
_TABLE_WAITS = 600
_CONNECTIONS = 50

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
        self._new_version: Callable[[], bytes] = lambda: require_id("new_version", new_version(), wire.VERSION_BYTES)
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
        self._ask("delete", "delete_item", writes=True, Key=wire.key_of(*cell))

    def _close(self) -> None:
        self._client.close()

    def audit(self) -> None:
        """Check that every item of the table is one of a store, and no token was given out twice."""
        versions: set[Predicate] = set()
        for item in self._all_items():
            version = self._read(wire.cell_in, item).predicate
            if version in versions:
                raise AuditFailed(f"the token of key {item['k']!r} was given out twice")
            versions.add(version)

    def __repr__(self) -> str:
        return f"DynamoStore({self._table!r})"

    # -- reading

    def _get_many(self, cells: Sequence[Address]) -> list[Versioned | None]:
        """One BatchGetItem, another for what passes 16 MB, or DynamoDB leaves for later; for one cell one GetItem."""
        if len(cells) == 1:
            reply = self._ask("get", "get_item", Key=wire.key_of(*cells[0]), ConsistentRead=True)
            return [self._read(wire.cell_in, reply["Item"]) if "Item" in reply else None]
        found: dict[Address, Versioned] = {}
        keys: Sequence[Any] = [wire.key_of(*cell) for cell in cells]
        while keys:
            reply = self._ask("get_many", "batch_get_item", of_table=False, RequestItems={
                self._table: {"Keys": keys, "ConsistentRead": True}})
            for item in reply["Responses"].get(self._table, ()):
                found[bytes(item["p"]["B"]), bytes(item["k"]["B"])] = self._read(wire.cell_in, item)
            keys = self._keys_in(reply.get("UnprocessedKeys"))
        return [found.get(cell) for cell in cells]

    def _page(self, partition: bytes, start: bytes, limit: int, keys_only: bool) -> tuple[list[KVEntry], bool]:
        request: dict[str, Any] = {**wire.from_position(partition, start), "ConsistentRead": True, "Limit": limit}
        if keys_only:
            request["ProjectionExpression"] = "k, n"
        while True:
            reply = self._ask("scan", "query", **request)
            page = [self._read(wire.name_in if keys_only else wire.entry_in, item) for item in reply["Items"]]
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
        except wire.ForeignItem as error:
            raise DamagedStore(path=f"table {self._table}", detail=str(error)) from error

    # -- writing

    def _put(self, operation: str, put: tuple[bytes, bytes, bytes], predicates: tuple[Predicate | None, ...]) -> None:
        version = self._new_version()
        reply = self._ask(operation, "put_item", writes=True, Item=wire.item_of(*put, version),
                          **wire.demand(predicates))
        if code_of(reply) != CONDITION_FAILED:
            return
        # DynamoDB's front end may itself have repeated a write that was carried out: then it is ours that is there.
        if reply.get("Item", {}).get("n", {}).get("B") != version:
            raise PredicateFailed(partition=put[0], key=put[1])

    def _transact(self, transaction: Transaction) -> None:
        size = sum(len(partition) + len(key) + len(value or b"") + _OVERHEAD_BYTES
                   for partition, key, value in transaction.changes)
        if size > _TRANSACTION_BYTES:
            raise TooLarge(what="transaction", size_bytes=size, limit_bytes=_TRANSACTION_BYTES)
        request = wire.Request.of(transaction, self._table, self._versions())
        # The token makes what DynamoDB's front end repeats one transaction.
        reply = self._ask("transact", "transact_write_items", writes=bool(transaction.changes), of_table=False,
                          TransactItems=request.items, ClientRequestToken=self._new_version().hex())
        if code_of(reply) == CANCELED:
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
            if code_of(reply) == NO_TABLE:
                if not create:
                    raise NotAStore(f"there is no table {self._table}; check the name and the region, or open it with "
                                    f"create=True", path=self._table)
                self._ask("set up", "create_table", KeySchema=wire.KEY_SCHEMA, AttributeDefinitions=wire.ATTRIBUTES,
                          BillingMode="PAY_PER_REQUEST")
                continue
            found: dict[str, Any] = reply["Table"]
            if found["KeySchema"] != wire.KEY_SCHEMA or any(one not in found["AttributeDefinitions"]
                                                            for one in wire.ATTRIBUTES):
                raise NotAStore(f"table {self._table} has the key {found['KeySchema']!r}, not that of a key-value "
                                f"store, {wire.KEY_SCHEMA!r} of binary attributes; name another table",
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
                and not wire.is_whole(response_dict["headers"], response_dict["body"]):
            raise self._garbled("the answer is cut or garbled")

    def _ask_once(self, operation: str, method: str, arguments: dict[str, Any], *, writes: bool) -> dict[str, Any]:
        self._state.require()
        exceptions = self._exceptions
        try:
            reply: dict[str, Any] = getattr(self._client, method)(**arguments)
        except exceptions.ClientError as error:
            response: dict[str, Any] = error.response
            reasons = {reason.get("Code") for reason in response.get("CancellationReasons", ())}
            if "ConditionalCheckFailed" in reasons or code_of(response) == CONDITION_FAILED:
                return response
            if operation == "set up" and code_of(response) in (NO_TABLE, TABLE_IN_USE):
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
