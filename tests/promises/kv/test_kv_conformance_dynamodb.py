# SPDX-License-Identifier: Apache-2.0
"""The store in DynamoDB keeps what every key-value store promises, and over a network, on moto's server."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from compactlib.kv import KVStore
from tests.harness.kv.dynamodb import make, make_proxy, new_table
from tests.harness.kv.faulty_proxy import FaultyProxy
from tests.harness.kv.network_faults import OverANetwork

pytestmark = pytest.mark.cluster


class _OverDynamoDB(OverANetwork):
    @pytest.fixture(autouse=True)
    def _tables(self) -> None:
        self.tables: dict[Path, str] = {}
        self.proxy = None
        self.opening = threading.Lock()

    def make_store(self, folder: Path) -> KVStore:
        address = None if self.proxy is None else self.proxy.address
        # DynamoDB makes a table once, moto may make it twice, and the second one is empty.
        with self.opening:
            table = self.tables.setdefault(folder, new_table())
            return make(table, address, busy_seconds=0.0)

    def make_proxy(self) -> FaultyProxy:
        return make_proxy()

    def store_behind(self, proxy: FaultyProxy, folder: Path, timeout_seconds: float) -> KVStore:
        return make(self.tables[folder], proxy.address, timeout_seconds=timeout_seconds, busy_seconds=0.0)


class TestDynamoStore(_OverDynamoDB):
    effort_percent = 8


@pytest.mark.soak
class TestDynamoStoreWithoutShortcuts(_OverDynamoDB):
    pass
