# SPDX-License-Identifier: Apache-2.0
"""The store in etcd, on a real server: the conformance kit, faults of the network, limits, processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import etcd3gw
import pytest
from hypothesis import given, strategies as st

from compactlib.errors import CompactlibError, DiskFull, InvalidInput, Unsupported
from compactlib.kv import (
    EXISTS,
    Condition,
    EtcdStore,
    OutcomeUnknown,
    PredicateFailed,
    Put,
    SlowDown,
    StoreFailed,
)
from compactlib.kv.errors import BatchSizeTooBig, ConnectFailed, DamagedStore, TooLarge
from compactlib.kv.stores.etcd.errors import refused
from compactlib.kv.stores.etcd.wire import KeySpace, Revision, end_of
from compactlib.testing.kv import P
from tests.harness.kv import servers
from tests.harness.kv.etcd import make, new_root
from tests.harness.kv.processes import closed_in_a_child, counted

pytestmark = pytest.mark.cluster

@pytest.fixture
def store() -> Iterator[EtcdStore]:
    made = make()
    yield made
    made.close()


def client() -> Any:
    host, port = servers.etcd()
    return etcd3gw.Etcd3Client(host, port, api_path="/v3/")


def test_a_revision_never_holds_again(store: EtcdStore) -> None:
    store.set(P, b"k", b"v1")
    old = store.get(P, b"k").predicate
    changes: list[Callable[[], None]] = [lambda: store.set(P, b"k", b"v1"), lambda: store.delete(P, b"k"),
                                         lambda: store.set(P, b"k", b"v1")]
    for change in changes:
        change()
        with pytest.raises(PredicateFailed):
            store.set_if(P, b"k", b"v2", old)


def test_a_predicate_of_no_revision_never_holds(store: EtcdStore) -> None:
    """Not for an absent key either, whose revision etcd takes to be 0."""
    for number in (0, -1):
        with pytest.raises(PredicateFailed):
            store.set_if(P, b"absent", b"v", Revision(number))


def test_the_largest_value_and_the_largest_transaction_are_taken_by_the_server() -> None:
    store = make(b"r" * 20)
    partition, key = bytes(store.limits.max_partition_bytes), bytes(store.limits.max_key_bytes)
    largest = bytes(store.limits.max_value_bytes)
    store.set_if(partition, key, largest, None)
    assert store.get(partition, key).value == largest
    store.transact([Condition(partition, key, EXISTS)], [Put(partition, key, largest), Put(P, b"k", bytes(120_000))])
    with pytest.raises(TooLarge, match="a transaction of 1600"):
        store.transact([], [Put(P, b"k", bytes(800_000)), Put(P, b"l", bytes(800_000))])
    half = store.limits.max_transact // 2
    names = [b"%03d" % number for number in range(half)]
    store.transact([Condition(P, name, None) for name in names], [Put(P, name, b"") for name in names])
    store.transact(puts=[Put(P, b"%d" % number, b"") for number in range(2 * half)])
    with pytest.raises(BatchSizeTooBig):
        store.transact(puts=[Put(P, b"%d" % number, b"") for number in range(2 * half + 1)])
    store.close()


def test_a_scan_goes_on_when_the_server_forgets_old_revisions(store: EtcdStore) -> None:
    """Each page reads the present, so nothing that is still there can be compacted away from under it."""
    keys = [b"%03d" % number for number in range(30)]
    for key in keys:
        store.set(P, key, b"v")
    with store.scan(P, page_size=1) as entries:
        found = [next(entries).key]
        reply = client().post(client().get_url("/kv/range"), json={"key": "AA=="})
        for key in keys:
            store.set(P, key, b"w")
        client().post(client().get_url("/kv/compaction"), json={"revision": str(int(reply["header"]["revision"]) + 30)})
        rest = list(entries)
    assert [*found, *(entry.key for entry in rest)] == keys
    assert {entry.value for entry in rest} == {b"w"}


def test_pages_of_large_values_are_short(store: EtcdStore) -> None:
    for number in range(24):
        store.set(P, b"%03d" % number, bytes(500_000))
    with store.scan(P, page_size=4) as entries:
        assert [entry.key for entry in entries] == [b"%03d" % number for number in range(24)]
        # 4 MiB hold 8 of them, so pages do not grow beyond: 4, 8, 8, 4.
        assert entries.page_loads == 4


def test_stores_with_different_roots_are_different() -> None:
    one, two = make(b"one/"), make(b"two/")
    one.set(P, b"k", b"v")
    assert list(two.scan(P)) == []
    one.close()
    two.close()


def test_what_others_have_put_below_the_root_is_found() -> None:
    root = b"shared/"
    store = make(root)
    store.set(P, b"k", b"v")
    store.audit()
    for foreign in (root + b"x", root + b"\x00\x09short", root + b"\x00\x01p"):
        client().put(foreign, b"")
        with pytest.raises(DamagedStore, match=r"does not begin as a key|ends within its partition"):
            store.audit()
        client().delete(foreign)
    store.close()


def test_a_store_of_a_later_release_is_not_touched() -> None:
    root = new_root()
    client().put(root + b"\x00\x00schema", b"2")
    with pytest.raises(Unsupported, match="upgrade"):
        make(root)


def test_arguments_that_make_no_sense() -> None:
    with pytest.raises(InvalidInput, match="root is empty"):
        EtcdStore(root=b"")
    for seconds in (0.0, -1.0, float("inf")):
        with pytest.raises(InvalidInput, match="timeout_seconds is"):
            EtcdStore(timeout_seconds=seconds)
    for wrong in ({"root": "text"}, {"host": None}):
        with pytest.raises(InvalidInput, match=f"{next(iter(wrong))} is"):
            EtcdStore(**wrong)
    with pytest.raises(ConnectFailed, match="check the address"):
        EtcdStore("127.0.0.1", servers.free_port())


@pytest.mark.parametrize("files", [{"ca_cert": "/no/such/file"}, {"cert": ("/no/such/file", "/no/such/file")}])
def test_certificates_that_are_not_there_are_named(files: dict[str, Any]) -> None:
    with pytest.raises(StoreFailed, match="/no/such/file"):
        EtcdStore("127.0.0.1", servers.free_port(), protocol="https", **files)


def test_processes_count_together() -> None:
    root = new_root()
    store = make(root)
    assert counted(store, f"etcd {servers.etcd()[1]} {root.decode()}") == 30
    store.close()


def test_a_child_process_is_told_to_open_it_anew(store: EtcdStore) -> None:
    assert closed_in_a_child(store)
    store.set(P, b"k", b"v")


@pytest.mark.parametrize(("text", "reason", "writing", "reading"), [
    ('{"code": 8, "message": "etcdserver: too many requests"}', "Too Many Requests", SlowDown, SlowDown),
    ("slow down, said a proxy", "Too Many Requests", SlowDown, SlowDown),
    ('{"code": 8, "message": "etcdserver: mvcc: database space exceeded"}', "", DiskFull, DiskFull),
    ('{"code": 8, "message": "grpc: received message larger than max (5 vs. 2)"}', "", StoreFailed, StoreFailed),
    ('{"code": 3, "message": "etcdserver: request is too large"}', "Bad Request", StoreFailed, StoreFailed),
    ('{"code": 7, "message": "etcdserver: permission denied"}', "Forbidden", StoreFailed, StoreFailed),
    ('{"code": 14, "message": "etcdserver: leader changed"}', "Unavailable", OutcomeUnknown, ConnectFailed),
    ('{"code": 2, "message": "context canceled"}', "Error", OutcomeUnknown, StoreFailed),
    ("<html>", "Bad Gateway", OutcomeUnknown, StoreFailed),
    ("[]", "", OutcomeUnknown, StoreFailed),
    ("[" * 100_000, "", OutcomeUnknown, StoreFailed),
    ('{"code": "much"}', "", OutcomeUnknown, StoreFailed),
])
def test_each_answer_of_the_server_has_a_name(text: str, reason: str, writing: type[CompactlibError],
                                              reading: type[CompactlibError]) -> None:
    assert type(refused("set", "etcd", text, reason, writes=True)) is writing
    assert type(refused("get", "etcd", text, reason, writes=False)) is reading


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=5), st.binary(min_size=1, max_size=5)), min_size=2))
def test_names_in_etcd_are_those_of_one_cell_each_and_in_order(cells: list[tuple[bytes, bytes]]) -> None:
    keys = KeySpace(b"root/")
    names = {keys.of_partition(partition) + key: (partition, key) for partition, key in cells}
    assert len(names) == len(set(cells))
    assert {name: keys.cell_of(name) for name in names} == names
    for name, (partition, key) in names.items():
        begin = keys.of_partition(partition)
        inside = [other for other in names if begin <= other < end_of(begin)]
        assert {names[other][0] for other in inside} == {partition}
        assert [names[other][1] for other in sorted(inside)] == sorted(names[other][1] for other in inside)
        assert key in {names[other][1] for other in inside}
        assert name.startswith(keys.root)


def test_the_end_of_a_prefix() -> None:
    assert [end_of(prefix) for prefix in (b"a", b"a\xff", b"a\xff\xff", b"\xff")] == [b"b", b"b", b"b", b"\0"]
