# SPDX-License-Identifier: Apache-2.0
"""Strangers at whatever listens are told nothing, change nothing and are held to bounds: real sockets, real TLS."""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from compactlib.app.kv_machine import Put
from compactlib.catalog import CompactionService, NodeId, NodeReport, TcpTransport
from compactlib.catalog.model.partitions import MAX_TABLES, HostedPartitions
from compactlib.catalog.round.messages import Hello as NodeHello, PublishTime, ReportAnswer, ReportRequest, RoundId
from compactlib.catalog.transport import wire
from compactlib.catalog.transport.tcp import TcpOptions
from compactlib.errors import CorruptData, InvalidInput
from compactlib.files.varints import encode_varints
from compactlib.hosting import SnapshotClient, SnapshotServer
from compactlib.hosting.transfer.lines import Hello, read_message
from compactlib.indexset import IndexSet
from compactlib.outcome import Done
from compactlib.raftlog.replication.errors import AbortReason
from compactlib.raftlog.replication.messages import Envelope, Offer, Progress, Refusal
from compactlib.raftlog.replication.wire import encode
from compactlib.raftlog.snapshots.model import SnapshotManifest
from compactlib.raftlog.snapshots.state_reader import StateReader
from compactlib.runtime import RecordingObserver
from compactlib.runtime.doors import MAX_HELLO_BYTES, BytesInFlight, DoorLimits
from examples.raft_kv import KvStore
from tests.hosting.certificates import Authority

OFFERED = SnapshotManifest.of(90, 5, IndexSet(), state_bytes=1, state_crc=0)
TLS_BEGUN = b"\x16\x03\x01\x02\x00\x01"
EVIL = RoundId((1 << 64) - 1, NodeId("a", 99), 1)
PUBLISH = wire.encode(PublishTime(EVIL, 1 << 62))


class Opened:
    """Something that listens, in the cluster `c`; the node `a` may connect."""

    def __init__(self, address: tuple[str, int], observer: RecordingObserver, heard: list[object]) -> None:
        self.address = address
        self.observer = observer
        self.heard = heard

    async def ended(self, part: str) -> None:
        """Wait until it has told of the end of a connection, and why."""
        async with asyncio.timeout(20):
            while not any(name.endswith("_ended") and part in str(fields) for name, fields in self.observer.events):
                await asyncio.sleep(0.005)

    async def connect(self, tls: ssl.SSLContext | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.address, ssl=tls, server_hostname="b" if tls else None)


@contextlib.asynccontextmanager
async def transport(folder: Path, tls: ssl.SSLContext | None, limits: dict[str, Any]) -> AsyncIterator[Opened]:
    observer = RecordingObserver()
    heard: list[object] = []
    made = TcpTransport(NodeId("b", 1), cluster="c", listen=("127.0.0.1", 0), peers={"a": ("127.0.0.1", 1)},
                        options=TcpOptions(**limits), observer=observer, server_tls=tls)
    await made.start(lambda sender, message: heard.append((sender, message)))
    try:
        yield Opened(made.address, observer, heard)
    finally:
        await made.close()


@contextlib.asynccontextmanager
async def snapshots(folder: Path, tls: ssl.SSLContext | None, limits: dict[str, Any]) -> AsyncIterator[Opened]:
    observer = RecordingObserver()
    heard: list[object] = []
    with KvStore(str(folder / "follower"), with_worker=False) as store:
        async with SnapshotServer(listen=("127.0.0.1", 0), cluster="c", tls=tls, senders=["a"],
                                  door=DoorLimits(**limits), observer=observer) as server:
            server.add(store.log, store.snapshots, term=1, applied=lambda: -1, installed=store.installed,
                       term_seen=heard.append)
            yield Opened(server.address, observer, heard)


def resident(process: int | str = "self") -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize()


@contextlib.asynccontextmanager
async def recording(address: tuple[str, int]) -> AsyncIterator[tuple[tuple[str, int], bytearray]]:
    """An address that leads to another one, and what is sent there."""
    sent = bytearray()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, record: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(4096):
                sent.extend(data if record else b"")
                writer.write(data)
        writer.close()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*address)
        await asyncio.gather(pass_on(reader, back, record=True), pass_on(there, writer, record=False))

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as proxy:
        host, port = proxy.sockets[0].getsockname()
        yield (host, port), sent


