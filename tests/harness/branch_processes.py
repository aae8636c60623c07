# SPDX-License-Identifier: Apache-2.0
"""One of eight processes on one branch: `python -m tests.harness.branch_processes FOLDER STORE ROLE NUMBER ROUNDS`.

They share a page of memory: for each key the version that its writer began last, and the version acknowledged last. A
reader fails if it reads a version below the one acknowledged when it began, or above the one begun when it ended.
"""

from __future__ import annotations

import mmap
import random
import sys
from collections.abc import Callable
from pathlib import Path

from compactlib.errors import Busy, Conflict
from compactlib.kv import KVStore, PostgresStore, Retries, SqliteStore
from compactlib.objects import LocalObjects
from compactlib.staging import (
    Branch,
    CommittedRanges,
    RecordNotFound,
    Repository,
    StagingOptions,
)
from tests.harness.staging_world import NOW

WRITERS = 3
KEYS_EACH = 4
KEYS = WRITERS * KEYS_EACH
ROLES = (*(("writer", number) for number in range(WRITERS)), ("reader", 0), ("reader", 1), ("committer", 0),
         ("compactor", 0), ("cleaner", 0))
"""The eight roles."""

_BEGUN, _ACKNOWLEDGED, _ENDED = 0, KEYS, 2 * KEYS
_SLOTS = 2 * KEYS + WRITERS
_OPTIONS = StagingOptions(retries=Retries(200, 0.005, 0.1), grace_seconds=0)


class Page:
    """The shared page; each slot has one writer."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8 * _SLOTS)
        self._slots = memoryview(self._map).cast("q")

    @staticmethod
    def make(path: Path) -> Page:
        path.write_bytes(bytes(8 * _SLOTS))
        return Page(path)

    def begin(self, key: int, version: int) -> None:
        self._slots[_BEGUN + key] = version

    def acknowledge(self, key: int, version: int) -> None:
        self._slots[_ACKNOWLEDGED + key] = version

    def begun(self, key: int) -> int:
        return self._slots[_BEGUN + key]

    def acknowledged(self, key: int) -> int:
        return self._slots[_ACKNOWLEDGED + key]

    def end(self, writer: int) -> None:
        self._slots[_ENDED + writer] = 1

    @property
    def writers_ended(self) -> bool:
        return all(self._slots[_ENDED:_ENDED + WRITERS])


def name_of(key: int) -> bytes:
    return b"w/%02d" % key


def is_delete(version: int) -> bool:
    """Return whether a version is a delete: every fifth."""
    return version % 5 == 0


def check_found(key: int, found: bytes | None, acknowledged: int, begun: int) -> None:
    """Check a read against the version acknowledged at its beginning and the version begun at its end."""
    if found is None:
        possible = acknowledged == 0 or any(map(is_delete, range(acknowledged, begun + 1)))
        assert possible, f"key {key} is absent; version {acknowledged} was acknowledged, {begun} begun"
    else:
        version = int(found)
        assert acknowledged <= version <= begun, f"key {key}: {version}, not {acknowledged} .. {begun}"
        assert not is_delete(version)


def open_repository(folder: Path, store: str, seed: int | None = None) -> tuple[KVStore, Repository]:
    """Open the repository of a process; `store` is `sqlite` or the address of a PostgreSQL server."""
    kv: KVStore
    if store == "sqlite":
        kv = SqliteStore(folder / "state.sqlite", synchronous="normal", busy_seconds=60.0)
    else:
        kv = PostgresStore(store, table="eight_processes", busy_seconds=60.0)
    return kv, Repository(kv, CommittedRanges(LocalObjects(folder / "objects")), options=_OPTIONS,
                           rng=None if seed is None else random.Random(seed))


def until_done(act: Callable[[], object]) -> None:
    """Retry until the call succeeds."""
    while True:
        try:
            act()
        except (Busy, Conflict):
            continue
        return


def write(main: Branch, page: Page, number: int, rounds: int) -> None:
    for round_number in range(rounds):
        key = number * KEYS_EACH + round_number % KEYS_EACH
        version = page.begun(key) + 1
        page.begin(key, version)
        until_done(lambda key=key, version=version: (  # type: ignore[misc]
            main.delete(name_of(key)) if is_delete(version) else main.put(name_of(key), b"%d" % version)))
        page.acknowledge(key, version)
    page.end(number)


def read_one(main: Branch, page: Page, key: int) -> None:
    acknowledged = page.acknowledged(key)
    try:
        found: bytes | None = main.get(name_of(key)).data
    except RecordNotFound:
        found = None
    check_found(key, found, acknowledged, page.begun(key))


def read_all(main: Branch, page: Page) -> None:
    acknowledged = [page.acknowledged(key) for key in range(KEYS)]
    listed = {entry.key: entry.record.data for entry in main.list(prefix=b"w/").entries if entry.record is not None}
    for key in range(KEYS):
        check_found(key, listed.get(name_of(key)), acknowledged[key], page.begun(key))


def take_part(folder: Path, store: str, role: str, number: int, rounds: int) -> None:
    """Play a role until the writers have ended."""
    page = Page(folder / "page")
    kv, repo = open_repository(folder, store)
    main = repo.branch("main")
    chance = random.Random(number)
    if role == "writer":
        write(main, page, number, rounds)
    while not page.writers_ended:
        if role == "reader":
            until_done(lambda: read_one(main, page, chance.randrange(KEYS)))
            until_done(lambda: read_all(main, page))
        elif role == "committer":
            until_done(lambda: main.commit("by the committer"))
        elif role == "compactor":
            until_done(lambda: repo.compact(policy=NOW))
        elif role == "cleaner":
            until_done(repo.reclaim)
            until_done(lambda: main.put(b"r/%d" % chance.randrange(3), b"x"))
            until_done(lambda: main.reset_prefix(b"r/"))
        else:
            break
    kv.close()


if __name__ == "__main__":
    take_part(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
