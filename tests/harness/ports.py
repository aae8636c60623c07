# SPDX-License-Identifier: Apache-2.0
"""Ports on loopback for servers of tests."""

from __future__ import annotations

import socket
from contextlib import ExitStack


def free_ports(count: int) -> list[int]:
    """Numbers that nobody uses now: all are held until the last is known, so that no two are the same."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
