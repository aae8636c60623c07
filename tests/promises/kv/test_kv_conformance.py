# SPDX-License-Identifier: Apache-2.0
"""The stores in memory, in an SQLite file and behind a meter keep what every key-value store promises."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from compactlib.kv import KVStore, MemoryStore, SqliteStore
from compactlib.metered import metered
from compactlib.observer import EventRecorder
from compactlib.testing import KVStoreConformance, kv_machine


class TestMemoryStore(KVStoreConformance):
    def make_store(self, folder: Path, page_size: int | None = None) -> KVStore:
        return MemoryStore(page_size=page_size or 1000)


class TestMemoryStoreThatComparesValues(KVStoreConformance):
    def make_store(self, folder: Path, page_size: int | None = None) -> KVStore:
        return MemoryStore(page_size=page_size or 1000, predicates="value")


TestMemoryStoreMachine = kv_machine(MemoryStore).TestCase
TestMemoryStoreMachine.settings = settings(max_examples=50, stateful_step_count=40)
TestMemoryStoreThatComparesValuesMachine = kv_machine(lambda: MemoryStore(predicates="value", page_size=2)).TestCase
TestMemoryStoreThatComparesValuesMachine.settings = settings(max_examples=50, stateful_step_count=40)


class TestMetered(KVStoreConformance):
    def make_store(self, folder: Path, page_size: int | None = None) -> KVStore:
        return metered(MemoryStore(page_size=page_size or 1000), EventRecorder(), name="kit")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another writer holds the file."""
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")
    finally:
        other.close()


class TestSqliteStore(KVStoreConformance):
    shared = True

    def make_store(self, folder: Path, page_size: int | None = None) -> KVStore:
        folder.mkdir(exist_ok=True)
        self.path = folder / "kv.sqlite"
        return SqliteStore(self.path, page_size=page_size or 1000, synchronous="normal", busy_seconds=0.0)

    @contextlib.contextmanager
    def throttled(self, store: KVStore) -> Iterator[bool]:
        with locked(self.path):
            yield True


@pytest.fixture
def machine_stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteStore]:
    folder = tmp_path_factory.mktemp("machine")
    return (SqliteStore(folder / f"{number}.sqlite", page_size=3, synchronous="normal") for number in itertools.count())


def test_a_state_machine_agrees_with_a_dictionary(machine_stores: Iterator[SqliteStore]) -> None:
    run_state_machine_as_test(kv_machine(lambda: next(machine_stores)),
                              settings=settings(max_examples=15, stateful_step_count=25))
