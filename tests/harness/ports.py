# SPDX-License-Identifier: Apache-2.0
"""Ports on loopback for servers of tests.

A server is given its port before it can bind it. Systems hand out ports from 32,768 upwards to connections and to
sockets bound to port 0, so ports for servers are drawn from below: nobody takes one meanwhile by accident.
"""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

_PORTS = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Return ports that nobody uses; all are held until the last is found, so that no two are the same."""
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
    """Return a port that nobody uses."""
    return free_ports(1)[0]
