# SPDX-License-Identifier: Apache-2.0
"""How the staging area does after many deletes, with many sealed tokens, and while it is compacted.

    python benchmarks/staging.py [--quick] [--only tombstones|get|merge|writes|scale] [--json FILE] [--folder FOLDER]

`make peers` installs the peers; one that is not there is left out with a line that says so. `docs/benchmarks.md` has
the last figures.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import multiprocessing
import random
import shutil
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from measure import Figure, alternate, report

from compactlib.executors import ProcessExecutor
from compactlib.kv import Address, KVEntry, MemoryStore, SqliteStore
from compactlib.objects import LocalObjects, MemoryObjects
from compactlib.staging import AlwaysPolicy, Branch, CommittedRanges, Repository

BATCH = 500
LIVE = b"z/live"


def key(number: int) -> bytes:
    return b"a/%08d" % number


# ------------------------------------------------------------------------------------------------------ tombstones


def stage(branch: Branch, names: Iterable[bytes], data: bytes) -> None:
    """Put a value for each of these keys."""
    left = iter(names)
    while block := list(itertools.islice(left, BATCH)):
        branch.put_many(dict.fromkeys(block, data))


def stage_deletes(branch: Branch, names: Iterable[bytes]) -> None:
    """Delete each of these keys."""
    left = iter(names)
    while block := list(itertools.islice(left, BATCH)):
        branch.delete_many(block)


def seconds_of(work: Callable[[], object], times: int = 1) -> float:
    began = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began) / times


def tombstone_figures(folder: Path, quick: bool) -> list[Figure]:
    """The first page of a listing, after many tombstones and without them; and the peers' first row."""
    count = 50_000 if quick else 1_000_000
    store = SqliteStore(folder / "tombstones.sqlite", synchronous="normal")
    repo = Repository(store, CommittedRanges(MemoryObjects()))
    deleted, never = repo.create_branch("deleted"), repo.create_branch("never")
    for branch, names in ((deleted, [key(number) for number in range(count)]), (never, [])):
        stage(branch, [*names, LIVE], b"1")
        branch.commit("live")
    stage_deletes(deleted, map(key, range(count)))

    def first_page(branch: Branch) -> None:
        # A page that has read too many entries ends early and empty, so the first page with keys may be a later one.
        assert [listed.key for listed in branch.entries(page_limit=100)] == [LIVE]

    before = seconds_of(lambda: first_page(deleted))
    assert not repo.compact(branch=deleted).is_empty
    after, without = alternate(7, lambda: seconds_of(lambda: first_page(deleted), 100),
                               lambda: seconds_of(lambda: first_page(never), 100))
    milliseconds = tuple(1e3 * seconds for seconds in after)
    figures = [
        Figure(figure=f"staging_list_after_{count}_tombstones", unit="ms", values=milliseconds,
               reference="a branch that never had them", reference_values=tuple(1e3 * each for each in without),
               goal="<= 1.2"),
        Figure(figure=f"staging_list_compaction_gain_{count}", unit="ms", values=(statistics.median(milliseconds),),
               reference="the same before compaction", reference_values=(1e3 * before,), goal="printed"),
    ]
    for name, peer in (("sqlite merge view", sqlite_view), ("rocksdict", rocks)):
        try:
            peer_before, peer_after = peer(folder, count)
        except ImportError:
            print(f"{name} is not installed: left out")
            continue
        figures += [Figure(figure=f"staging_list_{when}_{count}_beside_{name.split()[0]}", unit="ms",
                           values=(1e3 * mine,), reference=f"{name}, {when} compaction",
                           reference_values=(1e3 * theirs,), goal="printed")
                    for when, mine, theirs in (("before", before, peer_before),
                                               ("after", statistics.median(after), peer_after))]
    store.close()
    return figures


def sqlite_view(folder: Path, count: int) -> tuple[float, float]:
    """A table of committed rows, one of changes, and a view that merges them; compacted by writing the view's rows."""
    with sqlite3.connect(folder / "view.sqlite") as connection:
        connection.executescript("""
            CREATE TABLE base (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID;
            CREATE TABLE staged (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID;
            CREATE VIEW merged AS
                SELECT key, value FROM base WHERE NOT EXISTS (SELECT 1 FROM staged WHERE staged.key = base.key)
                UNION ALL SELECT key, value FROM staged WHERE value IS NOT NULL;""")
        connection.executemany("INSERT INTO base VALUES (?, ?)", ((key(number), b"1") for number in range(count)))
        connection.execute("INSERT INTO base VALUES (?, ?)", (LIVE, b"1"))
        connection.executemany("INSERT INTO staged VALUES (?, NULL)", ((key(number),) for number in range(count)))
        connection.commit()

        def first_page() -> None:
            rows = connection.execute("SELECT key FROM merged ORDER BY key LIMIT 100").fetchall()
            assert rows == [(LIVE,)]

        before = seconds_of(first_page)
        connection.executescript("CREATE TABLE next AS SELECT * FROM merged; DELETE FROM base; DELETE FROM staged; "
                                 "INSERT INTO base SELECT * FROM next;")
        return before, seconds_of(first_page, 100)


