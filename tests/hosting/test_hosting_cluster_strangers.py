# SPDX-License-Identifier: Apache-2.0
"""The example of a catalog's cluster, over TLS, among strangers and beside a member that lies."""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from compactlib.catalog import NodeId, NodeReport, TcpTransport
from compactlib.catalog.model.partitions import HostedPartitions
from compactlib.catalog.model.timestamp import HIGHEST
from compactlib.catalog.model.values import Culprit, Factor, Floor
from compactlib.catalog.round.messages import (
    Hello,
    Message,
    PublishAnswer,
    PublishTime,
    Refusal,
    ReportAnswer,
    ReportRequest,
    RoundId,
)
from compactlib.catalog.round.report import RoundReport
from compactlib.catalog.transport import wire
from compactlib.kv import SqliteStore
from examples.catalog_cluster import NAME, PARTITIONS, Cluster, Node, context, wait_until
from tests.harness.ports import free_ports
from tests.hosting.certificates import Authority
from tests.hosting.test_hosting_strangers import recording, resident

pytestmark = pytest.mark.cluster

HIGHEST_TERM = (1 << 64) - 1
EVIL = RoundId(HIGHEST_TERM, NodeId("n3", 1), 1)
IDLE = 1000
NAMES = ("n1", "n2", "n3")


def issued(folder: Path, *names: str) -> Authority:
    """An authority, with certificates of these nodes in its folder."""
    folder.mkdir()
    authority = Authority(folder)
    for name in names:
        authority.context(name, server=False)
    return authority


# --- strangers ------------------------------------------------------------------------------------------------------


class Strangers:
    """What those do who have no certificate of a member of their own; each is told nothing.

    Args:
        port: of a node.
        folder: for the certificates of an authority that the node does not know.
        known: the node's own authority, whose certificates are in other hands.
    """

    def __init__(self, port: int, folder: Path, known: Authority) -> None:
        self.port = port
        self.known = known
        self.rng = random.Random(port)
        other = issued(folder, "n2").folder
        no_certificate, wrong_authority = anonymous(), anonymous()
        wrong_authority.load_cert_chain(other / "n2.pem", other / "n2.key")
        no_member = certified(known, "x")
        self.said: list[tuple[ssl.SSLContext | None, bytes]] = [
            (None, greeting("n2")), (None, b"GET / HTTP/1.1\r\n\r\n"), (None, b"\x16\x03\x01\xff\xff" + bytes(500)),
            (no_certificate, greeting("n2")), (wrong_authority, greeting("n2")), (no_member, greeting("x")),
            (no_member, greeting("n2"))]

    async def all(self) -> None:
        """One after the other, and the slow ones beside them."""
        slow = [asyncio.create_task(self.slowly()) for _ in range(20)]
        for tls, said in self.said:
            await self.says(tls, said)
        for _ in range(200):
            await self.says(None, self.rng.randbytes(self.rng.randint(1, 500)))
        sent = await self.recorded()
        for _ in range(3):
            await self.says(None, sent)
        await asyncio.gather(*slow)

    async def says(self, tls: ssl.SSLContext | None, said: bytes) -> None:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=tls)
            try:
                writer.write(said)
                if tls is None:
                    writer.write_eof()
                found = await reader.read()
                # An alert of TLS is all that there may be.
                assert found == b"" or (tls is None and found[0] == 0x15), found
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    async def slowly(self) -> None:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            for byte in b"\x16\x03\x01\x02\x00\x01" + bytes(506):
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.05)

    async def recorded(self) -> bytes:
        """What a member sent, byte for byte: it is what a stranger on the way can see."""
        async with recording(("127.0.0.1", self.port)) as (address, sent):
            reader, writer = await asyncio.open_connection(*address, ssl=certified(self.known, "n3"))
            writer.write(greeting("n3"))
            assert isinstance(wire.decode((await reader.readexactly(4)) and await reader.read(1000)), Hello)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        return bytes(sent)


