# SPDX-License-Identifier: Apache-2.0
"""Bounds of a scheduler's application, over real sockets: bodies and waits."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from compactlib.hosting.http.application import HttpLimits, SchedulerApplication
from compactlib.hosting.http.client import SchedulerClient
from tests.hosting.http_serving import Serving, served
from tests.hosting.test_hosting_http import Stub
from tests.hosting.workload import blocks

HEAD = b"POST /v1/poll HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


def application(**limits: Any) -> SchedulerApplication:
    return SchedulerApplication(Stub(), limits=HttpLimits(**limits))


def still_answers(serving: Serving) -> None:
    # Asked again where short limits have cut a connection on a busy machine.
    with SchedulerClient([serving.url]) as client:
        assert client.add_blocks(blocks(0, 1)).queued == ("b0",)


def answer_of(line: socket.socket) -> bytes:
    """One answer; the connection goes on."""
    found, size = b"", 0
    while b"\r\n\r\n" not in found or len(found.partition(b"\r\n\r\n")[2]) < size:
        part = line.recv(4096)
        assert part, found
        found += part
        size = int(found.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
    return found


def test_a_large_body_is_refused_before_it_is_read() -> None:
    with served(application(max_body_bytes=1000)) as serving:
        for head, status in ((b"Content-Length: 1001\r\n\r\n", b"413"),
                             (b"Transfer-Encoding: chunked\r\n\r\n", b"411"),
                             (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", b"411")):
            answer = serving.exchange(HEAD + head + (b"" if head.endswith(b"\n") else b"\r\n\r\n"))
            assert answer.startswith(b"HTTP/1.1 " + status)
            assert b"connection: close" in answer.lower()
        still_answers(serving)


def test_a_body_that_does_not_come_is_refused() -> None:
    with served(application(body_seconds=0.1)) as serving:
        answer = serving.exchange(HEAD + b"Content-Length: 10\r\n\r\n{")
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"body_seconds=0.1" in answer
        still_answers(serving)


def test_who_leaves_in_the_middle_of_a_body_leaves_nothing_behind() -> None:
    with served(application(max_bytes_in_flight=100)) as serving:
        for _ in range(3):
            with serving.connect() as line:
                line.sendall(HEAD + b"Content-Length: 90\r\n\r\n{")
        still_answers(serving)


def test_bodies_wait_until_there_is_room_for_them() -> None:
    with served(application(max_bytes_in_flight=100, body_seconds=20.0)) as serving, serving.connect() as first, \
            serving.connect() as second:
        first.sendall(HEAD + b"Content-Length: 60\r\nExpect: 100-continue\r\n\r\n")
        assert first.recv(100).startswith(b"HTTP/1.1 100")
        second.sendall(HEAD + b"Content-Length: 60\r\nExpect: 100-continue\r\n\r\n")
        second.settimeout(0.05)
        with pytest.raises(TimeoutError):
            second.recv(100)
        first.sendall(b"{}" + b" " * 58)
        assert answer_of(first).startswith(b"HTTP/1.1 200")
        second.settimeout(None)
        assert second.recv(100).startswith(b"HTTP/1.1 100")
        second.sendall(b"{}" + b" " * 58)
        assert answer_of(second).startswith(b"HTTP/1.1 200")


def test_an_answer_that_is_not_taken_in_time_raises() -> None:
    sent: list[str] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message["type"])
        await asyncio.Event().wait()

    scope = {"type": "http", "method": "GET", "path": "/v1/status", "query_string": b"", "client": ("127.0.0.1", 5),
             "headers": [(b"host", b"127.0.0.1")]}
    with pytest.raises(TimeoutError):
        asyncio.run(application(body_seconds=0.05)(scope, receive, send))
    assert sent == ["http.response.start"]
