# SPDX-License-Identifier: Apache-2.0
"""The store in DynamoDB, on moto's server: limits, throttling, repeated and refused requests, processes.

moto is not DynamoDB: it answers one request at a time here (`tests.harness.kv.moto_server`), throttles nobody, and does
not know a transaction's token again. What DynamoDB says then is put between by a proxy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import InvalidInput
from compactlib.kv import (
    EXISTS,
    DynamoStore,
    PredicateFailed,
    SlowDown,
    StoreFailed,
)
from compactlib.kv.errors import ConnectFailed, DamagedStore, NotAStore, TooLarge
from compactlib.testing.kv import P, keys_of
from tests.harness.kv import servers
from tests.harness.kv.dynamodb import answer, make, make_proxy, new_table
from tests.harness.kv.faulty_proxy import Fault, FaultyProxy, Refusal
from tests.harness.kv.processes import SESSION, closed_in_a_child, counted
from tests.harness.ports import free_port

pytestmark = pytest.mark.cluster


def client() -> Any:
    return SESSION.client("dynamodb", endpoint_url=servers.moto())


class _KnowingTokens(FaultyProxy):
    """Answers a transaction that comes again as DynamoDB does: as it has answered it."""

    def __init__(self) -> None:
        self.answers: dict[str, Refusal] = {}
        super().__init__(servers.moto(), throttled=answer(400, "ThrottlingException"),
                         failed=answer(500, "InternalServerError"))

    def carry_out(self, request: tuple[str, Any, bytes] | None) -> Refusal:
        token = None if request is None else json.loads(request[2]).get("ClientRequestToken")
        if token is None:
            return super().carry_out(request)
        if token not in self.answers:
            self.answers[token] = super().carry_out(request)
        return self.answers[token]


@pytest.fixture
def store() -> Iterator[DynamoStore]:
    made = make()
    yield made
    made.close()


def test_a_token_never_holds_again(store: DynamoStore) -> None:
    store.set(P, b"k", b"v1")
    old = store.get(P, b"k").predicate
    changes: list[Callable[[], None]] = [lambda: store.set(P, b"k", b"v1"), lambda: store.delete(P, b"k"),
                                         lambda: store.set(P, b"k", b"v1")]
    for change in changes:
        change()
        with pytest.raises(PredicateFailed):
            store.set_if(P, b"k", b"v2", old)


def test_the_largest_item_is_taken_and_a_larger_one_is_named(store: DynamoStore) -> None:
    """400 KB an item, its names included; 1 MiB, which other stores take, is too large."""
    partition, key = bytes(store.limits.max_partition_bytes), bytes(store.limits.max_key_bytes)
    largest = bytes(store.limits.max_value_bytes)
    store.set(partition, key, largest)
    assert store.get(partition, key).value == largest
    for value in (largest + b"x", bytes(1 << 20)):
        with pytest.raises(TooLarge, match=f"a value of .* at most {len(largest)}"):
            store.set(P, b"k", value)


def test_the_largest_transactions(store: DynamoStore) -> None:
    """100 cells, 4 MiB; a request names each cell once, also a cell with a condition and a change."""
    names = [b"%03d" % number for number in range(50)]
    store.transact({(P, name): None for name in names}, {(P, name): b"" for name in names})
    assert keys_of(store) == names
    with pytest.raises(TooLarge):
        store.transact({(P, b"x"): None}, {(P, b"%d" % number): b"" for number in range(100)})
    with pytest.raises(TooLarge, match="a transaction of 4290"):
        store.transact(changes={(P, b"%d" % number): bytes(390_000) for number in range(11)})
    assert keys_of(store) == names


def test_several_conditions_on_one_cell(store: DynamoStore) -> None:
    """All of them count, and the failed condition is the first in the given order."""
    store.set(P, b"a", b"1")
    store.set(P, b"b", b"1")
    a, b = (store.get(P, key).predicate for key in (b"a", b"b"))
    store.transact({(P, b"a"): EXISTS, (P, b"b"): b}, {(P, b"a"): b"2"})
    for conditions, first in (
        ({b"a": EXISTS, b"b": None, b"c": EXISTS}, b"b"),
        ({b"a": a, b"b": None}, b"a"),
        ({b"c": EXISTS, b"b": b, b"a": b"bogus"}, b"c"),
    ):
        with pytest.raises(PredicateFailed) as raised:
            store.transact({(P, key): predicate for key, predicate in conditions.items()},
                           {(P, b"new"): b"", (P, b"b"): None})
        assert raised.value.key == first
    assert keys_of(store) == [b"a", b"b"]


def test_a_page_ends_at_a_megabyte_and_the_scan_continues(store: DynamoStore) -> None:
    keys = [b"%d" % number for number in range(8)]
    for key in keys:
        store.set(P, key, bytes(300_000))
    with store.scan(P) as entries:
        assert [entry.key for entry in entries] == keys
        assert entries.page_loads > 1


def test_an_empty_page_is_not_the_end() -> None:
    """DynamoDB may return an empty page with the key from which to continue."""
    table = new_table()
    direct = make(table)
    direct.set(P, b"k", b"v:k")
    empty = {"Items": [], "Count": 0, "LastEvaluatedKey": {"p": {"B": "dGVzdA=="}, "k": {"B": "AA=="}}}
    made_up = 200, "application/x-amz-json-1.0", json.dumps(empty).encode()
    with FaultyProxy(servers.moto(), throttled=made_up, failed=made_up) as proxy:
        store = make(table, proxy.address)
        proxy.choose = lambda body: None if b"ExclusiveStartKey" in body else Fault.THROTTLE
        assert keys_of(store) == [b"k"]
        store.close()
    direct.close()


# -- refused for now


def test_a_new_table_that_is_still_unknown_is_waited_for() -> None:
    """DescribeTable is eventually consistent: for a few seconds it may not know a table that exists."""
    table, clock = new_table(), ManualClock()
    with make_proxy("ResourceNotFoundException") as proxy:
        proxy.choose = lambda body: Fault.THROTTLE if clock.monotonic() < 5.0 and b"KeySchema" not in body else None
        make(table, proxy.address, clock=clock).close()
    assert 5.0 <= clock.monotonic() < 10.0


def test_a_throttled_request_is_retried_for_the_hosts_time() -> None:
    table, clock = new_table(), ManualClock()
    with make_proxy() as proxy:
        store = make(table, proxy.address, busy_seconds=10.0, clock=clock)
        proxy.requests = 0
        proxy.choose = lambda body: Fault.THROTTLE if proxy.requests < 3 else None
        store.set(P, b"k", b"v")
        assert proxy.requests == 4
        assert 0.0 < clock.monotonic() < 0.2
        proxy.every(Fault.THROTTLE)
        before = clock.monotonic()
        with pytest.raises(SlowDown, match="ProvisionedThroughputExceeded"):
            store.set(P, b"k", b"w")
        assert 8.0 < clock.monotonic() - before <= 10.0
        proxy.every(None)
        assert store.get(P, b"k").value == b"v"
        store.close()


def test_unprocessed_keys_of_a_batch_wait_as_a_throttled_request() -> None:
    """Asked again at once, for ever, the answer would be the same."""
    table, clock = new_table(), ManualClock()
    direct = make(table)
    direct.set(P, b"k", b"v")
    left = {table: {"Keys": [{"p": {"B": "cA=="}, "k": {"B": "aw=="}}, {"p": {"B": "cA=="}, "k": {"B": "bA=="}}]}}
    later = 200, "application/x-amz-json-1.0", json.dumps({"Responses": {}, "UnprocessedKeys": left}).encode()
    with FaultyProxy(servers.moto(), throttled=later, failed=later) as proxy:
        store = make(table, proxy.address, busy_seconds=10.0, clock=clock)
        proxy.choose = lambda body: Fault.THROTTLE if b"RequestItems" in body and clock.monotonic() < 20.0 else None
        with pytest.raises(SlowDown, match="all 2 keys for later"):
            store.get_many([(P, b"k"), (P, b"l")])
        assert 8.0 < clock.monotonic() <= 10.0
        clock.advance(9.0)
        assert [entry.value for entry in store.get_many([(P, b"k"), (P, b"l")]).values()] == [b"v"]
        assert clock.monotonic() >= 20.0
        store.close()
    direct.close()


def test_a_transaction_in_conflict_with_another_is_slow_down() -> None:
    table = new_table()
    with make_proxy("TransactionCanceledException", CancellationReasons=[
        {"Code": "None"}, {"Code": "TransactionConflict", "Message": "there is another"},
    ]) as proxy:
        store = make(table, proxy.address, busy_seconds=0.0)
        proxy.every(Fault.THROTTLE)
        with pytest.raises(SlowDown, match="TransactionCanceled"):
            store.transact(changes={(P, b"a"): b"", (P, b"b"): b""})
        proxy.every(None)
        assert keys_of(store) == []
        store.close()


def test_a_write_that_was_repeated_on_its_way_has_happened() -> None:
    """The second time its condition fails, because of itself."""
    table = new_table()
    with _KnowingTokens() as proxy:
        store = make(table, proxy.address)
        store.set(P, b"k", b"1")
        store.set(P, b"gone", b"1")
        store.set(P, b"gone too", b"1")
        proxy.every(Fault.REPEAT)
        store.delete_if(P, b"gone", store.get(P, b"gone").predicate)
        store.delete_if(P, b"gone too", EXISTS)
        with pytest.raises(PredicateFailed):
            store.delete_if(P, b"gone", EXISTS)
        store.set_if(P, b"k", b"2", store.get(P, b"k").predicate)
        store.set_if(P, b"new", b"1", None)
        store.transact({(P, b"k"): store.get(P, b"k").predicate}, {(P, b"k"): b"3"})
        assert [(entry.key, entry.value) for entry in store.scan(P)] == [(b"k", b"3"), (b"new", b"1")]
        store.close()


# -- tables that are none, and other processes


def test_a_table_of_another_schema_is_refused() -> None:
    table = new_table()
    client().create_table(TableName=table, BillingMode="PAY_PER_REQUEST",
                          KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
                          AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}])
    with pytest.raises(NotAStore, match=r"'id'.*name another table"):
        make(table)
    with pytest.raises(InvalidInput, match="busy_seconds"):
        make(busy_seconds=-1.0)
    with pytest.raises(InvalidInput, match="timeout_seconds"):
        make(timeout_seconds=0.0)


def test_foreign_items_in_the_table_are_found(store: DynamoStore) -> None:
    store.set(P, b"a", b"1")
    for foreign in ({"v": {"B": b"1"}}, {"v": {"S": "1"}, "n": {"B": bytes(16)}},
                    {"v": {"B": b"1"}, "n": {"B": b"short"}}):
        client().put_item(TableName=store.table, Item={"p": {"B": P}, "k": {"B": b"b"}, **foreign})
        for read in (lambda: store.get(P, b"b"), lambda: keys_of(store)):
            with pytest.raises(DamagedStore, match="item b'b'"):
                read()
    store.delete(P, b"b")


def test_an_address_without_a_scheme_is_named() -> None:
    with pytest.raises(StoreFailed, match="localhost:8000"):
        DynamoStore("table", endpoint_url="localhost:8000", session=SESSION)


def test_a_removed_table_and_an_absent_service_are_named(store: DynamoStore) -> None:
    client().delete_table(TableName=store.table)
    with pytest.raises(StoreFailed, match="ResourceNotFound"):
        store.get(P, b"k")
    with pytest.raises(ConnectFailed, match="check the address"):
        make(address=f"http://127.0.0.1:{free_port()}")


def test_processes_count_together() -> None:
    store = make()
    assert counted(store, f"dynamodb {servers.moto()} {store.table}", processes=1) == 20
    store.close()


def test_a_child_process_is_refused(store: DynamoStore) -> None:
    store.set(P, b"k", b"v")
    assert closed_in_a_child(store)
    assert store.get(P, b"k").value == b"v"


def test_the_place_of_a_table_is_its_arn_and_its_id() -> None:
    store = make()
    place = store.place()
    assert place is not None
    found = client().describe_table(TableName=store.table)["Table"]
    assert found["TableArn"] in place
    assert make(store.table).place() == place
    # DynamoDB gives each table an id; of the servers for tests not every release does.
    if "TableId" in found:
        assert found["TableId"] in place
        client().delete_table(TableName=store.table)
        assert make(store.table).place() != place  # of the same name, and not the same