def node_hello(cluster: str, name: str) -> bytes:
    return wire.encode(NodeHello(cluster, NodeId(name, 99)))


def member_hello(cluster: str, name: str) -> bytes:
    return Hello(cluster, name).encode()


DOORS = pytest.mark.parametrize(("door", "hello"), [(transport, node_hello), (snapshots, member_hello)],
                                ids=["catalog", "snapshots"])
Opening = Callable[[Path, ssl.SSLContext | None, dict[str, Any]], contextlib.AbstractAsyncContextManager[Opened]]
Greeting = Callable[[str, str], bytes]


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 60))


@DOORS
@pytest.mark.parametrize(("first", "why"), [
    (b"GET / HTTP/1.1\r\n\r\n", "1024"), ((MAX_HELLO_BYTES + 1).to_bytes(4, "little"), "1024"),
    ((80_000_000).to_bytes(4, "little"), "1024"), (None, "cluster"), (b"\x08\0\0\0whatever", "Damaged")])
def test_who_does_not_say_hello_is_told_nothing(door: Opening, hello: Greeting, first: bytes | None, why: str,
                                                tmp_path: Path) -> None:
    async def story() -> None:
        async with door(tmp_path, None, {}) as opened:
            reader, writer = await opened.connect()
            writer.write(hello("another cluster", "a") if first is None else first)
            writer.write(PUBLISH)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            await opened.ended(why if first is not None else "another cluster")
            writer.close()
            assert opened.heard == []

    run(story)


@DOORS
@pytest.mark.parametrize(("limits", "greets", "more", "why"), [
    ({"hello_seconds": 0.05}, False, b"", "hello_seconds=0.05"),
    ({"hello_seconds": 0.05}, False, b"\x20", "hello_seconds=0.05"),
    ({"idle_seconds": 0.05}, True, b"", "idle_seconds=0.05"),
    ({"frame_seconds": 0.05}, True, (1000).to_bytes(4, "little") + b"x", "frame_seconds=0.05"),
    ({"max_connections": 1}, True, None, "max_connections=1")])
