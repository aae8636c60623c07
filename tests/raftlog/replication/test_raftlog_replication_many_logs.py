# SPDX-License-Identifier: Apache-2.0
"""Snapshots of many logs between two nodes: one listener, one connection, and no log keeps another back."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from compactlib.errors import Busy, NotFound
from compactlib.hosting import SnapshotClient, SnapshotServer
from compactlib.hosting.transfer.lines import Hello, read_message
from compactlib.hosting.transfer.receiving import ReceivingLog
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog import Entry, LogOptions, RaftLog, RaftLogStore, SegmentLimits, SnapshotFolder, StoreOptions
from compactlib.raftlog.replication.effects import TransferLimits, TransferOutcome
from compactlib.raftlog.replication.errors import AbortReason, TransferAborted
from compactlib.raftlog.replication.messages import Envelope, Offer, Probe, Progress, Refusal, Unknown, Wait
from compactlib.raftlog.replication.wire import encode
from tests.hosting.certificates import Authority
from tests.raftlog.replication.test_raftlog_replication_sockets import BadLine
from tests.raftlog.wrapped_files import UnsyncedFiles

LIMITS = TransferLimits(chunk_bytes=1024, window_bytes=4096, resend_seconds=0.05)


class Node:
    """A store of logs, each with its snapshots."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.files = UnsyncedFiles()
        self.store = RaftLogStore(folder / "store", StoreOptions(background=False, log=LogOptions(
            limits=SegmentLimits(max_entries=64), files=self.files, keep_links_seconds=0.0)))
        self.folder = folder
        self.snapshots: dict[str, SnapshotFolder] = {}
        self.states: dict[str, bytes] = {}
        self.applied: dict[str, int] = {}
        self.terms: list[tuple[str, int]] = []
        for name in names:
            (folder / name).mkdir()
            self.snapshots[name] = SnapshotFolder(folder / name, files=self.files)
            self.log(name).attach(self.snapshots[name])
            self.applied[name] = -1

    def log(self, name: str) -> RaftLog:
        return self.store.log(name)

    def lead(self, name: str, *, entries: int = 200, term: int = 1, state: bytes | None = None,
             live: Sequence[int] | None = None) -> None:
        """Give a log entries and a snapshot of them."""
        log = self.log(name)
        first = max(log.last_index + 1, 1)
        log.append_run(first, term, [b"%s %d" % (name.encode(), index) for index in range(first, first + entries)])
        last = log.last_index
        self.states[name] = random.Random(name).randbytes(9000) if state is None else state
        log.snapshot(last, range(1, last, 7) if live is None else live, [self.states[name]])
        self.applied[name] = last

    def serve(self, server: SnapshotServer, name: str, **changes: Any) -> ReceivingLog:
        def installed(meta: Any, state: Any) -> None:
            self.states[name] = b"".join(state.pieces())
            self.applied[name] = meta.index

        return server.add(self.log(name), self.snapshots[name], **{
            "term": 1, "applied": lambda: self.applied[name], "installed": installed,
            "term_seen": lambda term: self.terms.append((name, term)), **changes})

    def check(self, leader: Node, *names: str) -> None:
        for name in names:
            log, theirs = self.log(name), leader.log(name)
            assert log.state == theirs.state
            assert self.states[name] == leader.states[name]
            for index in log.state.live:
                assert isinstance(log.read(index), Entry)
                assert log.read(index) == theirs.read(index)
            log.audit()
            self.snapshots[name].audit()


@contextlib.contextmanager
def nodes(folder: Path, names: Sequence[str]) -> Any:
    for name in ("leader", "follower"):
        (folder / name).mkdir()
    leader, follower = Node(folder / "leader", names), Node(folder / "follower", names)
    with leader.store, follower.store:
        yield leader, follower


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 600))


async def send_all(client: SnapshotClient, leader: Node, names: Sequence[str], term: int = 1) -> list[TransferOutcome]:
    return await asyncio.gather(*(client.send(leader.log(name), leader.snapshots[name], term=term) for name in names))


def reason_of(outcome: TransferOutcome) -> AbortReason:
    assert isinstance(outcome, Failed), outcome
    assert isinstance(outcome.error, TransferAborted)
    return outcome.error.reason


NAMES = [f"log-{number}" for number in range(12)]


