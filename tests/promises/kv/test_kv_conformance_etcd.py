# SPDX-License-Identifier: Apache-2.0
"""`examples/etcd_store.py`, a host's own store, keeps the promises of every store, on a real server over a network."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from compactlib.kv import KVStore
from examples.etcd_store import EtcdStore
from tests.harness.kv import servers
from tests.harness.kv.etcd import answer, make, new_root
from tests.harness.kv.faulty_proxy import FaultyProxy
from tests.harness.kv.network_faults import OverANetwork

pytestmark = pytest.mark.cluster


class _OverEtcd(OverANetwork):
    @pytest.fixture(autouse=True)
    def _roots(self) -> None:
        self.roots: dict[Path, bytes] = {}
        self.proxy = None
        self.naming = threading.Lock()
        servers.etcd()  # the first call starts it

    def make_store(self, folder: Path) -> KVStore:
        with self.naming:
            root = self.roots.setdefault(folder, new_root())
        if self.proxy is not None:
            return EtcdStore("127.0.0.1", self.proxy.port, root=root)
        return make(root)

    def make_proxy(self) -> FaultyProxy:
        host, port = servers.etcd()
        return FaultyProxy(f"http://{host}:{port}", throttled=answer(429, 8, "etcdserver: too many requests"),
                           failed=answer(503, 14, "etcdserver: request timed out, possibly due to connection lost"))

    def store_behind(self, proxy: FaultyProxy, folder: Path, timeout_seconds: float) -> KVStore:
        return EtcdStore("127.0.0.1", proxy.port, root=self.roots[folder], timeout_seconds=timeout_seconds)


class TestEtcdStore(_OverEtcd):
    effort_percent = 25


@pytest.mark.soak
class TestEtcdStoreWithoutShortcuts(_OverEtcd):
    pass