def test_every_wait_has_an_end(door: Opening, hello: Greeting, limits: dict[str, Any], greets: bool,
                               more: bytes | None, why: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with door(tmp_path, None, limits) as opened:
            _, writer = await opened.connect()
            if greets:
                writer.write(hello("c", "a"))
            if more is None:
                _, second = await opened.connect()
                await opened.ended(why)
                second.close()
            else:
                writer.write(more)
                await opened.ended(why)
            writer.close()

    run(story)


@DOORS
def test_in_plain_text_a_second_line_under_a_connected_nodes_name_is_refused(door: Opening, hello: Greeting,
                                                                             tmp_path: Path) -> None:
    async def story() -> None:
        async with door(tmp_path, None, {"hello_seconds": 1.0}) as opened:
            reader, writer = await opened.connect()
            writer.write(hello("c", "a"))
            if hello is node_hello:
                await reader.readexactly(4)
            else:
                writer.write(encode(Offer(Envelope(1, 1, 0), OFFERED, "log")))
                assert isinstance(await read_message(reader), Refusal)
            other, second = await opened.connect()
            second.write(hello("c", "a"))
            assert await other.read() == b""
            await opened.ended("hello_seconds=1.0")
            second.close()
            writer.close()

    run(story)


@DOORS
def test_with_tls_a_node_is_who_its_certificate_says_and_its_newest_line_counts(door: Opening, hello: Greeting,
                                                                                tmp_path: Path) -> None:
    async def story() -> None:
        authority = Authority(tmp_path)
        async with door(tmp_path, authority.context("b", server=True), {}) as opened:
            lines = []
            for name, said, why in [("x", "a", "shows the certificate of 'x'"), ("x", "x", "none of"),
                                    ("a", "x", "none of")]:
                reader, writer = await opened.connect(authority.context(name, server=False))
                writer.write(hello("c", said))
                writer.write(PUBLISH)
                assert await reader.read() == b""
                await opened.ended(why)
                lines.append(writer)
            nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            nobody.load_verify_locations(authority.pem)
            with contextlib.suppress(OSError):
                reader, writer = await opened.connect(nobody)
                lines.append(writer)
                assert await reader.read() == b""
            assert opened.heard == []
            tls = authority.context("a", server=False)
            older, writer = await opened.connect(tls)
            writer.write(hello("c", "a"))
            if hello is node_hello:
                await older.readexactly(4)
            else:
                writer.write(encode(Offer(Envelope(1, 1, 0), OFFERED, "log")))
                assert isinstance(await read_message(older), Refusal)
            newer, second = await opened.connect(tls)
            second.write(hello("c", "a"))
            await older.read()
            second.write(PUBLISH if hello is node_hello else encode(Offer(Envelope(1, 1, 0), OFFERED, "log")))
            while hello is node_hello and not opened.heard:
                await asyncio.sleep(0.005)
            assert hello is node_hello or isinstance(await read_message(newer), Refusal)
            for each in (*lines, writer, second):
                each.close()
                with contextlib.suppress(OSError):
                    await each.wait_closed()

    run(story)


class Unasked:
    """A database that is asked nothing, since no message that a stranger sends may reach it."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: self.calls.append(name)


def test_a_stranger_on_loopback_moves_no_term_and_publishes_no_time(tmp_path: Path) -> None:
    async def story() -> None:
        me, host, observer = NodeId("b", 1), Unasked(), RecordingObserver()
        transport = TcpTransport(me, cluster="c", listen=("127.0.0.1", 0))
        async with CompactionService(me, host, transport, observer=observer) as service:  # type: ignore[arg-type]
            service.elected(5, "a")
            _, writer = await asyncio.open_connection(*transport.address)
            writer.write(node_hello("c", "a"))
            for message in (ReportRequest(EVIL), PublishTime(EVIL, 1 << 62),
                            PublishTime(RoundId(5, NodeId("a", 99), 1), 1 << 62)):
                writer.write(wire.encode(message))
            refused: list[object] = []
            while len(refused) < 3:
                refused = [fields["reason"] for name, fields in observer.events if name == "catalog_message_refused"]
                await asyncio.sleep(0.005)
            assert refused == ["UNKNOWN_TERM", "UNKNOWN_TERM", "UNFOUNDED_TIME"]
            assert (service.node.term, service.node.coordinator, host.calls) == (5, "a", [])
            service.elected(6, "a")
            while service.node.term != 6:
                await asyncio.sleep(0.005)
            writer.close()

    run(story)


@DOORS
@pytest.mark.parametrize("is_guarded", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("said", [b"", (1000).to_bytes(4, "little") + bytes(900), TLS_BEGUN], ids=[
    "nothing", "half a Hello", "half a handshake"])
def test_a_thousand_idle_strangers_cost_little_memory_and_keep_nobody_out(
        door: Opening, hello: Greeting, said: bytes, is_guarded: bool, tmp_path: Path) -> None:
    async def story() -> None:
        authority = Authority(tmp_path)
        tls = authority.context("b", server=True) if is_guarded else None
        count = 1000 if resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 2100 else 300
        async with door(tmp_path, tls, {"hello_seconds": 30.0, "max_connections": count}) as opened:
            before = resident()
            lines = []
            for _ in range(count):
                line = socket.create_connection(opened.address)
                line.sendall(said)
                lines.append(line)
                await asyncio.sleep(0)
            reader, writer = await opened.connect(authority.context("a", server=False) if is_guarded else None)
            writer.write(hello("c", "a"))
            if hello is member_hello:
                writer.write(encode(Offer(Envelope(1, 1, 0), OFFERED, "log")))
            assert await reader.readexactly(4)
            # Both ends of each lie in this process.
            assert resident() - before < 64 << 20
            for line in lines:
                line.close()
            writer.close()

    run(story)


@DOORS
def test_what_ends_among_strangers_leaves_nothing_open(door: Opening, hello: Greeting, tmp_path: Path) -> None:
    async def story() -> None:
        lines: list[socket.socket] = []
        failed: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
        async with door(tmp_path, None, {}) as opened:
            for said in (b"", hello("c", "a"), b"\x20", b"") * 10:
                lines.append(socket.create_connection(opened.address))
                lines[-1].sendall(said)
                await asyncio.sleep(0)
            # The last ones were accepted a moment ago, or not at all.
        for line in lines:
            line.setblocking(False)
            with contextlib.suppress(ConnectionError):
                while line.recv(4096):
                    pass
            line.close()
        assert failed == []
        assert [name for name, _ in opened.observer.events if name.endswith("_failed")] == []

    run(story)


def test_frames_that_are_never_finished_are_bounded_over_all_connections_and_end(tmp_path: Path) -> None:
    async def story() -> None:
        limits = {"frame_seconds": 0.3, "max_bytes_in_flight": 20 << 20, "max_message_bytes": 16 << 20}
        async with transport(tmp_path, None, limits) as opened:
            before = resident()
            lines = []
            for number in range(20):
                _, writer = await opened.connect()
                writer.write(node_hello("c", f"n{number}") + (16 << 20).to_bytes(4, "little"))
                line = writer.get_extra_info("socket").dup()
                line.setblocking(False)
                lines.append((writer, line))
            left = dict.fromkeys(range(20), (16 << 20) - 1)
            # As much as each takes without waiting, again and again, until the time of all of them is over.
            while sum("frame_seconds=0.3" in str(fields) for _, fields in opened.observer.events) < 20:
                for number, (_, line) in enumerate(lines):
                    with contextlib.suppress(OSError):
                        left[number] -= line.send(bytes(min(left[number], 1 << 18)))
                assert resident() - before < 64 << 20
                await asyncio.sleep(0)
            for writer, line in lines:
                line.close()
                writer.close()

    run(story)


def test_nodes_with_certificates_talk_and_a_node_at_a_wrong_address_is_told_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        authority = Authority(tmp_path)
        heard: asyncio.Queue[tuple[str, object]] = asyncio.Queue()
        observer = RecordingObserver()
        nodes = {name: TcpTransport(NodeId(name, 1), cluster="c", listen=("127.0.0.1", 0), observer=observer,
                                    server_tls=authority.context(name, server=True),
                                    client_tls=authority.context(name, server=False)) for name in ("a", "b", "x")}
        for node in nodes.values():
            await node.start(lambda sender, message: heard.put_nowait((sender, message)))
        addresses = {name: node.address for name, node in nodes.items()}
        nodes["b"].set_peers({"a": addresses["a"]})
        nodes["a"].set_peers({"b": addresses["b"], "y": addresses["x"]})
        said = PublishTime(RoundId(1, NodeId("a", 1), 1), 5)
        nodes["a"].send("b", said)
        assert await heard.get() == ("a", said)
        nodes["a"].send("y", said)
        while not any(name == "catalog_message_lost" and fields["to"] == "y" and "'y'" in fields["reason"]
                      for name, fields in observer.events):
            await asyncio.sleep(0.005)
        assert heard.empty()
        nodes["b"].set_peers({"x": addresses["x"]})
        nodes["a"].send("b", said)
        while not any(name == "catalog_connection_ended" and "'a' is none of the peers" in fields["error"]
                      for name, fields in observer.events):
            await asyncio.sleep(0.005)
        for node in nodes.values():
            await node.close()
        assert heard.empty()

    run(story)


def test_a_snapshot_goes_over_tls_from_the_leader_alone(tmp_path: Path) -> None:
    async def story() -> None:
        authority, rng = Authority(tmp_path), random.Random(1)
        with (KvStore(str(tmp_path / "leader"), with_worker=False) as leader,
              KvStore(str(tmp_path / "follower"), with_worker=False) as follower):
            leader.write([Put(f"k{rng.randrange(9)}", rng.randbytes(50)) for _ in range(100)])
            leader.snapshot()
            async with SnapshotServer(listen=("127.0.0.1", 0), cluster="c", senders=["a"],
                                      tls=authority.context("b", server=True)) as server:
                server.add(follower.log, follower.snapshots, term=1, applied=lambda: follower.machine.applied,
                           installed=follower.installed)
                client = SnapshotClient(server.address, cluster="c", me="a", follower="b",
                                        tls=authority.context("a", server=False))
                outcome = await client.send(leader.log, leader.snapshots, term=1)
                assert isinstance(outcome, Done), outcome
            assert follower.items() == leader.items()

    run(story)


@pytest.mark.parametrize("is_guarded", [False, True], ids=["plain", "tls"])
def test_a_transfer_that_is_sent_again_as_it_was_changes_nothing(is_guarded: bool, tmp_path: Path) -> None:
    """Byte for byte, as whoever sees the network can; through TLS it is nothing that anybody has said."""
    async def story() -> None:
        authority, rng, observer = Authority(tmp_path), random.Random(1), RecordingObserver()
        tls = {is_server: authority.context("b" if is_server else "a", server=is_server) if is_guarded else None
               for is_server in (False, True)}
        installed: list[SnapshotManifest] = []

        async def said(address: tuple[str, int], data: bytes) -> None:
            reader, writer = await asyncio.open_connection(*address)
            with contextlib.suppress(OSError):
                writer.write(data)
                writer.write_eof()
                await reader.read()
            writer.close()

        with (KvStore(str(tmp_path / "leader"), with_worker=False) as leader,
              KvStore(str(tmp_path / "follower"), with_worker=False) as follower):
            leader.write([Put(f"k{rng.randrange(9)}", rng.randbytes(50)) for _ in range(100)])
            leader.snapshot()

            def install(manifest: SnapshotManifest, state: StateReader) -> None:
                installed.append(manifest)
                follower.installed(manifest, state)

            async with SnapshotServer(listen=("127.0.0.1", 0), cluster="c", senders=["a"], tls=tls[True],
                                      observer=observer) as server:
                server.add(follower.log, follower.snapshots, term=1, applied=lambda: follower.machine.applied,
                           installed=install)
                async with recording(server.address) as (address, sent):
                    client = SnapshotClient(address, cluster="c", me="a", follower="b", tls=tls[False])
                    assert isinstance(await client.send(leader.log, leader.snapshots, term=1), Done)
                before = follower.items()
                for _ in range(3):
                    await said(server.address, bytes(sent))
            assert (len(installed), follower.items()) == (1, before)
            follower.log.audit()
            assert is_guarded is any(name == "snapshot_line_ended" for name, _ in observer.events)

    run(story)


def test_a_term_has_one_sender(tmp_path: Path) -> None:
    async def story() -> None:
        with KvStore(str(tmp_path / "follower"), with_worker=False) as store:
            async with SnapshotServer(listen=("127.0.0.1", 0)) as server:
                server.add(store.log, store.snapshots, term=1, applied=lambda: -1, installed=store.installed)
                answers = []
                for name in ("a", "x"):
                    reader, writer = await asyncio.open_connection(*server.address)
                    writer.write(Hello("", name).encode() + encode(Offer(Envelope(1, 1, 5), OFFERED, "log")))
                    answers.append(await read_message(reader))
                    writer.close()
                first, second = answers
                assert isinstance(first, Progress)
                assert isinstance(second, Refusal)
                assert second.reason is AbortReason.OTHER_SENDER

    run(story)


def test_tls_that_asks_for_no_certificate_is_refused(tmp_path: Path) -> None:
    open_to_all = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with pytest.raises(InvalidInput, match="asks for no certificate"):
        TcpTransport(NodeId("a", 1), cluster="c", listen=("10.0.0.1", 0), server_tls=open_to_all)


def test_bytes_in_flight_are_bounded_over_all_connections() -> None:
    async def story() -> None:
        room = BytesInFlight(100)
        async with contextlib.AsyncExitStack() as first, contextlib.AsyncExitStack() as second:
            await first.enter_async_context(room.take(60))
            waiting = [asyncio.create_task(stack.enter_async_context(room.take(50))) for stack in (first, second)]
            await asyncio.sleep(0)
            assert not any(task.done() for task in waiting)
            await first.aclose()
            await asyncio.gather(*waiting)
            alone = asyncio.create_task(first.enter_async_context(room.take(1000)))
            await first.aclose()
            await asyncio.sleep(0)
            assert not alone.done()
            await second.aclose()
            await alone

    run(story)


def test_a_few_bytes_that_stand_for_a_million_tables_are_checked_before_they_are_made() -> None:
    hosted = HostedPartitions.from_masks(dict.fromkeys(range(1000), 1))
    frame = wire.encode(ReportAnswer(RoundId(1, NodeId("a", 1), 1), NodeReport(
        node=NodeId("b", 1), hosted=hosted, transactions_from=1)))
    found = wire.decode(frame[4:])
    assert isinstance(found, ReportAnswer)
    assert found.report.hosted == hosted
    # One bitmap, one run: table 0, then how many, a varint; one bitmap of one byte.
    head = encode_varints([1, 1, 1, 0, MAX_TABLES + 1, 0])
    with pytest.raises(CorruptData, match="exceeds the limit"):
        HostedPartitions.from_bytes(len(head).to_bytes(4, "little") + head + b"\x01")