class CountingLine(BadLine):
    """Passes connections on, counts them, and cuts none."""

    def __init__(self, port: int) -> None:
        super().__init__(port, random.Random(1))
        self.budget = [1 << 40, 1 << 40]
        self.rng.random = lambda: 0.0  # type: ignore[method-assign]
        self.connections = 0

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await super().accept(reader, writer)


@pytest.mark.parametrize("is_guarded", [False, True], ids=["plain", "tls"])
def test_all_logs_of_a_store_go_over_one_connection_to_one_listener(is_guarded: bool, tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    def tls(name: str, *, server: bool) -> Any:
        return authority.context(name, server=server) if is_guarded else None

    async def story() -> None:
        with nodes(tmp_path, NAMES) as (leader, follower):
            for name in NAMES:
                leader.lead(name)
            server = SnapshotServer(listen=("127.0.0.1", 0), cluster="c", limits=LIMITS, tls=tls("b", server=True))
            taking = [follower.serve(server, name) for name in NAMES]
            async with server:
                line = CountingLine(server.address[1])
                proxy = await asyncio.start_server(line.accept, "127.0.0.1", 0)
                client = SnapshotClient(proxy.sockets[0].getsockname()[:2], cluster="c", me="a", follower="b",
                                        limits=LIMITS, tls=tls("a", server=False), max_transfers=5)
                outcomes = await send_all(client, leader, NAMES)
                assert [type(outcome) for outcome in outcomes] == [Done] * len(NAMES)
                assert line.connections == 1
                assert [type(await log.next_outcome()) for log in taking] == [Done] * len(NAMES)
                # What a follower has already, it says so for each.
                assert {type(outcome) for outcome in await send_all(client, leader, NAMES)} == {Skipped}
                proxy.close()
                await asyncio.wait(line.handlers)
            follower.check(leader, *NAMES)

    run(story)


def over_a_line_that_is_cut(folder: Path, seed: int, names: Sequence[str]) -> None:
    async def story() -> None:
        rng = random.Random(seed)
        with nodes(folder, names) as (leader, follower):
            for name in names:
                leader.lead(name)
            server = SnapshotServer(listen=("127.0.0.1", 0), limits=LIMITS)
            for name in names:
                follower.serve(server, name)
            async with server:
                line = BadLine(server.address[1], rng)
                proxy = await asyncio.start_server(line.accept, "127.0.0.1", 0)
                client = SnapshotClient(proxy.sockets[0].getsockname()[:2], limits=LIMITS, rng=rng,
                                        max_transfers=rng.randint(1, 6))
                outcomes = await send_all(client, leader, names)
                assert {type(outcome) for outcome in outcomes} <= {Done, Skipped}, outcomes
                assert line.cuts
                proxy.close()
                await asyncio.wait(line.handlers)
            follower.check(leader, *names)

    run(story)


@pytest.mark.parametrize("seed", range(2))
def test_over_a_line_that_is_cut_all_logs_arrive(seed: int, tmp_path: Path) -> None:
    over_a_line_that_is_cut(tmp_path, seed, NAMES[:6])


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 130))
def test_soak_over_a_line_that_is_cut_all_logs_arrive(seed: int, tmp_path: Path) -> None:
    over_a_line_that_is_cut(tmp_path, seed, NAMES)


def test_a_log_whose_machine_takes_long_keeps_no_other_back(tmp_path: Path) -> None:
    async def story() -> None:
        others, slow = NAMES[:6], NAMES[6:9]
        with nodes(tmp_path, [*others, *slow]) as (leader, follower):
            for name in [*others, *slow]:
                leader.lead(name)
            server, go_on = SnapshotServer(listen=("127.0.0.1", 0), limits=LIMITS), threading.Event()
            for name in others:
                follower.serve(server, name)

            def restore_slowly(name: str) -> Callable[[Any, Any], None]:
                def installed(meta: Any, state: Any) -> None:
                    assert go_on.wait(60)
                    follower.states[name] = b"".join(state.pieces())
                    follower.applied[name] = meta.index
                return installed

            taking = [follower.serve(server, name, installed=restore_slowly(name)) for name in slow]
            async with server:
                client = SnapshotClient(server.address, limits=LIMITS)
                waiting = asyncio.create_task(send_all(client, leader, slow))
                while {log.stage for log in taking} != {"installing"}:
                    await asyncio.sleep(0.005)
                outcomes = await send_all(client, leader, others)
                assert {type(outcome) for outcome in outcomes} == {Done}
                assert not waiting.done()
                assert {log.stage for log in taking} == {"installing"}
                go_on.set()
                assert {type(outcome) for outcome in await waiting} == {Done}
            follower.check(leader, *others, *slow)

    run(story)


