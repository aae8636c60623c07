# SPDX-License-Identifier: Apache-2.0
"""Bounds of a scheduler's HTTP server, over real sockets: heads, bodies, waits, connections, memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import resource
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import httpcore
import pytest
import uvicorn

from compactlib.hosting.http.application import HttpLimits, SchedulerApplication
from compactlib.hosting.http.client import SchedulerClient
from compactlib.hosting.http.server import HttpServer
from compactlib.kv import MemoryStore
from compactlib.scheduler import PollRequest, PollResponse, StoredScheduler
from tests.harness.effort import Effort
from tests.hosting.certificates import Authority
from tests.hosting.http_serving import Serving, received, served
from tests.hosting.test_hosting_http import TOKEN, Stub
from tests.hosting.workload import CONFIG, blocks

HEAD = b"POST /v1/poll HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
POLL = HEAD + b"Content-Length: 2\r\n\r\n{}"
LAST = POLL.replace(b"Host:", b"Connection: close\r\nHost:")


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


@pytest.mark.parametrize("said", [b"", b"POST", HEAD], ids=["nothing", "a word", "headers"])
def test_a_head_that_does_not_come_ends_the_connection(said: bytes) -> None:
    with served(application(hello_seconds=0.1)) as serving:
        assert serving.exchange(said) == b""
        serving.told("did not come in time: hello_seconds=0.1")
        still_answers(serving)


def test_a_head_that_comes_byte_by_byte_does_not_hold_the_connection() -> None:
    with served(application(hello_seconds=1.0)) as serving:
        for before in (b"", POLL):
            with serving.connect() as line:
                line.sendall(before)
                if before:
                    assert answer_of(line).startswith(b"HTTP/1.1 200")
                with contextlib.suppress(OSError):
                    for byte in HEAD * 1000:
                        line.sendall(bytes([byte]))
                        threading.Event().wait(0.01)
                    raise AssertionError("it was held")
        still_answers(serving)


def test_a_connection_that_asks_nothing_more_is_ended() -> None:
    with served(application(idle_seconds=0.1)) as serving:
        answer = serving.exchange(POLL)
        assert answer.startswith(b"HTTP/1.1 200")
        serving.told("the next request did not come in time: idle_seconds=0.1")


@pytest.mark.parametrize("head", [
    HEAD + b"X: " + b"y" * 20_000 + b"\r\n\r\n", b"POST /" + b"y" * 20_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    HEAD + b"X: y\r\n" * 4000 + b"\r\n", b"GET /" + b"y" * 1_000_000,
    b"\x16\x03\x01 no TLS here\r\n\r\n", b"\0" * 40_000])
def test_a_head_that_is_too_large_or_none_is_refused(head: bytes) -> None:
    with served(application()) as serving:
        assert serving.exchange(head).split(b"\r\n")[0] in (
            b"HTTP/1.1 400 Bad Request", b"HTTP/1.1 431 Request Header Fields Too Large", b"")
        still_answers(serving)


def test_a_large_body_is_refused_before_it_is_read() -> None:
    with served(application(max_body_bytes=1000)) as serving:
        for head, status in ((b"Content-Length: 1001\r\n\r\n", b"413"), (b"Content-Length: 9" + b"9" * 30, b"400"),
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


class Wordy(Stub):
    """Answers more than sockets hold."""

    def poll(self, request: PollRequest) -> PollResponse:
        return PollResponse(why="x" * (32 << 20))


def test_an_answer_that_is_not_taken_ends_the_connection() -> None:
    wordy = SchedulerApplication(Wordy(), limits=HttpLimits(body_seconds=0.5))
    with served(wordy) as serving, serving.connect() as line:
        line.sendall(POLL)
        serving.told("the taking of an answer did not come in time: body_seconds=0.5")
        assert serving.server.last_error is None


def test_an_answer_that_is_not_taken_ends_the_connection_whatever_is_asked_meanwhile() -> None:
    wordy = SchedulerApplication(Wordy(), limits=HttpLimits(body_seconds=1.0))
    with served(wordy) as serving, serving.connect() as line:
        line.sendall(POLL)
        while not any(each.has_asked and each.flow.write_paused for each in tuple(serving.server.lines)):
            threading.Event().wait(0.002)
        line.sendall(POLL)
        serving.told("the taking of an answer did not come in time: body_seconds=1.0")


def test_whatever_is_sent_the_server_goes_on(effort: Effort) -> None:
    rng = random.Random(5)
    with served(application(hello_seconds=0.05, body_seconds=0.05, idle_seconds=0.05)) as serving:
        for _ in range(effort(60, 5_000)):
            said = bytearray(LAST)
            for _ in range(rng.randrange(1, 4)):
                at = rng.randrange(len(said))
                match rng.randrange(4):
                    case 0:
                        del said[at:at + rng.randrange(30)]
                    case 1:
                        said[at:at] = rng.choice([b"\r\n", b"\n", b"\0", b" ", b":", b"Transfer-Encoding: chunked\r\n",
                                                  b"Content-Length: 5\r\n", b"Upgrade: websocket\r\n", b"\xff" * 9])
                    case 2:
                        said[at] = rng.randrange(256)
                    case _:
                        said[at:at] = said[at:at + rng.randrange(60)]
            with contextlib.suppress(ConnectionError):
                serving.exchange(bytes(said))
        assert serving.server.last_error is None
        still_answers(serving)


def test_requests_of_one_connection_are_answered_in_their_order() -> None:
    with served(application()) as serving:
        answer = serving.exchange(POLL + b"GET /nope HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + LAST)
        assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"404", b"200"]
        assert b"\r\ndate: " in answer.lower()
        assert b"server:" not in answer.lower()


def test_small_answers_do_not_wait_for_each_other() -> None:
    with served(application()) as serving, serving.connect() as line:
        line.sendall(POLL)
        answer_of(line)
        [mine] = serving.server.lines
        assert mine.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("limit", ["max_connections", "max_greetings"])
def test_strangers_make_room_for_whoever_comes_after_them(limit: str) -> None:
    with served(application(**{limit: 3}, hello_seconds=60.0)) as serving, contextlib.ExitStack() as stack:
        known = stack.enter_context(serving.connect())
        known.sendall(POLL)
        assert answer_of(known).startswith(b"HTTP/1.1 200")
        strangers = []
        for _ in range(6):
            strangers.append(stack.enter_context(serving.connect()))
            strangers[-1].sendall(b"P")
        still_answers(serving)
        serving.told(f"it had to make room for another one, {limit}=3; it had not asked anything")
        assert received(strangers[0]) == b""
        known.sendall(LAST)
        assert received(known).startswith(b"HTTP/1.1 200")


def test_strangers_that_were_answered_make_room_while_they_do_not_take_the_end(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = authority.context("localhost", server=True)
    tls.verify_mode = ssl.CERT_NONE
    mine = authority.context("w", server=False)
    with served(SchedulerApplication(Stub(), tokens={"w": TOKEN}, limits=HttpLimits(max_connections=3)),
                tls=tls) as serving, contextlib.ExitStack() as stack:
        for _ in range(3):
            stranger = stack.enter_context(mine.wrap_socket(serving.connect(), server_hostname="localhost"))
            stranger.sendall(POLL)
            assert answer_of(stranger).startswith(b"HTTP/1.1 401")
        known = stack.enter_context(mine.wrap_socket(serving.connect(), server_hostname="localhost"))
        known.sendall(POLL.replace(b"Host:", b"Authorization: Bearer " + TOKEN.encode() + b"\r\nHost:"))
        assert answer_of(known).startswith(b"HTTP/1.1 200")


def test_where_all_connections_are_known_another_is_turned_away() -> None:
    with served(application(max_connections=2)) as serving, serving.connect() as first, serving.connect() as second:
        for line in (first, second):
            line.sendall(POLL)
            assert answer_of(line).startswith(b"HTTP/1.1 200")
        assert serving.exchange(POLL) == b""
        serving.told("too many connections: max_connections=2 of them are open")


@pytest.mark.parametrize("is_guarded", [False, True], ids=["plain", "TLS"])
def test_a_thousand_idle_strangers_cost_little_memory_and_keep_nobody_out(is_guarded: bool, tmp_path: Path) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    authority = Authority(tmp_path)
    tls = authority.context("localhost", server=True) if is_guarded else None
    count = 1000 if resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 2100 else 300
    with served(application(hello_seconds=60.0, max_connections=count), tls=tls) as serving, \
            contextlib.ExitStack() as stack, \
            SchedulerClient([serving.url], tls=authority.context("w", server=False)) as client:
        client.poll(PollRequest())
        before = resident()
        for number in range(count):
            stack.enter_context(serving.connect()).sendall(b"P")
            if number % 50 == 0:
                # Else a full backlog has the kernel repeat it a second later.
                client.poll(PollRequest())
        assert client.poll(PollRequest()).why == "answered"
        with SchedulerClient([serving.url], tls=authority.context("v", server=False)) as another:
            assert another.poll(PollRequest()).why == "answered"
        # Both ends of each lie in this process.
        assert resident() - before < 64 << 20


class Slow(Stub):
    """Answers when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.let = threading.Event(), threading.Event()

    def poll(self, request: PollRequest) -> PollResponse:
        self.asked.set()
        self.let.wait()
        return super().poll(request)


