# SPDX-License-Identifier: Apache-2.0
"""The edge around a node: rounds over a real event loop, a host that fails or hangs, and an orderly end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping

import attrs
import pytest

from compactlib.catalog import (
    CatalogPlan,
    CompactionService,
    CutReport,
    NodeId,
    NodeOptions,
    NodeReport,
    Topology,
    ZoneResult,
)
from compactlib.catalog.errors import DeadlinePassed, HostFailed
from compactlib.catalog.model.timestamp import Timestamp
from compactlib.catalog.round.messages import Message
from compactlib.catalog.round.report import PublicationStats, RoundReport
from compactlib.catalog.transport.interface import Receive
from compactlib.catalog.transport.memory import MemoryHub, MemoryTransport
from compactlib.errors import Busy, Closed, Conflict, InvalidInput, StorageError
from compactlib.outcome import Done, Failed, Skipped
from compactlib.runtime import RecordingObserver
from tests.catalog.round.protocol import CUT, PLAN, report_of

OPTIONS = NodeOptions(interval_seconds=None, retry_seconds=0.05)


@attrs.define
class Host:
    """A host that does as it is told."""

    name: str
    fails: str = ""
    error: Exception = attrs.field(factory=lambda: OSError("disk"))
    hangs: str = ""
    calls: list[str] = attrs.field(factory=list)
    let_go: threading.Event = attrs.field(factory=threading.Event)

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.hangs == name:
            self.let_go.wait(30)
        if self.fails == name:
            raise self.error

    def report(self) -> NodeReport:
        self._called("report")
        return report_of(self.name)

    def zones(self, since: Timestamp) -> Mapping[int, int]:
        self._called("zones")
        return {1: 2, 2: 3}

    def publish(self, zone: int, partitions: int, time: Timestamp) -> ZoneResult:
        self._called("publish")
        return ZoneResult(zone, published=partitions)

    def confirm(self, topology: Topology) -> bool:
        self._called("confirm")
        return True

    def plan(self, reports: tuple[NodeReport, ...], topology: Topology, term: int) -> CatalogPlan:
        self._called("plan")
        return PLAN

    def compact(self, plan: CatalogPlan) -> Done[CutReport] | Skipped | Failed:
        self._called("compact")
        return Done(CUT)


class Cluster:
    """Services of these hosts, joined in memory; the first one coordinates."""

    def __init__(self, *hosts: Host, options: NodeOptions = OPTIONS) -> None:
        self.hosts = hosts
        self.observer = RecordingObserver()
        hub = MemoryHub()
        self.services = [CompactionService(NodeId(host.name), host, hub.transport(host.name), options=options,
                                           observer=self.observer) for host in hosts]

    async def __aenter__(self) -> CompactionService:
        topology = Topology.of(*(host.name for host in self.hosts))
        for service in self.services:
            await service.start()
            service.topology_is(topology)
        for service in self.services:
            service.elected(1, self.hosts[0].name)
        return self.services[0]

    async def __aexit__(self, *_: object) -> None:
        for host in self.hosts:
            host.let_go.set()
        for service in self.services:
            await service.stop()


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 60))


async def round_of(service: CompactionService) -> RoundReport:
    """The report of a round, whatever its processes came to."""
    outcome = await service.compact_now()
    report = service.last_round
    assert report is not None
    assert outcome == (Failed(report.errors[0], outcome.changed) if isinstance(outcome, Failed) else Done(report))
    return report


def test_three_nodes_run_a_round() -> None:
    async def story() -> None:
        cluster = Cluster(Host("a"), Host("b"), Host("c"))
        async with cluster as service:
            report = await round_of(service)
            assert report.compaction == Done(CUT)
            assert report.publication == Done(PublicationStats(time=50, nodes=3, published=15, skipped=0))
            assert service.last_round == report
            assert "catalog_round" in [name for name, _ in cluster.observer.events]
            assert repr(service).startswith("CompactionService(CatalogNode(a#1, coordinator")
            followers = cluster.services[1:]
            assert [await one.compact_now() for one in followers] == [
                Skipped("b is not the coordinator; a is"), Skipped("c is not the coordinator; a is")]

    run(story)


@pytest.mark.parametrize("error", [OSError("disk"), Conflict("busy")])
@pytest.mark.parametrize("call", ["report", "zones", "publish", "confirm", "plan", "compact"])
def test_a_host_that_fails_fails_what_needs_it(call: str, error: Exception) -> None:
    async def story() -> None:
        async with Cluster(Host("a", fails=call, error=error), Host("b")) as service:
            report = await round_of(service)
            told = "OSError: disk" if isinstance(error, OSError) else "busy"
            if call in ("plan", "compact"):
                assert isinstance(report.compaction, Failed)
                assert isinstance(report.compaction.error, HostFailed if isinstance(error, OSError) else Conflict)
                assert isinstance(report.publication, Done)
            elif call == "report":
                assert told in str(report.missing[0])
            elif call == "confirm":
                assert isinstance(report.publication, Failed)
                assert isinstance(report.compaction, Done)
            else:
                assert isinstance(report.publication, Done)
                assert told in str(report.publication.stats.failures[0])
                assert report.publication.stats.published == 5

    run(story)


@pytest.mark.parametrize("call", ["report", "zones", "publish", "confirm", "plan", "compact"])
def test_a_host_that_hangs_is_not_waited_for(call: str) -> None:
    waits = ("collect_seconds", "decide_seconds", "write_seconds", "publish_seconds", "report_seconds", "zones_seconds")
    options = attrs.evolve(OPTIONS, **dict.fromkeys(waits, 0.3))

    async def story() -> None:
        async with Cluster(Host("a", hangs=call), Host("b"), options=options) as service:
            report = await round_of(service)
            assert report.errors or report.missing or call in ("zones", "publish")
            if call in ("plan", "compact"):
                assert isinstance(report.errors[0], DeadlinePassed)

    run(story)


@pytest.mark.parametrize(("cut", "fails", "changed"), [
    (Failed(Conflict("refused"), "unknown"), "", "unknown"),
    (Failed(Conflict("refused"), "partly"), "", "partly"),
    (Failed(Conflict("refused")), "", "partly"),
    (Failed(Conflict("refused")), "confirm", "no"),
    (None, "confirm", "unknown"),
])
def test_a_round_that_fails_says_what_has_changed(cut: Failed | None, fails: str, changed: str) -> None:
    """The publication is done unless the topology cannot be confirmed."""
    class Cuts(Host):
        def compact(self, plan: CatalogPlan) -> Done[CutReport] | Skipped | Failed:
            if cut is None:
                raise OSError("in the midst of it, perhaps")
            return cut

    async def story() -> None:
        async with Cluster(Cuts("a", fails=fails), Host("b")) as service:
            outcome = await service.compact_now()
            assert isinstance(outcome, Failed)
            assert outcome.changed == changed

    run(story)


def test_who_asks_during_a_round_gets_the_next_one() -> None:
    async def story() -> None:
        async with Cluster(Host("a"), Host("b")) as service:
            assert service.node.running is not None
            first = service.node.running.number
            reports = await asyncio.gather(round_of(service), round_of(service))
            assert [report.round.number for report in reports] == [first + 1] * 2

    run(story)


def test_who_waits_is_told_when_another_node_is_elected_or_the_service_stops() -> None:
    async def story() -> None:
        host = Host("a", hangs="report")
        async with Cluster(host, Host("b")) as service:
            waiting = asyncio.ensure_future(service.compact_now())
            await asyncio.sleep(0)
            await asyncio.to_thread(service.elected, 2, "b")
            assert await waiting == Skipped("a stopped being the coordinator before the round ended")
            service.elected(3, "a")
            again = asyncio.ensure_future(service.compact_now())
            await asyncio.sleep(0)
            await service.stop(wait_seconds=0.01)  # whether or not a call of the host hangs
            assert isinstance(await again, Skipped)
            calls: list[Callable[[], None]] = [service.watermark_moved, lambda: service.elected(9, "a"),
                                               lambda: service.topology_is(Topology.of("a"))]
            for call in calls:
                with pytest.raises(Closed):
                    call()
            with pytest.raises(Closed):
                await service.compact_now()
            host.let_go.set()
            assert isinstance(await service.stop(), Done)
            with pytest.raises(Closed):
                await service.start()
            failures = service.failures
            with pytest.raises(Closed):
                await service.run_pending()
            assert service.failures == failures  # a host that asks too late is no surprise of the service's

    run(story)


def test_a_moved_watermark_starts_a_round() -> None:
    async def story() -> None:
        async with Cluster(Host("a")) as service:
            first = await round_of(service)
            service.watermark_moved()
            while service.last_round == first:
                await asyncio.sleep(0.01)
            assert service.last_round is not None
            assert service.last_round.triggers == ("low watermark moved",)

    run(story)


def test_bad_arguments_have_names() -> None:
    with pytest.raises(InvalidInput, match="host_threads"):
        CompactionService(NodeId("a"), Host("a"), MemoryHub().transport("a"), host_threads=0)
    service = CompactionService(NodeId("a"), Host("a"), MemoryHub().transport("a"))
    with pytest.raises(Closed):
        service.watermark_moved()
    with pytest.raises(InvalidInput):
        service.elected(0, "a")


class Failing(MemoryTransport):
    """A transport of a host's own that raises once, against its promise."""

    failing = False

    def send(self, to: str, message: Message) -> None:
        if self.failing:
            self.failing = False
            raise RuntimeError("a bug of the host's")
        super().send(to, message)


