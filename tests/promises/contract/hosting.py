# SPDX-License-Identifier: Apache-2.0
"""The server of snapshots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compactlib.clock import SystemClock
from compactlib.hosting import SnapshotServer
from compactlib.raftlog import StoreOptions
from compactlib.runtime import Observer
from compactlib.testing import ServiceFactory, ServiceHooks
from examples.raft_kv import KvStore


class _Clock(SystemClock):
    """Asked by the server once in each turn."""

    def __init__(self, hooks: ServiceHooks) -> None:
        self._hooks = hooks

    def monotonic(self) -> float:
        self._hooks.decides()
        return super().monotonic()


class SnapshotServers(ServiceFactory):
    is_async = True
    has_long_work = False

    def __init__(self) -> None:
        self._stores: dict[int, KvStore] = {}

    def make(self, folder: Path, hooks: ServiceHooks, *, observer: Observer) -> SnapshotServer:
        store = KvStore(str(folder / "follower"), StoreOptions(background=False), with_worker=False)
        server = SnapshotServer(listen=("127.0.0.1", 0), clock=_Clock(hooks), observer=observer)
        server.add(store.log, store.snapshots, term=1, applied=lambda: store.machine.applied, installed=store.installed)
        self._stores[id(server)] = store
        return server

    def release(self, service: Any) -> None:
        store = self._stores.pop(id(service), None)
        if store is not None:
            store.close()


SERVICES = (SnapshotServers(),)
