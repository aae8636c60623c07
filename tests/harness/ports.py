# SPDX-License-Identifier: Apache-2.0
"""Ports on loopback for servers of tests.

A server gets its port before it binds it. Systems assign ports from 32,768 upwards to connections and to sockets bound
to port 0, so ports for servers are drawn from below: no other socket takes one by accident.
"""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

_PORTS = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Return unused ports; all are held until the last is found, so that they differ."""
    with ExitStack() as held:
        found: list[int] = []
        for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
            probe = held.enter_context(socket.socket())
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
            if len(found) == count:
                return found
    raise AssertionError(f"fewer than {count} ports are free from {_PORTS.start} to {_PORTS.stop}")


def free_port() -> int:
    """Return an unused port."""
    return free_ports(1)[0]
