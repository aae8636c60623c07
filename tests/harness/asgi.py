# SPDX-License-Identifier: Apache-2.0
"""Runs an ASGI application under uvicorn, as a host would, for tests that ask it over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Any

import uvicorn


@contextlib.asynccontextmanager
async def running(application: Any, *, port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve on loopback until the block is left; yields the port. Answers under way are sent first."""
    config = uvicorn.Config(application, port=port, log_config=None, lifespan="on", server_header=False)
    config.load()
    config.ssl = tls
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.wait([task], timeout=0.001)
        if task.done():
            await task
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await task