def test_what_nobody_expected_is_kept_and_told_and_the_node_goes_on() -> None:
    async def story() -> None:
        observer = RecordingObserver()
        transport = Failing(MemoryHub(), "a")
        service = CompactionService(NodeId("a"), Host("a"), transport, options=OPTIONS, observer=observer)
        async with service:
            service.topology_is(Topology.of("a", "b"))
            service.elected(1, "a")
            transport.failing = True
            outcome = await service.compact_now()
            assert isinstance(outcome, Failed)
            assert isinstance(outcome.error, HostFailed)
            assert "RuntimeError" in str(outcome.error)
            assert isinstance(service.last_error, RuntimeError)
            assert service.failures == 1
            assert ("catalog_node_failed", {"what": "Send", "error": "RuntimeError", "message": "a bug of the host's",
                                            "failures": 1}) in observer.events
            service.topology_is(attrs.evolve(Topology.of("a"), epoch=2))
            assert isinstance(await service.compact_now(), Done)

    run(story)


def test_an_observer_that_raises_breaks_no_round() -> None:
    class Raising(RecordingObserver):
        def event(self, name: str, fields: Mapping[str, object]) -> None:
            raise ZeroDivisionError(name)

    async def story() -> None:
        service = CompactionService(NodeId("a"), Host("a"), MemoryHub().transport("a"), options=OPTIONS,
                                    observer=Raising())
        async with service:
            service.topology_is(Topology.of("a"))
            service.elected(1, "a")
            assert isinstance(await service.compact_now(), Done)
            assert service.last_error is None

    run(story)


