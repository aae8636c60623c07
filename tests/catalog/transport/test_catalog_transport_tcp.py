# SPDX-License-Identifier: Apache-2.0
"""Messages over real sockets on loopback: they arrive, what is wrong is named, and lost connections come back."""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
import sys
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import pytest

from compactlib.catalog import NodeId, TcpTransport
from compactlib.catalog.round.messages import (
    Hello,
    Message,
    Refusal,
    RefusalReason,
    ReportFailed,
    ReportRequest,
    RoundId,
)
from compactlib.catalog.transport import wire
from compactlib.catalog.transport.tcp import TcpOptions
from compactlib.errors import Closed, InvalidInput, StorageError
from compactlib.runtime import RecordingObserver
from compactlib.runtime.doors import Address

LOOPBACK: Address = ("127.0.0.1", 0)
QUICK = TcpOptions(hello_seconds=5.0, min_pause_seconds=0.01, max_pause_seconds=0.05, max_message_bytes=10_000)


def message(number: int, coordinator: str = "a") -> ReportRequest:
    return ReportRequest(RoundId(1, NodeId(coordinator), number))


class Node:
    """A transport that keeps what it hears."""

    def __init__(self, name: str, *, cluster: str = "test", options: TcpOptions = QUICK, life: int = 1,
                 listen: Address = LOOPBACK) -> None:
        self.observer = RecordingObserver()
        self.heard: asyncio.Queue[tuple[str, Message]] = asyncio.Queue()
        self.transport = TcpTransport(NodeId(name, life), cluster=cluster, listen=listen, options=options,
                                      observer=self.observer)

    async def __aenter__(self) -> Node:
        await self.transport.start(lambda sender, told: self.heard.put_nowait((sender, told)))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.transport.close()

    def knows(self, **others: Node) -> None:
        self.transport.set_peers({name: other.transport.address for name, other in others.items()})

    async def hears(self) -> tuple[str, Message]:
        return await asyncio.wait_for(self.heard.get(), 20)

    async def notes(self, name: str, part: str) -> dict[str, Any]:
        """Wait until the observer was told of this."""
        for _ in range(2000):
            for told, fields in self.observer.events:
                if told == name and part in str(fields):
                    return fields
            await asyncio.sleep(0.01)
        raise AssertionError(f"no {name} with {part!r} in {self.observer.events}")


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 60))


def test_messages_arrive_in_both_directions_in_order() -> None:
    async def story() -> None:
        async with Node("a") as one, Node("b") as other:
            one.knows(b=other)
            other.knows(a=one)
            for number in range(1, 200):
                one.transport.send("b", message(number))
            other.transport.send("a", message(7, "b"))
            for number in range(1, 200):
                assert await other.hears() == ("a", message(number))
            assert await one.hears() == ("b", message(7, "b"))

    run(story)


def test_a_node_that_restarts_is_reached_again() -> None:
    async def story() -> None:
        async with Node("a") as one:
            async with Node("b") as other:
                one.knows(b=other)
                address = other.transport.address
                one.transport.send("b", message(1))
                assert await other.hears() == ("a", message(1))
            async with Node("b", life=2, listen=address) as again:
                while again.heard.empty():  # what is sent into a dead connection is lost, which the protocol expects
                    one.transport.send("b", message(2))
                    await asyncio.sleep(0.02)
                assert await again.hears() == ("a", message(2))

    run(story)


def vanishes(line: socket.socket) -> None:
    """What reaches this end from now on is dropped by the kernel, as by a machine that is gone: nothing is answered."""
    drop = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))
    line.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HL", 1, ctypes.addressof(drop)))


lossy = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="no other system drops what a socket is sent")


@lossy
@pytest.mark.parametrize("takes_first", [True, False])
def test_a_node_that_is_gone_without_a_word_is_connected_anew(*, takes_first: bool) -> None:
    async def story() -> None:
        loop, hello = asyncio.get_running_loop(), wire.encode(Hello("test", NodeId("b", 1)))
        with socket.create_server(LOOPBACK) as gone:
            gone.setblocking(False)
            async with Node("a", options=attrs.evolve(QUICK, frame_seconds=1.0)) as one:
                one.transport.set_peers({"b": gone.getsockname()})
                one.transport.send("b", message(1))
                first, _ = await loop.sock_accept(gone)
                with first:
                    await loop.sock_recv(first, 1024)
                    await loop.sock_sendall(first, hello)
                    if takes_first:
                        await loop.sock_recv(first, 1024)
                    vanishes(first)
                    again = loop.create_task(loop.sock_accept(gone))
                    for _ in range(1000):
                        one.transport.send("b", message(2))
                        await asyncio.wait({again}, timeout=0.02)
                        if again.done():
                            break
                    again.cancel()
                    second, _ = await again
                    second.close()

    run(story)


