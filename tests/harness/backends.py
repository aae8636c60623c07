# SPDX-License-Identifier: Apache-2.0
"""An empty store of each kind, on real servers, for worlds that are made in a test."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
from collections.abc import Callable
from pathlib import Path

from compactlib.kv import DynamoStore, KVStore, MemoryStore, PostgresStore, SqliteStore
from tests.harness.kv import servers
from tests.harness.kv.postgres_server import postgres
from tests.harness.kv.processes import SESSION

_numbers = itertools.count()
_kept = contextlib.ExitStack()
atexit.register(_kept.close)


@functools.cache
def postgres_server() -> str:
    """How to connect to a PostgreSQL server; it ends with the tests."""
    return _kept.enter_context(postgres())


BACKENDS: dict[str, Callable[[Path], KVStore]] = {
    "memory": lambda folder: MemoryStore(),
    "sqlite": lambda folder: SqliteStore(folder / f"{next(_numbers)}.sqlite", synchronous="normal"),
    "postgres": lambda folder: PostgresStore(postgres_server(), table=f"staging_{next(_numbers)}"),
    "dynamodb": lambda folder: DynamoStore(f"staging-{next(_numbers)}", endpoint_url=servers.moto(), session=SESSION),
}