def test_a_server_is_started_again_in_another_event_loop() -> None:
    server = HttpServer(application(max_greetings=1, hello_seconds=60.0), listen=("127.0.0.1", 0))

    def ask() -> str:
        with contextlib.ExitStack() as strangers, SchedulerClient(
                [f"http://127.0.0.1:{server.address[1]}"], timeout_seconds=5.0) as client:
            for _ in range(3):
                strangers.enter_context(socket.create_connection(server.address)).sendall(b"P")
            return client.poll(PollRequest()).why

    async def life(*, stops: bool) -> None:
        await server.start()
        assert await asyncio.to_thread(ask) == "answered"
        if stops:
            await server.stop()

    for stops in (True, False, True):
        asyncio.run(life(stops=stops))
    assert server.last_error is None


def test_a_server_that_stops_gives_the_answers_that_are_under_way() -> None:
    slow = Slow()
    serving = Serving(SchedulerApplication(slow))
    with serving.connect() as busy, serving.connect() as silent, serving.connect() as known:
        known.sendall(POLL.replace(b"poll", b"nope"))
        assert answer_of(known).startswith(b"HTTP/1.1 404")
        busy.sendall(POLL)
        slow.asked.wait()
        stopping = threading.Thread(target=serving.stop)
        stopping.start()
        assert (received(silent), received(known)) == (b"", b"")
        slow.let.set()
        answer = received(busy)
        assert answer.startswith(b"HTTP/1.1 200")
        stopping.join()
    with pytest.raises(ConnectionRefusedError):
        serving.connect()


def test_any_asgi_server_runs_the_application() -> None:
    scheduler = StoredScheduler(MemoryStore(), CONFIG)
    made = uvicorn.Server(uvicorn.Config(SchedulerApplication(scheduler), log_config=None, lifespan="on"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=asyncio.run, args=(made.serve([listening]),))
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with SchedulerClient([url]) as client:
            assert len(client.add_blocks(blocks(0, 4)).queued) == 4
            assert client.status()["levels"][0]["waiting blocks"] == 4
        assert json.loads(httpcore.request("GET", url + "/v1/status").content)["index"] == 2
        made.should_exit = True
        thread.join()
