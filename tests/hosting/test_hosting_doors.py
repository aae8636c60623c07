# SPDX-License-Identifier: Apache-2.0
"""What listens or connects without TLS stays on this machine, unless the host says otherwise."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compactlib.catalog import NodeId, TcpTransport
from compactlib.errors import InvalidInput, StorageError
from compactlib.hosting import SnapshotClient, SnapshotServer
from compactlib.runtime.doors import is_loopback

Door = Callable[..., object]


@pytest.mark.parametrize(("host", "is_alone"), [
    ("127.0.0.1", True), ("127.9.8.7", True), ("::1", True), ("localhost", True), ("", False), ("0.0.0.0", False),
    ("::", False), ("10.0.0.1", False), ("example.org", False), ("127.0.0.256", False), ("localhost.example", False)])
def test_only_loopback_is_this_machines_alone(host: str, is_alone: bool) -> None:
    assert is_loopback(host) is is_alone


def transport(folder: Path, host: str, **guards: Any) -> TcpTransport:
    return TcpTransport(NodeId("a", 1), cluster="c", listen=(host, 0), **guards)


def connections(folder: Path, host: str, **guards: Any) -> TcpTransport:
    return TcpTransport(NodeId("a", 1), cluster="c", listen=("127.0.0.1", 0), peers={"b": (host, 1)}, **guards)


def other_connections(folder: Path, host: str, **guards: Any) -> None:
    TcpTransport(NodeId("a", 1), cluster="c", listen=("127.0.0.1", 0), **guards).set_peers({"b": (host, 1)})


def server(folder: Path, host: str, **guards: Any) -> SnapshotServer:
    return SnapshotServer(listen=(host, 0), **guards)


def sender(folder: Path, host: str, **guards: Any) -> None:
    SnapshotClient((host, 1), me="leader", **guards)


DOORS: list[tuple[Door, str]] = [
    (transport, "server_tls"), (connections, "client_tls"), (other_connections, "client_tls"), (server, "tls"),
    (sender, "tls")]


@pytest.mark.parametrize(("door", "guard"), DOORS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_door_without_a_guard_stays_on_this_machine(door: Door, guard: str, tmp_path: Path) -> None:
    for host in ("10.0.0.1", "0.0.0.0"):
        with pytest.raises(InvalidInput, match=rf"{host}.* without {guard}=.*stay on 127\.0\.0\.1, or say insecure"):
            door(tmp_path, host)
        door(tmp_path, host, insecure=True)
        door(tmp_path, host, **{guard: ssl.create_default_context()})
    door(tmp_path, "127.0.0.1")
    door(tmp_path, "localhost")


@pytest.mark.parametrize("host", ["a..b", ".", "a" * 64, "\udcff", "127.0.0.1\0"])
@pytest.mark.parametrize("door", [transport, connections, other_connections, server, sender])
def test_a_name_that_no_resolver_takes_is_refused_at_once(door: Door, host: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="give a host and a port"):
        door(tmp_path, host, insecure=True)


def test_a_name_that_no_machine_has_is_told_in_the_resolver_s_words() -> None:
    listening = SnapshotServer(listen=("nowhere.invalid", 0), insecure=True)
    with pytest.raises(StorageError, match=r"(?!.*Unknown error).*give an address or a name of this machine"):
        asyncio.run(listening.start())