@lossy
def test_a_node_that_has_lost_its_power_is_taken_when_it_is_back_though_its_first_connection_seems_open() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        async with Node("a", options=attrs.evolve(QUICK, frame_seconds=1.0)) as one, Node("b", life=2) as again:
            again.knows(a=one)
            with socket.socket() as first:
                first.setblocking(False)
                await loop.sock_connect(first, one.transport.address)
                await loop.sock_sendall(first, wire.encode(Hello("test", NodeId("b", 1))))
                await loop.sock_recv(first, 1024)
                vanishes(first)
                again.transport.send("a", message(2, "b"))
                assert await one.hears() == ("b", message(2, "b"))

    run(story)


def test_a_transport_that_was_not_closed_begins_anew_in_another_loop() -> None:
    one, found = Node("a"), [LOOPBACK]

    async def is_heard() -> None:
        async with Node("b", listen=found[0]) as other:
            found[0] = other.transport.address
            await one.transport.start(lambda sender, told: None)
            one.knows(b=other)
            for _ in range(500):
                one.transport.send("b", message(1))
                await asyncio.sleep(0.02)
                if not other.heard.empty():
                    return
            raise AssertionError("nothing was sent")

    async def again() -> None:
        await is_heard()
        await one.transport.close()

    run(is_heard)
    run(again)


def test_what_cannot_be_sent_is_lost_counted_and_told() -> None:
    async def story() -> None:
        async with Node("a") as one:
            one.transport.send("nobody", message(1))
            assert (await one.notes("catalog_message_lost", "no address"))["to"] == "nobody"
            one.transport.set_peers({"b": ("127.0.0.1", 1)})
            one.transport.send("b", message(1))
            await one.notes("catalog_message_lost", "ConnectionRefusedError")
            one.transport.send("b", ReportFailed(message(1).round, NodeId("a"), "x" * 1500))
            one.transport._options = TcpOptions(max_message_bytes=100)  # noqa: SLF001 - a limit that is met
            one.transport.send("b", ReportFailed(message(1).round, NodeId("a"), "x" * 1500))
            await one.notes("catalog_message_lost", "the limit is 100")

    run(story)


def test_what_waits_for_a_node_that_is_taken_out_is_lost_counted_and_told() -> None:
    async def story() -> None:
        async with Node("a") as one, Node("b") as other:
            one.knows(b=other)
            one.transport.send("b", message(1))
            one.knows()
            assert (await one.notes("catalog_message_lost", "it is no peer any more"))["to"] == "b"
            one.knows(b=other)
            one.transport.send("b", message(2))
            one.transport.set_peers({"b": ("127.0.0.1", 1)})
            await one.notes("catalog_message_lost", "its address has changed")
            assert one.observer.counters["catalog_messages_lost", (("to", "b"),)] == 2
            one.knows(b=other)
            one.transport.send("b", message(3))
            assert await other.hears() == ("a", message(3))
            # With a line that is open, in the same way.
            one.transport.send("b", message(4))
            one.knows()
            await asyncio.sleep(0.05)
            assert other.heard.empty()
            assert one.observer.counters["catalog_messages_lost", (("to", "b"),)] == 3

    run(story)


def test_a_full_queue_loses_its_oldest() -> None:
    async def story() -> None:
        async with Node("a", options=TcpOptions(max_queued=2)) as one, Node("b") as other:
            one.knows(b=other)
            for number in range(1, 5):
                one.transport.send("b", message(number))
            assert [await other.hears(), await other.hears()] == [("a", message(3)), ("a", message(4))]
            await one.notes("catalog_message_lost", "the queue is full")

    run(story)


def test_a_node_of_another_cluster_or_name_is_turned_away() -> None:
    async def story() -> None:
        async with Node("a") as one, Node("b", cluster="other") as stranger, Node("c") as wrong_name:
            one.knows(b=stranger, x=wrong_name)
            one.transport.send("b", message(1))
            one.transport.send("x", message(1))
            await one.notes("catalog_message_lost", "hung up without a word")
            await one.notes("catalog_message_lost", "belongs to node 'c' of cluster 'test', not to node 'x'")
            await stranger.notes("catalog_connection_ended", "WrongCluster")
            assert stranger.heard.empty()

    run(story)


