# SPDX-License-Identifier: Apache-2.0
"""What listens, when it is closed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import warnings
from typing import Any

import pytest

from compactlib.runtime.doors import Listener
from compactlib.runtime.services.async_service import AsyncWork


def test_a_connection_that_comes_as_it_closes_is_no_error() -> None:
    told: list[dict[str, Any]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
        work = AsyncWork("a server", event="failed")

        async def begin() -> None:
            async def answer(line: socket.socket, where: str) -> None:
                line.close()

            await listener.listen(("127.0.0.1", 0), answer)

        async def end() -> None:
            listener.close()

        listener = Listener("a server", work)
        await work.start(begin)
        await asyncio.sleep(0)  # by now it waits for a connection
        waiting = socket.create_connection(listener.address)
        await work.stop(end)
        await asyncio.sleep(0)
        waiting.close()

    asyncio.run(run())
    assert not told


@pytest.mark.parametrize("steps", range(6))
def test_a_connection_that_was_taken_is_closed_whenever_it_closes(steps: int) -> None:
    async def run() -> None:
        work = AsyncWork("a server", event="failed")

        async def begin() -> None:
            async def answer(line: socket.socket, where: str) -> None:
                try:
                    await asyncio.Event().wait()
                finally:
                    line.close()

            await listener.listen(("127.0.0.1", 0), answer)

        async def end() -> None:
            listener.close()

        listener = Listener("a server", work)
        await work.start(begin)
        await asyncio.sleep(0)  # by now it waits for a connection
        with socket.create_connection(listener.address) as waiting:
            for _ in range(steps):
                await asyncio.sleep(0)
            await work.stop(end)
            waiting.settimeout(10.0)
            with contextlib.suppress(ConnectionResetError):
                assert waiting.recv(1) == b""

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        asyncio.run(run())
        gc.collect()
    assert [str(each.message) for each in told] == []