def test_more_than_may_go_at_once_go_in_the_order_of_their_calls(tmp_path: Path) -> None:
    async def story() -> None:
        with nodes(tmp_path, NAMES) as (leader, follower):
            server, order = SnapshotServer(listen=("127.0.0.1", 0), limits=LIMITS), list[str]()

            def noting(name: str) -> Callable[[Any, Any], None]:
                return lambda meta, state: order.append(name)

            for name in NAMES:
                leader.lead(name)
                follower.serve(server, name, installed=noting(name))
            async with server:
                client = SnapshotClient(server.address, limits=LIMITS, max_transfers=1)
                assert {type(outcome) for outcome in await send_all(client, leader, NAMES)} == {Done}
            assert order == NAMES

    run(story)


def test_a_log_that_is_not_received_for_is_refused_by_name_and_the_others_go_on(tmp_path: Path) -> None:
    async def story() -> None:
        names = NAMES[:3]
        with nodes(tmp_path, names) as (leader, follower):
            for name in names:
                leader.lead(name)
            server = SnapshotServer(listen=("127.0.0.1", 0), limits=LIMITS)
            follower.serve(server, names[0])
            async with server:
                client = SnapshotClient(server.address, limits=LIMITS)
                first, *unknown = await send_all(client, leader, names)
                assert isinstance(first, Done)
                assert {reason_of(outcome) for outcome in unknown} == {AbortReason.UNKNOWN_LOG}
                assert "receives no snapshots for a log 'log-1'" in str(unknown[0])
                follower.serve(server, names[1])
                assert isinstance((await send_all(client, leader, names[1:2]))[0], Done)
                await server.remove(names[1])
                leader.lead(names[1])
                assert reason_of((await send_all(client, leader, names[1:2]))[0]) is AbortReason.UNKNOWN_LOG
                with pytest.raises(NotFound, match="these were: log-0"):
                    await server.remove(names[1])
                follower.serve(server, names[1])
                assert isinstance((await send_all(client, leader, names[1:2]))[0], Done)
            follower.check(leader, *names[:2])

    run(story)


@pytest.mark.parametrize("is_given_up", [False, True], ids=["awaited", "given up, and awaited again"])
def test_a_log_is_received_for_again_once_what_was_put_in_force_has_ended(is_given_up: bool, tmp_path: Path) -> None:
    """Else two would write to its files."""
    async def story() -> None:
        name = NAMES[0]
        with nodes(tmp_path, [name]) as (leader, follower):
            leader.lead(name)
            server, go_on = SnapshotServer(listen=("127.0.0.1", 0), limits=LIMITS), threading.Event()

            def installed(meta: Any, state: Any) -> None:
                assert go_on.wait(60)
                follower.states[name] = b"".join(state.pieces())
                follower.applied[name] = meta.index

            taking = follower.serve(server, name, installed=installed)
            async with server:
                client = SnapshotClient(server.address, limits=LIMITS)
                waiting = asyncio.create_task(send_all(client, leader, [name]))
                while taking.stage != "installing":
                    await asyncio.sleep(0.005)
                removing = asyncio.create_task(server.remove(name))
                await asyncio.sleep(0)
                if is_given_up:
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(removing, 0.05)
                    removing = asyncio.create_task(server.remove(name))
                with pytest.raises(Busy, match="await remove"):
                    follower.serve(server, name)
                go_on.set()
                await removing
                await waiting
                follower.serve(server, name)
            follower.check(leader, name)

    run(story)


def test_each_log_has_terms_of_its_own(tmp_path: Path) -> None:
    async def story() -> None:
        old, new = NAMES[:2]
        with nodes(tmp_path, [old, new]) as (leader, follower):
            for name in (old, new):
                leader.lead(name)
            server = SnapshotServer(listen=("127.0.0.1", 0), limits=LIMITS)
            follower.serve(server, old, term=3)
            late = follower.serve(server, new, term=9)
            async with server:
                client = SnapshotClient(server.address, limits=LIMITS)
                taken, refused = await send_all(client, leader, [old, new], term=5)
                assert isinstance(taken, Done)
                assert reason_of(refused) is AbortReason.HIGHER_TERM
                assert follower.terms == [(old, 5)]
                await late.observe_term(12)
                outcomes = await send_all(client, leader, [new], term=11)
                assert reason_of(outcomes[0]) is AbortReason.HIGHER_TERM

    run(story)


