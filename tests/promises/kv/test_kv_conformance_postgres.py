# SPDX-License-Identifier: Apache-2.0
"""The store in PostgreSQL keeps what every key-value store promises, on a real server."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactlib.kv import KVStore, PostgresStore
from compactlib.testing import KVStoreConformance
from tests.harness.kv.pgbouncer import AVAILABLE, pgbouncer
from tests.harness.kv.postgres_server import locked, new_table, postgres

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres() as uri:
        yield uri


@pytest.fixture(scope="module")
def pooled(server: str) -> Iterator[str]:
    with pgbouncer(server) as uri:
        yield uri


class TestPostgresStore(KVStoreConformance):
    shared = True
    prepare_threshold: int | None = 5

    @pytest.fixture(autouse=True)
    def _server(self, server: str) -> Iterator[None]:
        self.server = server
        self.tables: dict[Path, str] = {}
        self.stores: list[PostgresStore] = []
        self.naming = threading.Lock()
        yield
        for store in self.stores:
            store.close()

    def make_store(self, folder: Path) -> KVStore:
        with self.naming:
            self.table = self.tables.setdefault(folder, new_table())
        store = PostgresStore(self.server, table=self.table, busy_seconds=0.1,
                              prepare_threshold=self.prepare_threshold)
        self.stores.append(store)
        return store

    @contextlib.contextmanager
    def throttled(self, store: KVStore) -> Iterator[bool]:
        with locked(self.server, self.table):
            yield True


@pytest.mark.skipif(not AVAILABLE, reason="needs the program pgbouncer")
class TestPostgresStoreBehindPgBouncer(TestPostgresStore):
    """In transaction mode, in which no statement may rely on what an earlier transaction has left in its session."""

    effort_percent = 20
    prepare_threshold = None

    @pytest.fixture(autouse=True)
    def _behind(self, _server: None, pooled: str) -> None:
        self.server = pooled
