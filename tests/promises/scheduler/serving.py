# SPDX-License-Identifier: Apache-2.0
"""A scheduler's application under uvicorn, in a thread of the test."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import pytest

from compactlib.scheduler import SchedulerApplication

uvicorn = pytest.importorskip("uvicorn")


@contextlib.contextmanager
def served(application: SchedulerApplication) -> Iterator[str]:
    """Serve it in a thread; yields the address."""
    server = uvicorn.Server(uvicorn.Config(application, port=0, log_level="error"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        threading.Event().wait(0.005)
    try:
        yield "http://{}:{}".format(*server.servers[0].sockets[0].getsockname())
    finally:
        server.should_exit = True
        thread.join(60)