async def connected(server: SnapshotServer, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*server.address)
    writer.write(Hello("", name).encode())
    return reader, writer


def test_live_sets_that_do_not_fit_beside_each_other_wait_and_none_is_overtaken(tmp_path: Path) -> None:
    """Told message by message: four nodes that each lead one log, and room for two live sets."""
    async def story() -> None:
        names = NAMES[:4]
        with nodes(tmp_path, names) as (leader, follower):
            for name in names:
                leader.lead(name, entries=900)
            manifests = [leader.snapshots[name].manifest for name in names]
            size = max(manifest.live_bytes for manifest in manifests if manifest is not None)
            server = SnapshotServer(listen=("127.0.0.1", 0), limits=TransferLimits(max_live_bytes=2 * size + 10))
            taking = [follower.serve(server, name) for name in names]
            async with server:
                lines = [await connected(server, name) for name in names]

                async def offer(number: int, attempt: int = 1) -> object:
                    reader, writer = lines[number]
                    manifest = manifests[number]
                    assert manifest is not None
                    writer.write(encode(Offer(Envelope(number + 1, attempt, 5), manifest, names[number])))
                    return await read_message(reader)

                assert [type(await offer(number)) for number in range(4)] == [Progress, Progress, Wait, Wait]
                # Refused offers need no room; one that goes on has its own.
                assert isinstance(await offer(0, 2), Progress)
                await server.remove(names[0])
                assert isinstance(await read_message(lines[0][0]), Refusal)
                # There is room for one: the third came first.
                assert isinstance(await offer(3), Wait)
                assert isinstance(await offer(2), Progress)
                assert isinstance(await offer(3), Wait)
                await server.remove(names[1])
                assert isinstance(await offer(3), Progress)
                assert [log.stage for log in taking[2:]] == ["receiving", "receiving"]
                for _, writer in lines:
                    writer.close()

    run(story)


def test_transfers_whose_live_sets_do_not_fit_beside_each_other_all_arrive(tmp_path: Path) -> None:
    async def story() -> None:
        names = NAMES[:6]
        with nodes(tmp_path, names) as (leader, follower):
            for name in names:
                leader.lead(name, entries=900)
            manifest = leader.snapshots[names[0]].manifest
            assert manifest is not None
            limits = TransferLimits(chunk_bytes=1024, window_bytes=4096, resend_seconds=0.01,
                                    max_live_bytes=manifest.live_bytes + 100)
            server = SnapshotServer(listen=("127.0.0.1", 0), limits=limits)
            for name in names:
                follower.serve(server, name)
            async with server:
                client = SnapshotClient(server.address, limits=limits, max_transfers=6)
                assert {type(outcome) for outcome in await send_all(client, leader, names)} == {Done}
            follower.check(leader, *names)

    run(story)


def test_what_is_said_of_a_transfer_that_nobody_knows_is_answered_so(tmp_path: Path) -> None:
    """Of an earlier life of the server, for example: then the offer comes again."""
    async def story() -> None:
        with nodes(tmp_path, NAMES[:1]) as (_, follower):
            server = SnapshotServer(listen=("127.0.0.1", 0))
            follower.serve(server, NAMES[0])
            async with server:
                reader, writer = await connected(server, "a")
                writer.write(encode(Probe(Envelope(77, 3, 5))))
                assert await read_message(reader) == Unknown(Envelope(77, 3, 5))
                writer.close()

    run(story)


def test_a_large_snapshot_keeps_no_small_one_of_another_log_back(tmp_path: Path) -> None:
    async def story() -> None:
        large, *small = NAMES[:6]
        with nodes(tmp_path, [large, *small]) as (leader, follower):
            for name in small:
                leader.lead(name, entries=20)
            leader.lead(large, state=bytes(1_000_000))
            server = SnapshotServer(listen=("127.0.0.1", 0), limits=LIMITS)
            taking, *_ = (follower.serve(server, name) for name in [large, *small])
            async with server:
                client = SnapshotClient(server.address, limits=LIMITS, max_transfers=2)
                first = asyncio.create_task(client.send(leader.log(large), leader.snapshots[large], term=1))
                while taking.stage == "idle":
                    await asyncio.sleep(0.001)
                assert {type(outcome) for outcome in await send_all(client, leader, small)} == {Done}
                assert not first.done()
                assert isinstance(await first, Done)
            follower.check(leader, large, *small)

    run(story)