def test_starting_and_stopping_again_is_no_harm_and_no_task_is_left() -> None:
    async def story() -> None:
        before = asyncio.all_tasks()
        cluster = Cluster(Host("a", hangs="report"), Host("b"))
        async with cluster as service:
            await service.start()
            asking = asyncio.ensure_future(service.compact_now())
            while not cluster.hosts[0].calls:
                await asyncio.sleep(0)
            stops = await asyncio.gather(service.stop(wait_seconds=0.01), service.stop(wait_seconds=0.01))
            for stopped in stops:  # a call of the host hangs: it is waited for, for so long
                assert isinstance(stopped, Failed)
                assert isinstance(stopped.error, Busy)
            assert isinstance(await asking, Skipped)
            cluster.hosts[0].let_go.set()
            assert isinstance(await service.stop(), Done)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == before

    run(story)


def test_a_transport_that_cannot_listen_leaves_a_service_that_can_be_started_later() -> None:
    class Refusing(MemoryTransport):
        refusing = True

        async def start(self, receive: Receive) -> None:
            if self.refusing:
                raise StorageError(operation="listen on", path="127.0.0.1:1", errno=98)
            await super().start(receive)

    async def story() -> None:
        transport = Refusing(MemoryHub(), "a")
        service = CompactionService(NodeId("a"), Host("a"), transport, options=OPTIONS)
        with pytest.raises(StorageError):
            await service.start()
        with pytest.raises(Closed):
            service.elected(1, "a")
        transport.refusing = False
        async with service:
            service.elected(1, "a")

    run(story)


HANGING = """
import asyncio, threading
from compactlib.catalog.model.values import NodeId, Topology
from compactlib.catalog.transport.node_service import CompactionService
from compactlib.catalog.transport.memory import MemoryHub

class Hanging:
    def report(self):
        asked.set()
        threading.Event().wait()

    zones = publish = confirm = plan = compact = report

async def main():
    service = CompactionService(NodeId("a", 1), Hanging(), MemoryHub().transport("a"))
    await service.start()
    service.topology_is(Topology.of("a"))
    service.elected(1, "a")
    await asyncio.to_thread(asked.wait)
    print(type(await service.stop(wait_seconds=0.1)).__name__)

asked = threading.Event()
asyncio.run(main())
print("over")
"""


def test_a_call_of_the_host_that_hangs_keeps_no_process_from_ending() -> None:
    done = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.returncode) == ("Failed\nover\n", 0), done.stderr
