# SPDX-License-Identifier: Apache-2.0
"""The promises of every store over a network when the network or the server fails."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compactlib.errors import StorageError
from compactlib.kv import KVStore, OutcomeUnknown, SlowDown
from compactlib.kv.errors import ConnectFailed
from compactlib.testing import KVStoreConformance
from tests.harness.kv.faulty_proxy import Fault, FaultyProxy

P = b"test"
LOST = (Fault.LOSE_REQUEST, Fault.LOSE_AND_WAIT)
AT_ONCE = (Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.GARBLE, Fault.FAIL)
"""The faults that the client need not wait for."""
SILENT = (Fault.LOSE_AND_WAIT, Fault.KEEP_ANSWER)
PATIENT_SECONDS = 60.0
IMPATIENT_SECONDS = 0.15

BEFORE = {b"gone": b"1", b"k": b"v", b"l": b"v"}
AFTER = {
    "set": {**BEFORE, b"k": b"w"},
    "set_if": {**BEFORE, b"k": b"w"},
    "create": {**BEFORE, b"new": b"w"},
    "delete": {b"k": b"v", b"l": b"v"},
    "delete_if": {b"k": b"v", b"l": b"v"},
    "transact": {b"k": b"w", b"l": b"v", b"new": b"w"},
}


class OverANetwork(KVStoreConformance):
    """The whole conformance suite, and the faults between client and server."""

    shared = True
    proxy: FaultyProxy | None = None

    def make_proxy(self) -> FaultyProxy:
        """Make a proxy of the real server."""
        raise NotImplementedError

    def store_behind(self, proxy: FaultyProxy, folder: Path, timeout_seconds: float) -> KVStore:
        """Open the store of this folder through the proxy, without retries."""
        raise NotImplementedError

    def test_throttled_store_says_slow_down(self, tmp_path: Path) -> None:
        with self.make_proxy() as proxy:
            self.proxy = proxy
            super().test_throttled_store_says_slow_down(tmp_path)

    @contextlib.contextmanager
    def throttled(self, store: KVStore) -> Iterator[bool]:
        assert self.proxy is not None
        self.proxy.every(Fault.THROTTLE)
        yield True
        self.proxy.every(None)

    def test_seeks_inside_one_page_are_one_request(self, tmp_path: Path) -> None:
        """The proxy counts requests, also those of growing pages."""
        direct = self.make_store(tmp_path)
        for number in range(60):
            direct.set(P, b"%02d" % number, b"v")
        with self.make_proxy() as proxy:
            store = self.store_behind(proxy, tmp_path, PATIENT_SECONDS)
            proxy.requests = 0
            with store.scan(P) as entries:
                for key in (b"01", b"02", b"03", b"59", b"01"):
                    entries.seek(key)
                    assert next(entries).key == key
            assert proxy.requests == entries.page_loads == 1
            with store.scan(P, page_size=1) as entries:
                assert len(list(entries)) == 60
            # 1 + 2 + 4 + ... + 32 are more than 60.
            assert proxy.requests - 1 == entries.page_loads == 6
            store.close()
        direct.close()

    @pytest.mark.parametrize("fault", AT_ONCE)
    def test_a_write_whose_answer_is_lost_is_of_unknown_outcome(self, tmp_path: Path, fault: Fault) -> None:
        """The store does not send the write again."""
        direct = self.make_store(tmp_path)
        with self.make_proxy() as proxy:
            store = self.store_behind(proxy, tmp_path, PATIENT_SECONDS)
            for name in AFTER:
                _check_lost(direct, store, proxy, name, fault)
            store.close()
        direct.close()

    @pytest.mark.parametrize("fault", SILENT)
    def test_a_write_that_is_not_answered_in_time_is_of_unknown_outcome(self, tmp_path: Path, fault: Fault) -> None:
        direct = self.make_store(tmp_path)
        with self.make_proxy() as proxy:
            store = _opened(lambda: self.store_behind(proxy, tmp_path, IMPATIENT_SECONDS))
            for name in ("set_if", "transact"):
                _check_lost(direct, store, proxy, name, fault)
            store.close()
        direct.close()

    def test_a_read_whose_answer_is_lost_is_never_not_found_nor_the_end(self, tmp_path: Path) -> None:
        direct = self.make_store(tmp_path)
        _prepare(direct)
        with self.make_proxy() as proxy:
            store = self.store_behind(proxy, tmp_path, PATIENT_SECONDS)
            for fault in AT_ONCE:
                entries = store.scan(P, page_size=1)
                first = next(entries)
                proxy.every(fault)
                for read in (functools.partial(store.get, P, b"absent"), functools.partial(next, entries)):
                    with pytest.raises(StorageError) as raised:
                        read()
                    assert not isinstance(raised.value, OutcomeUnknown)
                proxy.every(None)
                # The caller may repeat the call, and nothing was skipped.
                assert [first.key, *(entry.key for entry in entries)] == list(BEFORE)
            store.close()
        direct.close()

    def test_a_busy_server_raises_slow_down_for_every_request(self, tmp_path: Path) -> None:
        direct = self.make_store(tmp_path)
        _prepare(direct)
        with self.make_proxy() as proxy:
            store = self.store_behind(proxy, tmp_path, PATIENT_SECONDS)
            proxy.every(Fault.THROTTLE)
            for call in (*_writes(direct, store).values(), *_reads(store)):
                with pytest.raises(SlowDown):
                    call()
            store.close()
        assert _state(direct) == BEFORE
        direct.close()

    def test_a_server_that_is_away_is_connect_failed(self, tmp_path: Path) -> None:
        direct = self.make_store(tmp_path)
        _prepare(direct)
        with self.make_proxy() as proxy:
            store = self.store_behind(proxy, tmp_path, PATIENT_SECONDS)
        for call in (*_writes(direct, store).values(), *_reads(store)):
            with pytest.raises(ConnectFailed, match="check the address"):
                call()
        store.close()
        assert _state(direct) == BEFORE
        direct.close()


def _check_lost(direct: KVStore, store: KVStore, proxy: FaultyProxy, name: str, fault: Fault) -> None:
    """Require that a write with this fault has an unknown outcome, was sent once, and happened or not by the fault."""
    _prepare(direct)
    write = _writes(direct, store)[name]
    proxy.requests = 0
    proxy.every(fault)
    with pytest.raises(OutcomeUnknown, match="read to find out"):
        write()
    proxy.settle()
    proxy.every(None)
    assert proxy.requests == 1, f"{name} was sent {proxy.requests} times"
    assert _state(direct) == (BEFORE if fault in LOST else AFTER[name]), name


def _opened(make: Callable[[], KVStore]) -> KVStore:
    """Open a store with a timeout so short that the first try may fail on a busy machine."""
    while True:
        with contextlib.suppress(StorageError):
            return make()


def _prepare(store: KVStore) -> None:
    for key, value in BEFORE.items():
        store.set(P, key, value)
    store.delete(P, b"new")


def _writes(direct: KVStore, store: KVStore) -> dict[str, Callable[[], object]]:
    """Return every write of the store, for the state after `_prepare`."""
    k, gone = (direct.get(P, key).predicate for key in (b"k", b"gone"))
    return {
        "set": lambda: store.set(P, b"k", b"w"),
        "set_if": lambda: store.set_if(P, b"k", b"w", k),
        "create": lambda: store.set_if(P, b"new", b"w", None),
        "delete": lambda: store.delete(P, b"gone"),
        "delete_if": lambda: store.delete_if(P, b"gone", gone),
        "transact": lambda: store.transact({(P, b"k"): k, (P, b"new"): None},
                                           {(P, b"k"): b"w", (P, b"new"): b"w", (P, b"gone"): None}),
    }


def _reads(store: KVStore) -> list[Callable[[], object]]:
    return [lambda: store.get(P, b"k"), lambda: next(store.scan(P))]


def _state(store: KVStore) -> dict[bytes, bytes]:
    return {entry.key: entry.value for entry in store.scan(P)}