def anonymous() -> ssl.SSLContext:
    """Takes every certificate, and shows none."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    return made


def certified(known: Authority, name: str) -> ssl.SSLContext:
    """Shows the certificate of a node, to whoever it is."""
    made = context(known.folder, name, server=False)
    made.check_hostname = False
    return made


def greeting(name: str) -> bytes:
    """A Hello, and what a coordinator of the highest term would say."""
    said = Hello(NAME, NodeId(name, 9)), ReportRequest(EVIL), PublishTime(EVIL, 1 << 62)
    return b"".join(wire.encode(message) for message in said)


def test_strangers_change_nothing_and_the_cluster_goes_on_compacting(tmp_path: Path) -> None:
    known = issued(tmp_path / "certificates", *NAMES, "x")
    cluster = Cluster(tmp_path, 3, free_ports(3), known.folder)
    try:
        for name in cluster.names:
            cluster.start(name)
        wait_until(lambda: cluster.size()[0] > 1, "the log to shrink")
        before = {name: resident(process.pid) for name, process in cluster.processes.items()}

        def cost_little() -> None:
            for name, process in cluster.processes.items():
                assert resident(process.pid) - before[name] < 64 << 20, name

        port = cluster.ports["n1"]
        with contextlib.ExitStack() as idle:
            for _ in range(min(IDLE, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200)):
                idle.enter_context(socket.create_connection(("127.0.0.1", port)))
            cost_little()
            earliest = cluster.size()[0]
            asyncio.run(Strangers(port, tmp_path / "others", known).all())
            wait_until(lambda: cluster.size()[0] > earliest, "the log to shrink among strangers")
            cost_little()
        # The highest term that was claimed is nobody's: the next coordinator has the next one.
        killed = cluster.kill_leader()
        cluster.restart(killed)
        earliest = cluster.size()[0]
        wait_until(lambda: cluster.size()[0] > earliest, "the log to shrink in the next term")
        assert "Traceback" not in "".join(path.read_text() for path in cluster.output.values())
    finally:
        cluster.close()


# --- a member that lies ---------------------------------------------------------------------------------------------


class Liar:
    """The node n3, with a certificate of its own, which says what the test has it say.

    Args:
        cluster: whose member it is.
        certificates: the folder of them.
    """

    def __init__(self, cluster: Cluster, certificates: Path) -> None:
        self.me = NodeId("n3", 1)
        self.lie: Callable[[], NodeReport] | None = None
        self.heard: list[Message] = []
        self.answers: list[ReportAnswer] = []
        peers = {name: ("127.0.0.1", port) for name, port in cluster.ports.items() if name != "n3"}
        self.transport = TcpTransport(
            self.me, cluster=NAME, listen=("127.0.0.1", cluster.ports["n3"]), peers=peers,
            server_tls=context(certificates, "n3", server=True), client_tls=context(certificates, "n3", server=False))

    def receive(self, sender: str, message: Message) -> None:
        self.heard.append(message)
        if isinstance(message, ReportRequest) and self.lie is not None:
            self.answers.append(ReportAnswer(message.round, self.lie()))
            self.transport.send(sender, self.answers[-1])
        elif isinstance(message, PublishTime):
            self.transport.send(sender, PublishAnswer(message.round, self.me))


class Story:
    """Two nodes of the example in this process, and the liar.

    Args:
        folder: where their store lies.
    """

    def __init__(self, folder: Path) -> None:
        certificates = issued(folder / "certificates", *NAMES).folder
        self.cluster = Cluster(folder, 3, free_ports(3), certificates)
        self.nodes = {name: Node(name, 1, SqliteStore(self.cluster.path, synchronous="normal"), self.cluster.ports,
                                 certificates) for name in ("n1", "n2")}
        self.liar = Liar(self.cluster, certificates)
        self.hosted = HostedPartitions.of({table: range(PARTITIONS) for table in self.nodes["n1"].tables})

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Story]:
        await self.liar.transport.start(self.liar.receive)
        tasks = [asyncio.create_task(node.run()) for node in self.nodes.values()]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self.liar.transport.close()
            for node in self.nodes.values():
                node.service.close()
                node.store.close()
            self.cluster.close()

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await asyncio.sleep(0.02)

    @property
    def earliest(self) -> int:
        return self.cluster.size()[0]

    async def shrinks(self) -> None:
        """History is cut once more."""
        before = self.earliest
        await self.until(lambda: self.earliest > before)

    def says(self, transactions_from: int, *floors: Floor) -> None:
        """What the liar reports from now on."""
        self.liar.lie = lambda: NodeReport(node=self.liar.me, floors=floors, hosted=self.hosted,
                                           transactions_from=transactions_from)

    async def rounds(self, count: int) -> RoundReport:
        """The last of some more rounds in which the liar was believed to have reported."""
        seen: list[RoundReport] = []
        while len(seen) <= count:  # the first one may have begun before
            found = self.nodes["n1"].compaction.last_round
            if found is not None and found not in seen and found.plan is not None and self.liar.me in found.answered:
                seen.append(found)
            await asyncio.sleep(0.02)
        return seen[-1]


def limiting(report: RoundReport) -> dict[Factor, set[str]]:
    """The nodes that a plan names, by what they need."""
    assert report.plan is not None
    return {limit.factor: {culprit.node for culprit in limit.culprits} for limit in report.plan.explanation.limits}


def test_a_member_that_lies_about_its_needs_only_holds_the_cut_back_and_is_named(tmp_path: Path) -> None:
    async def story() -> None:
        async with Story(tmp_path).running() as one:
            needs_nothing = HIGHEST, Floor(Factor.LOW_WATERMARK, HIGHEST)
            one.says(*needs_nothing)
            await one.shrinks()

            # A clock far ahead, no needs: what another node needs stays.
            transactions = one.nodes["n2"].transactions
            held = transactions.begin()
            await one.until(lambda: one.cluster.size()[1] > held.version + 3)
            last = await one.rounds(3)
            assert one.earliest <= held.version
            assert "n2" in limiting(last)[Factor.ACTIVE_TRANSACTIONS]
            transactions.end(held)
            await one.until(lambda: one.earliest > held.version)

            # A clock far behind; a need from the beginning; another one's, as it says.
            beginning = one.nodes["n1"].service.history.at(one.nodes["n1"].service.clock.present()).activation
            for factor, lie in (
                    (Factor.ACTIVE_TRANSACTIONS, (1,)),
                    (Factor.ACTIVE_TRANSACTIONS, (beginning,)),
                    (Factor.LOW_WATERMARK, (HIGHEST, Floor(Factor.LOW_WATERMARK, 1))),
                    (Factor.RAFT_RECOVERY, (HIGHEST, Floor(Factor.RAFT_RECOVERY, 0, Culprit(node="n2", owner="it"))))):
                one.says(*lie)
                last = await one.rounds(3)
                before = one.earliest
                assert limiting(last)[factor] == {"n3"}, last.plan
                last = await one.rounds(2)
                assert one.earliest == before
                one.says(*needs_nothing)
                await one.shrinks()

    asyncio.run(asyncio.wait_for(story(), 200))


def test_a_member_that_says_that_it_coordinates_moves_no_term_and_publishes_no_time(tmp_path: Path) -> None:
    async def story() -> None:
        async with Story(tmp_path).running() as one:
            one.says(HIGHEST)
            await one.shrinks()
            lies: list[Message] = [
                ReportRequest(EVIL), PublishTime(EVIL, 1 << 62), ReportRequest(RoundId(1, one.liar.me, 7)),
                PublishTime(RoundId(1, one.liar.me, 7), 1 << 62),
                PublishTime(RoundId(1, NodeId("n1", 1), 9_999), 1 << 62),
                ReportAnswer(RoundId(1, NodeId("n1", 1), 9_999), NodeReport(node=NodeId("n2", 1), transactions_from=1)),
                *one.liar.answers, *(heard for heard in one.liar.heard if isinstance(heard, PublishTime))]
            before = len(one.liar.heard)
            for name in one.nodes:
                for lie in lies:
                    one.liar.transport.send(name, lie)
            # Each node has refused the claim of a second coordinator, which came after the others.
            await one.until(lambda: {heard.node.name for heard in one.liar.heard[before:]
                                     if isinstance(heard, Refusal)} == {"n1", "n2"})
            await one.rounds(2)
            for node in one.nodes.values():
                assert (node.compaction.node.term, node.compaction.node.coordinator) == (1, "n1")
                with node.store.scan(b"times") as times:
                    assert all(int(entry.value) <= node.service.clock.now() for entry in times)
            await one.shrinks()

    asyncio.run(asyncio.wait_for(story(), 200))
