# SPDX-License-Identifier: Apache-2.0
"""The other side of a connection stays and reads no more: nothing waits for it, in closing or in speaking, for ever."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from compactlib.catalog import NodeId, TcpTransport
from compactlib.catalog.round.messages import Hello, ReportFailed, RoundId
from compactlib.catalog.transport import wire
from compactlib.catalog.transport.tcp import TcpOptions
from compactlib.hosting.transfer import receiving
from compactlib.raftlog.replication.messages import Envelope, Unknown
from compactlib.runtime import RecordingObserver, doors
from compactlib.runtime.doors import drained, hang_up

PLENTY = bytes(8 << 20)


@contextlib.asynccontextmanager
async def unread() -> AsyncIterator[tuple[asyncio.StreamWriter, socket.socket]]:
    """A connection on which more was said than anybody has read, and its other end."""
    ours, theirs = socket.socketpair()
    with theirs:
        _, writer = await asyncio.open_connection(sock=ours)
        writer.write(PLENTY)
        yield writer, theirs


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 30))


def test_hanging_up_on_who_reads_no_more_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "_LAST_WORDS_SECONDS", 0.05)

    async def story() -> None:
        async with unread() as (writer, theirs):
            await hang_up(writer)
            assert len(theirs.recv(len(PLENTY))) < len(PLENTY)
            await hang_up(writer)

    run(story)


def test_what_is_read_in_time_arrives_whole_although_it_is_hung_up() -> None:
    async def story() -> None:
        async with unread() as (writer, theirs):
            theirs.setblocking(False)
            ending = asyncio.create_task(hang_up(writer))
            got = 0
            while data := await asyncio.get_running_loop().sock_recv(theirs, 1 << 20):
                got += len(data)
            await ending
            assert got == len(PLENTY)

    run(story)


def test_a_cancelled_hanging_up_lets_the_connection_go() -> None:
    async def story() -> None:
        async with unread() as (writer, theirs):
            ending = asyncio.create_task(hang_up(writer))
            await asyncio.sleep(0)
            ending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await ending
            while theirs.recv(1 << 20):
                await asyncio.sleep(0)

    run(story)


def test_who_takes_nothing_is_waited_for_so_long_and_no_longer() -> None:
    async def story() -> None:
        async with unread() as (writer, _):
            with pytest.raises(TimeoutError):
                await drained(writer, 0.05)
            await hang_up(writer)

    run(story)


def test_a_sender_that_reads_no_answers_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "_ANSWER_SECONDS", 0.05)

    async def story() -> None:
        async with unread() as (writer, _):
            await receiving.reply(writer, Unknown(Envelope(transfer=1, attempt=1, term=1)))
            assert writer.is_closing()
            await hang_up(writer)

    run(story)


def test_a_node_that_reads_no_more_loses_its_messages_and_the_link_goes_on() -> None:
    async def story() -> None:
        observer = RecordingObserver()
        stuck, met = asyncio.Event(), 0

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal met
            met += 1
            writer.write(wire.encode(Hello("test", NodeId("b"))))
            await stuck.wait()
            writer.transport.abort()

        listener = await asyncio.start_server(greet, "127.0.0.1", 0, limit=1024)
        host, port = listener.sockets[0].getsockname()[:2]
        transport = TcpTransport(NodeId("a"), cluster="test", listen=("127.0.0.1", 0), peers={"b": (host, port)},
                                 options=TcpOptions(frame_seconds=0.1, min_pause_seconds=0.01), observer=observer)
        await transport.start(lambda sender, told: None)
        big = ReportFailed(RoundId(1, NodeId("a"), 1), NodeId("a"), "x" * 60_000)
        while met < 2:
            for _ in range(200):
                transport.send("b", big)
            await asyncio.sleep(0.02)
        assert any("TimeoutError" in str(fields) for name, fields in observer.events if name == "catalog_message_lost")
        stuck.set()
        await transport.close()
        listener.close()

    run(story)