async def raw(to: Node) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection made by hand, past the hellos."""
    reader, writer = await asyncio.open_connection(*to.transport.address)
    writer.write(wire.encode(Hello("test", NodeId("b"))))
    size = int.from_bytes(await reader.readexactly(4), "little")
    assert wire.decode(await reader.readexactly(size)) == Hello("test", NodeId("a"))
    return reader, writer


def framed(number: int, version: int) -> bytes:
    content = struct.pack("<HH", number, version) + b"whatever"
    return (len(content) + 4).to_bytes(4, "little") + content + zlib.crc32(content).to_bytes(4, "little")


@pytest.mark.parametrize(("number", "version", "reason"), [
    (99, 1, RefusalReason.UNKNOWN_TYPE), (2, 9, RefusalReason.UNKNOWN_VERSION)])
def test_a_message_of_an_unknown_type_or_version_is_skipped_and_its_sender_told(number: int, version: int,
                                                                                reason: RefusalReason) -> None:
    async def story() -> None:
        async with Node("a") as one, Node("b") as other:
            one.knows(b=other)
            _, writer = await raw(one)
            writer.write(framed(number, version))
            writer.write(wire.encode(message(5, "b")))
            sender, refusal = await other.hears()
            assert sender == "a"
            assert isinstance(refusal, Refusal)
            assert refusal.reason is reason
            assert await one.hears() == ("b", message(5, "b"))
            await one.notes("catalog_message_refused", str(number))
            writer.close()

    run(story)


@pytest.mark.parametrize(("data", "told"), [
    (wire.encode(message(1))[:-1] + b"\x00", "MessageDamaged"),
    ((10_001).to_bytes(4, "little"), "MessageTooLarge"),
    (b"\x09\x00", "IncompleteReadError"),
    (wire.encode(message(1))[:9], "IncompleteReadError"),
])
def test_damaged_bytes_end_the_connection_and_nothing_else(data: bytes, told: str) -> None:
    async def story() -> None:
        async with Node("a") as one:
            reader, writer = await raw(one)
            writer.write(data)
            if told == "IncompleteReadError":
                writer.write_eof()
            assert await reader.read() == b""
            await one.notes("catalog_connection_ended", told)
            writer.close()
            _, again = await raw(one)
            again.write(wire.encode(message(3, "b")))
            assert await one.hears() == ("b", message(3, "b"))
            again.close()

    run(story)


@pytest.mark.parametrize("first", [wire.encode(message(1)), b"GET / HTTP/1.1\r\n\r\n", b""])
def test_whoever_does_not_say_hello_is_turned_away(first: bytes) -> None:
    async def story() -> None:
        async with Node("a") as one:
            reader, writer = await asyncio.open_connection(*one.transport.address)
            writer.write(first)
            if not first:
                writer.write_eof()
            await reader.read()
            await one.notes("catalog_connection_ended", "")
            writer.close()
            assert one.heard.empty()

    run(story)


def test_more_connections_than_allowed_are_turned_away() -> None:
    async def story() -> None:
        async with Node("a", options=TcpOptions(max_connections=1)) as one:
            _, writer = await raw(one)
            reader, second = await asyncio.open_connection(*one.transport.address)
            assert await reader.read() == b""
            await one.notes("catalog_connection_ended", "too many")
            second.close()
            writer.close()

    run(story)


def test_starting_twice_at_one_address_or_after_closing_has_a_name() -> None:
    async def story() -> None:
        async with Node("a") as one:
            with pytest.raises(StorageError, match="listen on 127"):
                await Node("b", listen=one.transport.address).transport.start(lambda *_: None)
        with pytest.raises(Closed):
            await one.transport.start(lambda *_: None)
        with pytest.raises(Closed):
            print(Node("x").transport.address)  # noqa: T201 - asked for before it listens
        one.transport.send("b", message(1))
        await one.transport.close()

    run(story)


@pytest.mark.parametrize("wrong", [{"max_queued": 0}, {"hello_seconds": -1.0}, {"max_message_bytes": 0}])
def test_limits_must_be_above_zero(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        TcpOptions(**wrong)


def test_a_receiver_that_raises_ends_its_connection_and_nothing_else() -> None:
    async def story() -> None:
        failing = [True]
        heard: asyncio.Queue[Message] = asyncio.Queue()

        def receive(sender: str, told: Message) -> None:
            if failing:
                failing.clear()
                raise KeyError("a bug, once")
            heard.put_nowait(told)

        other = Node("b")
        await other.transport.start(receive)
        async with Node("a") as one:
            one.knows(b=other)
            while heard.empty():
                one.transport.send("b", message(1))
                await asyncio.sleep(0.01)
            assert await heard.get() == message(1)
        assert isinstance(other.transport.last_error, KeyError)
        assert other.transport.failures == 1
        assert await other.notes("catalog_connection_ended", "a bug, once")
        await other.transport.close()

    run(story)


def test_a_link_outlives_what_nobody_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = TcpTransport.connect
    failing = [True]

    async def connecting(transport: TcpTransport, name: str, address: Address) -> Any:
        if failing:
            failing.clear()
            raise ZeroDivisionError("a bug, once")
        return await connect(transport, name, address)

    monkeypatch.setattr(TcpTransport, "connect", connecting)

    async def story() -> None:
        async with Node("a") as one, Node("b") as other:
            one.knows(b=other)
            while other.heard.empty():
                one.transport.send("b", message(1))
                await asyncio.sleep(0.01)
            assert isinstance(one.transport.last_error, ZeroDivisionError)
            assert await one.notes("catalog_message_lost", "a bug, once")

    run(story)


def test_closing_waits_for_every_task_also_of_links_that_were_replaced() -> None:
    async def story() -> None:
        before = asyncio.all_tasks()
        async with Node("a") as one, Node("b") as other:
            one.knows(b=other)
            one.transport.send("b", message(1))
            await other.hears()
            one.knows()
            one.knows(b=other)
            one.transport.send("b", message(2))
            await other.hears()
            one.knows()
        assert asyncio.all_tasks() == before

    run(story)