def rocks(folder: Path, count: int) -> tuple[float, float]:
    """An LSM tree with the same keys put and deleted, before and after a compaction of everything."""
    from rocksdict import Options, Rdict

    database = Rdict(str(folder / "rocks"), options=Options(raw_mode=True))
    for number in range(count):
        database[key(number)] = b"1"
    database[LIVE] = b"1"
    database.flush()
    for number in range(count):
        del database[key(number)]
    database.flush()

    def first_page() -> None:
        assert list(itertools.islice(database.keys(), 100)) == [LIVE]

    before = seconds_of(first_page)
    database.compact_range(None, None)
    after = seconds_of(first_page, 100)
    database.close()
    return before, after


# --------------------------------------------------------------------------------------------------------- point get


class CountedStore(MemoryStore):
    """Counts cells read of staging tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.token_reads = 0

    def _get_many(self, cells: Sequence[Address]) -> list[KVEntry | None]:
        self.token_reads += sum(partition != b"staging/main" for partition, _ in cells)
        return super()._get_many(cells)


def seal(repo: Repository, name: str, times: int) -> None:
    """Seal the staging token so often, as commits do that die half-way."""
    branches = repo.context.branches
    for _ in range(times):
        branches.update(name, lambda record: record.sealed_with(branches.new_token()), operation="seal")


def get_figures(quick: bool) -> list[Figure]:
    """A point get after compaction against a get on a clean branch; and misses with sealed tokens in the way."""
    count, times = (2_000, 300) if quick else (20_000, 2_000)
    store = CountedStore()
    repo = Repository(store, CommittedRanges(MemoryObjects()))
    clean, compacted = repo.create_branch("clean"), repo.create_branch("compacted")
    for branch in (clean, compacted):
        stage(branch, map(key, range(count)), b"1")
        branch.commit("keys")
    stage(compacted, map(key, range(0, count, 3)), b"2")
    assert not repo.compact(branch=compacted).is_empty
    store.token_reads = 0
    assert compacted.get(key(3)).data == b"2"
    reads = store.token_reads
    assert reads == 1, reads
    names = [key(number) for number in random.Random(1).sample(range(count), min(count, times))]

    def all_of(branch: Branch) -> Callable[[], float]:
        return lambda: 1e6 * seconds_of(lambda: [branch.get(name) for name in names]) / len(names)

    ours, reference = alternate(5, all_of(compacted), all_of(clean))
    figures = [
        Figure(figure="staging_get_token_reads", unit="reads", values=(float(reads),), reference="the staging token",
               reference_values=(1.0,), goal="= 1"),
        Figure(figure="staging_get_after_compaction", unit="us", values=tuple(ours), reference="a clean branch",
               reference_values=tuple(reference), goal="printed"),
    ]
    for sealed in (1, 8, 64):
        name = f"sealed-{sealed}"
        branch = repo.create_branch(name, "clean")
        seal(repo, name, sealed)
        missing, reference = alternate(5, all_of(branch), all_of(clean))
        figures.append(Figure(figure=f"staging_get_miss_{sealed}_sealed", unit="us", values=tuple(missing),
                              reference="none sealed", reference_values=tuple(reference), goal="printed"))
    return figures


# -------------------------------------------------------------------------------------------- writes while compacting


@contextmanager
def stores_in(folder: Path) -> Iterator[tuple[SqliteStore, CommittedRanges]]:
    with closing(SqliteStore(folder / "writes.sqlite")) as store:
        yield store, CommittedRanges(LocalObjects(folder / "objects"))


def compacted_in(folder: Path) -> bool:
    """Compact in this process; return whether there was something to do."""
    with stores_in(folder) as (store, committed):
        return not Repository(store, committed, policy=AlwaysPolicy(window_seconds=0)).compact().is_empty


def write_figures(folder: Path, quick: bool) -> list[Figure]:
    """The slowest write in a hundred: while another process compacts; while this one does and another rewrites.

    In the second case the view and the check of the result hold the interpreter's lock, for which a write waits a
    switch interval of 5 ms.
    """
    count, writes, runs = (30_000, 500, 3) if quick else (200_000, 2_000, 5)
    store = SqliteStore(folder / "writes.sqlite")
    repo = Repository(store, CommittedRanges(LocalObjects(folder / "objects")), stores=partial(stores_in, folder),
                      policy=AlwaysPolicy(window_seconds=0))
    branch = repo.create_branch("main")
    stage(branch, map(key, range(count)), b"1")
    branch.commit("keys")
    numbers = itertools.count()

    def p99(until: Callable[[], bool]) -> float:
        times: list[float] = []
        while len(times) < writes or not until():
            name = b"w/%09d" % next(numbers)
            began = time.perf_counter()
            branch.put(name, b"x" * 100)
            times.append(time.perf_counter() - began)
        return 1e3 * statistics.quantiles(times, n=100)[98]

    def while_compacting(compact: Callable[[], bool]) -> float:
        stage(branch, map(key, range(0, count, 2)), b"%d" % next(numbers))
        outcomes: list[bool] = []
        running = threading.Thread(target=lambda: outcomes.append(compact()))
        running.start()
        slowest = p99(lambda: not running.is_alive())
        running.join()
        assert outcomes == [True]
        return slowest

    executor = ProcessExecutor(1)
    with multiprocessing.get_context("spawn").Pool(1) as process:
        process.apply(int)  # it has started
        figures = []
        for name, compact, goal in (("", lambda: process.apply(compacted_in, (folder,)), "<= 2"),
                                    ("_here", lambda: not repo.compact(executor=executor).is_empty, "printed")):
            ours, alone = alternate(runs, partial(while_compacting, compact), lambda: p99(lambda: True))
            figures.append(Figure(figure=f"staging_write_p99_while_compacting{name}", unit="ms", values=tuple(ours),
                                  reference="no compaction", reference_values=tuple(alone), goal=goal))
    store.close()
    return figures


# -------------------------------------------------------------------------------------------------------------- scale


def peak_above_start(folder: Path) -> float:
    """Megabytes by which the memory of this process grows while it compacts the staged entries of a folder."""
    def memory(line: str) -> float:
        return next(int(each.split()[1]) for each in Path("/proc/self/status").read_text().splitlines()
                    if each.startswith(line)) / 1024

    with contextlib.closing(SqliteStore(folder / "scale.sqlite")) as store:
        repo = Repository(store, CommittedRanges(LocalObjects(folder / "objects")))
        before = memory("VmRSS:")
        assert not repo.compact(branch="main").is_empty
        return memory("VmHWM:") - before


def scale_figures(folder: Path, quick: bool) -> list[Figure]:
    """The memory of a compaction in its own process; and puts of many keys at once."""
    count = 200_000 if quick else 10_000_000
    folder = folder / "scale"
    folder.mkdir()
    with contextlib.closing(SqliteStore(folder / "scale.sqlite", synchronous="normal")) as store:
        branch = Repository(store, CommittedRanges(LocalObjects(folder / "objects"))).create_branch("main")
        stage(branch, map(key, range(count)), b"x" * 20)
    with multiprocessing.get_context("spawn").Pool(1) as process:
        grown = process.apply(peak_above_start, (folder,))
    puts = 20_000 if quick else 200_000
    seconds = []
    for run in range(3):
        with contextlib.closing(SqliteStore(folder / f"puts-{run}.sqlite")) as store:
            branch = Repository(store, CommittedRanges(MemoryObjects())).create_branch("main")
            began = time.perf_counter()
            for start in range(0, puts, 1000):
                branch.put_many({key(number): b"x" * 100 for number in range(start, start + 1000)})
            seconds.append(time.perf_counter() - began)
    return [Figure(figure=f"staging_compaction_memory_{count}", unit="MiB above the start", values=(grown,),
                   reference="the most", reference_values=(200.0,), goal="<= 1"),
            Figure(figure=f"staging_put_many_{puts}", unit="s", values=tuple(seconds), reference="25 us a key",
                   reference_values=(25e-6 * puts,) * 3, goal="<= 1")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller data, under a minute")
    parser.add_argument("--only", choices=["tombstones", "get", "merge", "writes", "scale"])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--folder", help="where to put the data; default a temporary folder")
    given = parser.parse_args()
    folder = Path(given.folder or tempfile.mkdtemp(prefix="compactlib-staging-"))

    def merge(quick: bool) -> list[Figure]:
        try:
            from staging_merge import merge_figures
        except ImportError as error:
            print(f"{error.name} is not installed: the merge is left out")
            return []
        return merge_figures(folder / "merge", quick)

    parts: dict[str, Callable[[bool], list[Figure]]] = {
        "tombstones": lambda quick: tombstone_figures(folder, quick), "get": get_figures, "merge": merge,
        "writes": lambda quick: write_figures(folder, quick),
        "scale": lambda quick: scale_figures(folder, quick)}
    try:
        (folder / "merge").mkdir(parents=True, exist_ok=True)
        figures = [figure for name, part in parts.items() if given.only in (None, name) for figure in part(given.quick)]
    finally:
        if not given.folder:
            shutil.rmtree(folder)
    report(figures, given.json)


if __name__ == "__main__":
    main()