def test_a_cancelled_call_ends_its_transfer_alone(tmp_path: Path) -> None:
    async def story() -> None:
        names = NAMES[:2]
        with nodes(tmp_path, names) as (leader, follower):
            leader.lead(names[0], state=bytes(600_000))
            leader.lead(names[1], state=bytes(60_000))
            server = SnapshotServer(listen=("127.0.0.1", 0), limits=LIMITS)
            first, _ = (follower.serve(server, name) for name in names)
            async with server:
                client = SnapshotClient(server.address, limits=LIMITS)
                calls = [asyncio.create_task(client.send(leader.log(name), leader.snapshots[name], term=1))
                         for name in names]
                while first.stage == "idle":
                    await asyncio.sleep(0.001)
                calls[0].cancel()
                assert isinstance(await calls[1], Done)
                with pytest.raises(asyncio.CancelledError):
                    await calls[0]
                # Nothing is held any more, and the same snapshot may be sent again.
                assert leader.log(names[0]).status().pins == 0
                assert isinstance((await send_all(client, leader, names[:1]))[0], Done)
            follower.check(leader, *names)

    run(story)


class SlowPins:
    """A log whose entries are pinned when it is let."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self.asked, self.let = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def pin(self, indexes: Any) -> Any:
        self.asked.set()
        self.let.wait()
        pinned = self._log.pin(indexes)
        self.asked.clear()
        return pinned


def test_a_call_that_is_cancelled_while_it_pins_holds_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        with nodes(tmp_path, NAMES[:1]) as (leader, _):
            leader.lead(NAMES[0])
            log: Any = SlowPins(leader.log(NAMES[0]))
            call = asyncio.create_task(SnapshotClient(("127.0.0.1", 1)).send(log, leader.snapshots[NAMES[0]], term=1))
            await asyncio.to_thread(log.asked.wait)
            call.cancel()
            assert (await asyncio.wait({call}, timeout=30))[0]
            assert call.cancelled()
            log.let.set()
            while log.asked.is_set() or leader.log(NAMES[0]).status().pins:
                await asyncio.sleep(0.001)

    run(story)


def test_a_call_that_is_cancelled_while_a_message_comes_ends(tmp_path: Path) -> None:
    async def story() -> None:
        offered, ended = asyncio.Event(), asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(200)
            offered.set()
            with contextlib.suppress(OSError):
                await reader.read()
                writer.close()
                await writer.wait_closed()
            ended.set()

        with nodes(tmp_path, NAMES[:1]) as (leader, _):
            leader.lead(NAMES[0])
            listening = await asyncio.start_server(silent, "127.0.0.1", 0)
            client = SnapshotClient(listening.sockets[0].getsockname()[:2], me="leader" * 20)
            call = asyncio.create_task(client.send(leader.log(NAMES[0]), leader.snapshots[NAMES[0]], term=1))
            await offered.wait()
            for _ in range(100):
                await asyncio.sleep(0)
            line = client._line  # noqa: SLF001
            assert line is not None
            [transfer] = line.transfers.values()
            transfer.hear(Unknown(Envelope(1, 1, 1)))
            call.cancel()
            assert (await asyncio.wait({call}, timeout=30))[0]
            assert call.cancelled()
            assert leader.log(NAMES[0]).status().pins == 0
            await ended.wait()
            listening.close()

    run(story)


def test_a_call_that_is_cancelled_again_while_it_hangs_up_leaves_no_line_open(tmp_path: Path) -> None:
    async def story() -> None:
        offered, ended = asyncio.Event(), asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(50)
            offered.set()
            with contextlib.suppress(OSError):
                await reader.read()
            writer.close()
            ended.set()

        with nodes(tmp_path, NAMES[:1]) as (leader, _):
            leader.lead(NAMES[0])
            listening = await asyncio.start_server(silent, "127.0.0.1", 0)
            client = SnapshotClient(listening.sockets[0].getsockname()[:2])
            call = asyncio.create_task(client.send(leader.log(NAMES[0]), leader.snapshots[NAMES[0]], term=1))
            await offered.wait()
            call.cancel()
            while client._line is not None:  # noqa: SLF001
                await asyncio.sleep(0)
            call.cancel()
            assert (await asyncio.wait({call}, timeout=30))[0]
            await ended.wait()
            listening.close()

    run(story)
