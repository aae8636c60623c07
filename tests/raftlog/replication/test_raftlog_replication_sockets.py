# SPDX-License-Identifier: Apache-2.0
"""Transfers over real sockets: into a server in this process, and into another process while both compact."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import random
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.app.kv_machine import KvMachine, Put, encode_command
from compactlib.errors import Closed, NotFound, StorageError
from compactlib.hosting import SnapshotClient, SnapshotServer
from compactlib.hosting.transfer.lines import Hello, read_message
from compactlib.hosting.transfer.receiving import ReceivingLog
from compactlib.indexset import IndexSet
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog import (
    Entry,
    LogCompactionWorker,
    LogOptions,
    RaftLog,
    SegmentLimits,
    SnapshotFolder,
    StoreOptions,
    open_log,
)
from compactlib.raftlog.log.snapshot_writer import Applied, MachineCopy, SnapshotWriter
from compactlib.raftlog.replication.effects import TransferLimits, TransferOutcome
from compactlib.raftlog.replication.errors import AbortReason, TransferAborted
from compactlib.raftlog.replication.messages import (
    EntryChunk,
    Envelope,
    LiveChunk,
    Offer,
    Probe,
    Progress,
    Refusal,
    SentEntry,
    StateChunk,
    TransferMessage,
)
from compactlib.raftlog.replication.wire import encode
from compactlib.raftlog.snapshots.model import SnapshotManifest
from compactlib.raftlog.snapshots.staging import IncomingState
from examples.raft_kv import KvStore
from tests.raftlog.wrapped_files import UnsyncedFiles
from tests.tools.faults.plan import FailingFiles

LIMITS = TransferLimits(chunk_bytes=4096, window_bytes=16_384, resend_seconds=0.3, sender_seconds=60.0)
SMALL = StoreOptions(background=False, log=LogOptions(limits=SegmentLimits(max_entries=128), files=UnsyncedFiles(),
                                                      keep_links_seconds=0.0))


def fill(store: KvStore, rng: random.Random, commands: int, keys: int = 400) -> None:
    """Write values over and over."""
    store.write([Put(f"key {rng.randrange(keys)}", rng.randbytes(rng.randrange(300))) for _ in range(commands)])


@contextlib.asynccontextmanager
async def serving(store: KvStore, **changes: Any) -> AsyncIterator[tuple[SnapshotServer, ReceivingLog]]:
    """A server for a follower's store, and its log there."""
    chosen: dict[str, Any] = {"term": 1, "applied": lambda: store.machine.applied, "installed": store.installed,
                              **changes}
    async with SnapshotServer(listen=("127.0.0.1", 0), limits=LIMITS) as server:
        yield server, server.add(store.log, store.snapshots, **chosen)


async def send(leader: KvStore, server: SnapshotServer, term: int = 1, *, limits: TransferLimits = LIMITS
               ) -> TransferOutcome:
    return await SnapshotClient(server.address, limits=limits).send(leader.log, leader.snapshots, term=term)


def error_of(outcome: object) -> TransferAborted:
    assert isinstance(outcome, Failed), outcome
    assert isinstance(outcome.error, TransferAborted)
    return outcome.error


def test_a_snapshot_reaches_an_empty_follower_and_one_that_is_behind(tmp_path: Path) -> None:
    async def run() -> None:
        rng = random.Random(1)
        with (KvStore(str(tmp_path / "leader"), SMALL) as leader, KvStore(str(tmp_path / "empty"), SMALL) as empty,
              KvStore(str(tmp_path / "behind"), SMALL) as behind):
            fill(leader, rng, 300)
            for index in range(leader.log.last_index + 1):
                entry = leader.log.read(index)
                behind.log.append([entry])  # type: ignore[list-item]
            behind.log.sync()
            behind.catch_up()
            applied = behind.machine.applied
            # A tail that the leader does not have: it may be stale, and goes.
            behind.log.append([(applied + 1, 1, b"stale")])
            behind.log.sync()
            fill(leader, rng, 2000)
            leader.snapshot()
            for follower in (empty, behind):
                async with serving(follower) as (server, taking):
                    outcome = await send(leader, server)
                    assert isinstance(outcome, Done), outcome
                    taken = await taking.next_outcome()
                    assert isinstance(taken, Done)
                    needed = leader.machine.live_set().at_least(applied + 1 if follower is behind else 0)
                    assert taken.stats.entries == outcome.stats.entries == needed.count
                    assert taking.stage == "idle"
                    again = await send(leader, server)
                    assert isinstance(again, Skipped)
                assert follower.items() == leader.items()
                assert follower.log.state == leader.log.state
                assert follower.log.last_index == leader.log.last_index
                follower.put("and on", b"it goes")
        for name in ("empty", "behind"):
            with KvStore(str(tmp_path / name), SMALL) as follower:
                assert follower.get("and on") == b"it goes"
                assert len(follower.items()) > 300

    asyncio.run(run())


def test_a_follower_that_is_a_little_behind_gets_entries_where_the_leader_keeps_some(tmp_path: Path) -> None:
    async def run() -> None:
        with (KvStore(str(tmp_path / "leader"), attrs.evolve(SMALL, keep_trailing=60)) as leader,
              KvStore(str(tmp_path / "follower"), SMALL) as follower):
            fill(leader, random.Random(3), 300, keys=5)
            follower.log.append(leader.log.entries(0, 250))
            follower.log.sync()
            follower.catch_up()
            leader.snapshot()
            async with serving(follower) as (server, taking):
                outcome = await send(leader, server)
                assert isinstance(outcome, Skipped), outcome
                kept_from = leader.log.state.index - 59
                assert f"applied up to 250, and the log holds every entry from {kept_from}" in outcome.reason
                assert error_of(await taking.next_outcome()).reason is AbortReason.ALREADY_APPLIED
            assert (follower.log.last_index, follower.log.state.index) == (250, -1)
            message = leader.log.entries_after(250)
            assert message is not None
            assert follower.log.append_entries(*message).success
            follower.catch_up()
            assert follower.items() == leader.items()

    asyncio.run(run())


def test_a_window_may_hold_any_number_of_chunks(tmp_path: Path) -> None:
    """Each read was carried out within the one before: a thousand in a window were too deep for the interpreter."""
    async def run() -> None:
        with KvStore(str(tmp_path / "leader"), SMALL) as leader, KvStore(str(tmp_path / "follower"), SMALL) as follower:
            fill(leader, random.Random(1), 300, keys=100)
            leader.snapshot()
            manifest = leader.snapshots.manifest
            assert manifest is not None
            limits = attrs.evolve(LIMITS, chunk_bytes=manifest.state_bytes // 600, window_bytes=1 << 20)
            async with serving(follower) as (server, _):
                outcome = await send(leader, server, limits=limits)
                assert isinstance(outcome, Done), outcome
            assert follower.items() == leader.items()

    asyncio.run(run())


def test_a_server_is_started_again_in_another_event_loop(tmp_path: Path) -> None:
    rng = random.Random(1)
    with KvStore(str(tmp_path / "leader"), SMALL) as leader, KvStore(str(tmp_path / "follower"), SMALL) as follower:
        server = SnapshotServer(listen=("127.0.0.1", 0), limits=LIMITS)
        taking = server.add(follower.log, follower.snapshots, term=1, applied=lambda: follower.machine.applied,
                            installed=follower.installed)

        async def life(term: int) -> None:
            async with server:
                ended = asyncio.create_task(taking.next_outcome())
                # Each has something to do in its turn, for which the other waits.
                await asyncio.gather(taking.observe_term(term), taking.observe_term(term + 1))
                assert isinstance(await send(leader, server, term + 1), Done)
                assert isinstance(await ended, Done)

        for number in range(2):
            fill(leader, rng, 300)
            leader.snapshot()
            asyncio.run(life(2 + 2 * number))
            assert server.last_error is None
            assert follower.log.state.index == leader.log.state.index


@pytest.mark.parametrize(("part", "held"), [
    (IncomingState, "write"), (IncomingState, "sync"), (RaftLog, "install"), (KvStore, "installed")])
def test_a_server_whose_event_loop_ends_within_a_transfer_goes_on_in_another_one(
        part: type[object], held: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, let, goes_on = threading.Event(), threading.Event(), getattr(part, held)

    def wait(*given: Any, **named: Any) -> Any:
        reached.set()
        let.wait()
        return goes_on(*given, **named)

    with KvStore(str(tmp_path / "leader"), SMALL) as leader, KvStore(str(tmp_path / "follower"), SMALL) as follower:
        fill(leader, random.Random(3), 300)
        leader.snapshot()
        monkeypatch.setattr(part, held, wait)
        server = SnapshotServer(listen=("127.0.0.1", 0), limits=LIMITS)
        taking = server.add(follower.log, follower.snapshots, term=1, applied=lambda: follower.machine.applied,
                            installed=follower.installed)

        async def ends() -> None:
            await server.start()
            sending = asyncio.create_task(send(leader, server))
            while not reached.is_set():
                await asyncio.sleep(0.001)
            sending.cancel()

        async def begins_again() -> None:
            # What the first loop has left on the disk goes on meanwhile.
            asyncio.get_running_loop().call_later(0.05, let.set)
            async with server:
                outcome = await send(leader, server, 2, limits=attrs.evolve(LIMITS, sender_seconds=5.0))
                assert isinstance(outcome, Done | Skipped), outcome
                assert taking.stage == "idle"

        asyncio.run(ends())
        asyncio.run(begins_again())
        assert server.last_error is None
        assert follower.items() == leader.items()


def test_a_client_sends_in_one_event_loop_after_the_other(tmp_path: Path) -> None:
    with KvStore(str(tmp_path / "leader"), SMALL) as leader:
        fill(leader, random.Random(1), 300)
        leader.snapshot()
        client = SnapshotClient(("127.0.0.1", 1), max_transfers=1)

        async def life() -> list[object]:
            sending = [asyncio.create_task(client.send(leader.log, leader.snapshots, term=1)) for _ in range(2)]
            # The first has its turn by then, and the second waits for it.
            await asyncio.sleep(0)
            for each in sending:
                each.cancel()
            return [type(ended) for ended in await asyncio.gather(*sending, return_exceptions=True)]

        for _ in range(2):
            assert asyncio.run(life()) == [asyncio.CancelledError] * 2


def test_a_higher_term_an_unknown_version_and_nothing_to_send(tmp_path: Path) -> None:
    async def run() -> None:
        with KvStore(str(tmp_path / "leader"), SMALL) as leader, KvStore(str(tmp_path / "f"), SMALL) as follower:
            with pytest.raises(NotFound, match="no snapshot to send"):
                await SnapshotClient(("127.0.0.1", 1)).send(leader.log, leader.snapshots, term=1)
            fill(leader, random.Random(2), 100)
            leader.snapshot()
            seen: list[int] = []
            async with serving(follower, term=7, term_seen=seen.append, machine_versions=(1, 2)) as (server, _):
                error = error_of(await send(leader, server, 6))
                assert (error.reason, error.term) == (AbortReason.HIGHER_TERM, 7)
                error = error_of(await send(leader, server, 8))
                assert error.reason is AbortReason.UNSUPPORTED
                assert seen == [8]
            assert follower.items() == {}
            with pytest.raises(Closed):
                assert server.address
            with pytest.raises(StorageError):
                await SnapshotServer(listen=("127.0.0.256", 0), insecure=True).start()

    asyncio.run(run())


def test_nobody_listens_and_a_follower_that_shuts_down(tmp_path: Path) -> None:
    async def run() -> None:
        impatient = TransferLimits(chunk_bytes=64, window_bytes=64, resend_seconds=0.05, sender_seconds=0.3)
        with KvStore(str(tmp_path / "leader"), SMALL) as leader, KvStore(str(tmp_path / "f"), SMALL) as follower:
            fill(leader, random.Random(2), 3000)
            leader.snapshot()
            async with serving(follower) as (server, _):
                address = server.address
            nobody = SnapshotClient(address, limits=impatient)
            error = error_of(await nobody.send(leader.log, leader.snapshots, term=1))
            assert error.reason is AbortReason.TIMED_OUT
            slow = TransferLimits(chunk_bytes=64, window_bytes=64)
            async with serving(follower) as (server, taking):
                sending = asyncio.create_task(send(leader, server, limits=slow))
                while taking.stage == "idle":
                    await asyncio.sleep(0)
            assert error_of(await sending).reason is AbortReason.CANCELLED
            assert follower.log.last_index == -1
            assert follower.snapshots.manifest is None
            # The pins are gone: nothing keeps what dies now.
            fill(leader, random.Random(4), 3000)
            leader.snapshot()

    asyncio.run(run())


def test_a_line_that_is_dead_without_a_word_takes_no_later_transfer_with_it(tmp_path: Path) -> None:
    async def run() -> None:
        lines = 0
        with KvStore(str(tmp_path / "leader"), SMALL) as leader, KvStore(str(tmp_path / "f"), SMALL) as follower:
            fill(leader, random.Random(2), 300)
            leader.snapshot()
            async with serving(follower) as (server, _):
                async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                    """What lies between has forgotten the first connection: nothing comes of what is said there."""
                    nonlocal lines
                    lines += 1
                    if lines == 1:
                        while await reader.read(4096):
                            pass
                        writer.close()
                        return
                    there, back = await asyncio.open_connection(*server.address)

                    async def one_way(given: asyncio.StreamReader, taken: asyncio.StreamWriter) -> None:
                        while data := await given.read(4096):
                            taken.write(data)
                        taken.close()

                    await asyncio.gather(one_way(reader, back), one_way(there, writer))

                async with await asyncio.start_server(pass_on, "127.0.0.1", 0) as listener:
                    patience = attrs.evolve(LIMITS, resend_seconds=0.05, sender_seconds=2.0)
                    client = SnapshotClient(listener.sockets[0].getsockname(), limits=patience)
                    first = asyncio.create_task(client.send(leader.log, leader.snapshots, term=1))
                    await asyncio.sleep(1.6)
                    second = asyncio.create_task(client.send(leader.log, leader.snapshots, term=1))
                    assert error_of(await first).reason is AbortReason.TIMED_OUT
                    outcome = await second
                assert isinstance(outcome, Done), outcome
            assert follower.items() == leader.items()

    asyncio.run(run())


@pytest.mark.parametrize("messages", range(5))
def test_a_transfer_that_breaks_leaves_the_log_as_it_was(messages: int, tmp_path: Path) -> None:
    """Entries that were acknowledged and not yet applied are all there, however far it came."""
    async def run() -> None:
        live, state = IndexSet.from_iterable([30, 60]), b"the state"
        manifest = SnapshotManifest.of(90, 1, live, state_bytes=len(state) + 1, state_crc=0)
        entries = [SentEntry.of(Entry(index, 1, b"other")) for index in live]
        envelope = Envelope(1, 1, (1 << 64) - 1)
        said: list[TransferMessage] = [Offer(envelope, manifest, "log"), LiveChunk(envelope, 0, live.to_bytes()),
                                       EntryChunk(envelope, 20, tuple(entries)), StateChunk(envelope, 0, state),
                                       StateChunk(envelope, len(state), b"?")]
        with open_log(tmp_path / "log", SMALL) as log:
            log.append([(index, 1, b"acknowledged") for index in range(50)])
            log.sync()
            snapshots = SnapshotFolder(tmp_path / "snapshots")
            async with SnapshotServer(listen=("127.0.0.1", 0)) as server:
                server.add(log, snapshots, term=1, applied=lambda: 20, installed=lambda meta, state: None)
                reader, writer = await asyncio.open_connection(*server.address)
                writer.write(Hello("", "").encode())
                for message in said[:messages + 1]:
                    writer.write(encode(message))
                    answer = await read_message(reader)
                assert isinstance(answer, Progress if messages < 4 else Refusal)
                assert log.last_index == 49
                writer.close()
            assert log.last_index == 49
            assert all(log.read(index) == Entry(index, 1, b"acknowledged") for index in range(50))
            assert snapshots.manifest is None

    asyncio.run(run())


def test_what_the_log_holds_behind_the_snapshot_stays(tmp_path: Path) -> None:
    async def run() -> None:
        with KvStore(str(tmp_path / "leader"), SMALL) as leader, open_log(tmp_path / "log", SMALL) as log:
            fill(leader, random.Random(2), 300)
            log.append(entry for entry in map(leader.log.read, range(300)) if isinstance(entry, Entry))
            leader.snapshot()
            log.append([(index, 1, b"not applied yet") for index in range(300, 320)])
            log.sync()
            snapshots = SnapshotFolder(tmp_path / "snapshots", machine=KvMachine)
            log.attach(snapshots)
            async with SnapshotServer(listen=("127.0.0.1", 0)) as server:
                server.add(log, snapshots, term=1, applied=lambda: 100, installed=lambda meta, state: None)
                outcome = await send(leader, server)
                assert isinstance(outcome, Done), outcome
            assert (log.state, log.last_index) == (leader.log.state, 319)
            assert log.read(319) == Entry(319, 1, b"not applied yet")

    asyncio.run(run())


def test_a_live_set_that_cannot_be_is_refused_and_the_server_stays_sound(tmp_path: Path) -> None:
    async def run() -> None:
        with KvStore(str(tmp_path / "f"), SMALL) as follower:
            async with serving(follower) as (server, taking):
                reader, writer = await asyncio.open_connection(*server.address)
                writer.write(Hello("", "").encode())
                empty = SnapshotManifest(index=9, term=1, live_count=0, live_bytes=0, live_crc=0, state_bytes=1,
                                         state_crc=0)
                writer.write(encode(Offer(Envelope(1, 1, 1), empty, "log")))
                answer = await read_message(reader)
                assert isinstance(answer, Refusal)
                assert answer.reason is AbortReason.DAMAGED
                writer.close()
                assert taking.stage == "idle"

    asyncio.run(run())


def test_garbage_on_the_line_ends_that_line_only(tmp_path: Path) -> None:
    async def run() -> None:
        with KvStore(str(tmp_path / "leader"), SMALL) as leader, KvStore(str(tmp_path / "f"), SMALL) as follower:
            fill(leader, random.Random(2), 100)
            leader.snapshot()
            async with serving(follower) as (server, _):
                good, hello = encode(Probe(Envelope(1, 1, 1))), Hello("", "").encode()
                for garbage in (b"GET / HTTP/1.1\r\n\r\n", good, hello[:-1] + b"?", hello + good[:-1] + b"?",
                                hello + good[:20], hello + b"\0\0\0\0"):
                    reader, writer = await asyncio.open_connection(*server.address)
                    writer.write(garbage)
                    writer.write_eof()
                    assert await reader.read() == b""
                    writer.close()
                outcome = await send(leader, server)
                assert isinstance(outcome, Done)
            assert follower.items() == leader.items()

    asyncio.run(run())


@pytest.mark.parametrize("ahead", [1, 4, 7, 10, 13, 16])
def test_a_full_disk_ends_a_transfer_by_name_and_the_next_one_ends_well(ahead: int, tmp_path: Path) -> None:
    async def run() -> None:
        files = FailingFiles()
        options = StoreOptions(background=False, log=LogOptions(limits=SegmentLimits(max_entries=128), files=files))
        with (KvStore(str(tmp_path / "leader"), SMALL) as leader,
              KvStore(str(tmp_path / "f"), options, with_worker=False) as follower):
            fill(leader, random.Random(2), 60, keys=10)
            leader.snapshot()
            # Opening the folder syncs it and the one it is in.
            full = FailingFiles(fail_at=2 + ahead, errno=errno.ENOSPC)
            store = SnapshotFolder(tmp_path / "f" / "snapshots", files=full)
            async with serving(follower) as (server, taking):
                taking._snapshots = store  # noqa: SLF001
                outcome = await send(leader, server)
                assert error_of(outcome).reason is AbortReason.DISK_REFUSED
                assert error_of(await taking.next_outcome()).reason is AbortReason.DISK_REFUSED
                assert follower.log.last_index == -1
                again = await send(leader, server)
                assert isinstance(again, Done), again
            assert follower.items() == leader.items()
            store.audit()

    asyncio.run(run())


def test_a_snapshot_that_is_in_force_is_no_failure_whatever_the_disk_refuses_then(tmp_path: Path) -> None:
    """Its row follows, and the machine is restored: the log would be dead up to where no machine is."""
    async def run(number: int, fail_at: int) -> bool:
        files = FailingFiles(fail_at=fail_at, errno=errno.EIO) if fail_at else FailingFiles()
        options = attrs.evolve(SMALL, log=attrs.evolve(SMALL.log, files=files))
        with KvStore(str(tmp_path / f"{number}-{fail_at}"), options, with_worker=False) as follower:
            async with serving(follower) as (server, _):
                outcome = await send(leader, server)
                manifest = follower.snapshots.manifest
                assert isinstance(outcome, Done) == (manifest == leader.snapshots.manifest), outcome
                assert follower.log.state.index == follower.machine.applied
                changes.append(files.count)
            return isinstance(outcome, Done)

    changes: list[int] = []
    with KvStore(str(tmp_path / "leader"), SMALL) as leader:
        fill(leader, random.Random(2), 30, keys=5)
        leader.snapshot()
        assert asyncio.run(run(0, 0))
        last = changes[-1]
        assert all(asyncio.run(run(1, fail_at)) for fail_at in range(last - 5, last + 1))


def test_a_follower_that_lost_what_it_has_applied_is_told_from_one_that_has_it(tmp_path: Path) -> None:
    """A snapshot over a hole must not be put in force: an entry that the machine relies on would be missing."""
    async def run() -> None:
        with KvStore(str(tmp_path / "leader"), SMALL) as leader, KvStore(str(tmp_path / "f"), SMALL) as follower:
            fill(leader, random.Random(2), 60, keys=10)
            leader.snapshot()
            last = leader.machine.applied
            async with serving(follower, applied=lambda: last - 1) as (server, _):
                error = error_of(await send(leader, server))
                assert error.reason is AbortReason.LIVE_MISSING
            assert follower.log.state.index == -1
            assert follower.snapshots.manifest is None

    asyncio.run(run())


# -- two processes, both compacting, and a line that is cut


class BadLine:
    """Passes connections on, and cuts each after some bytes; every third at once."""

    def __init__(self, port: int, rng: random.Random) -> None:
        self.port = port
        self.rng = rng
        self.cuts = 0
        self.handlers: set[asyncio.Task[None]] = set()
        self.budget = [8_000, 25_000]

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handler = asyncio.current_task()
        assert handler is not None
        self.handlers.add(handler)
        with contextlib.suppress(OSError):
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self.port)
            left = [self.rng.randint(*self.budget) if self.rng.random() < 0.7 else self.rng.randrange(500)]
            pipes = [asyncio.create_task(self.pipe(reader, to_writer, left)),
                     asyncio.create_task(self.pipe(to_reader, writer, left))]
            await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
            to_writer.transport.abort()
            writer.transport.abort()
            await asyncio.wait(pipes)
            for each in (to_writer, writer):
                with contextlib.suppress(OSError):
                    await each.wait_closed()
        writer.transport.abort()
        self.cuts += 1

    async def pipe(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, left: list[int]) -> None:
        with contextlib.suppress(OSError):
            while left[0] > 0 and (data := await source.read(4096)):
                left[0] -= len(data)
                # The last piece is cut anywhere, within a frame as a rule.
                target.write(data[:len(data) + min(left[0], 0)])
                await target.drain()


def start_follower(folder: Path) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen([sys.executable, "-m", "tests.raftlog.replication.snapshot_follower", str(folder)],
                               text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3])
    assert process.stdout is not None
    return process, int(process.stdout.readline())


class Load:
    """Goes on writing, taking snapshots and compacting on the leader, in a thread; knows each snapshot's content."""

    def __init__(self, leader: KvStore, rng: random.Random) -> None:
        self.leader = leader
        self.rng = rng
        self.contents: dict[int, dict[str, bytes]] = {}
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def snapshot(self) -> None:
        self.contents[self.leader.machine.applied] = self.leader.items()
        self.leader.snapshot()

    def run(self) -> None:
        while not self.stopping.is_set():
            fill(self.leader, self.rng, 200)
            self.snapshot()
            self.leader.log.flush()
            self.leader.compact()


def transfer_between_processes(folder: Path, seed: int, *, cuts: int, kills: int = 0) -> None:
    """Install the leader's snapshot in another process, the line cut at least `cuts` times.

    The follower is killed `kills` times on the way, and started again.
    """
    rng = random.Random(seed)
    options = StoreOptions(log=LogOptions(limits=SegmentLimits(max_entries=256), keep_links_seconds=0.0))
    process, port = start_follower(folder / "follower")
    processes = [process]
    try:
        with KvStore(str(folder / "leader"), options) as leader:
            for _ in range(4):
                fill(leader, rng, 500, keys=600)
            load = Load(leader, rng)
            load.snapshot()

            async def run() -> int:
                line = BadLine(port, rng)
                server = await asyncio.start_server(line.accept, "127.0.0.1", 0)
                client = SnapshotClient(server.sockets[0].getsockname()[:2], limits=LIMITS, rng=rng)
                sending = asyncio.create_task(client.send(leader.log, leader.snapshots, term=1))
                for number in range(1, kills + 1):
                    while line.cuts < number and not sending.done():
                        await asyncio.sleep(0.01)
                    processes[-1].kill()
                    processes[-1].wait()
                    process, line.port = await asyncio.to_thread(start_follower, folder / "follower")
                    processes.append(process)
                outcome = await sending
                # Killed between the installation and its answer, it has applied the snapshot already.
                assert isinstance(outcome, Done) or (kills and isinstance(outcome, Skipped)), outcome
                assert line.cuts >= cuts, line.cuts
                server.close()
                await asyncio.wait(line.handlers)
                return outcome.stats.index if isinstance(outcome, Done) else -1

            load.thread.start()
            try:
                index = asyncio.run(run())
            finally:
                load.stopping.set()
                load.thread.join()
            assert leader.machine.applied > index, "the leader stood still meanwhile"
        last = processes[-1]
        assert last.stdout is not None
        if index >= 0:
            assert json.loads(last.stdout.readline())["index"] == index
        last.communicate()
        assert last.returncode == 0
    finally:
        for process in processes:
            process.kill()
            with contextlib.suppress(OSError), process:
                pass
    with KvStore(str(folder / "follower")) as follower:
        assert follower.machine.applied in (index, *load.contents)
        assert follower.items() == load.contents[follower.machine.applied]
        assert follower.log.segments.verify().is_sound
        follower.put("next", b"entry")
        follower.machine.audit()


def test_a_snapshot_goes_from_one_process_to_another_while_both_compact_and_the_line_is_cut(tmp_path: Path) -> None:
    """And the other process is killed once on the way."""
    transfer_between_processes(tmp_path, 2, cuts=2, kills=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 130))
def test_soak_transfers_between_processes(seed: int, tmp_path: Path) -> None:
    transfer_between_processes(tmp_path, seed, cuts=1, kills=seed % 3)


def test_a_host_that_raises_while_it_restores_is_asked_again_and_the_server_goes_on(tmp_path: Path) -> None:
    async def run() -> None:
        with KvStore(str(tmp_path / "leader"), SMALL) as leader, KvStore(str(tmp_path / "f"), SMALL) as follower:
            fill(leader, random.Random(3), 300)
            leader.snapshot()
            tries: list[int] = []

            def installed(meta: Any, state: Any) -> None:
                tries.append(meta.index)
                if len(tries) < 3:
                    raise KeyError("the host's bug")
                follower.installed(meta, state)

            async with serving(follower, installed=installed) as (server, taking):
                outcome = await send(leader, server)
                assert isinstance(outcome, Done), outcome
                assert (len(tries), server.failures, taking.stage) == (3, 2, "idle")
                assert isinstance(server.last_error, KeyError)
            assert follower.items() == leader.items()

    asyncio.run(run())


def test_a_host_that_never_restores_does_not_keep_the_server_from_closing(tmp_path: Path) -> None:
    async def run() -> None:
        with KvStore(str(tmp_path / "leader"), SMALL) as leader, KvStore(str(tmp_path / "f"), SMALL) as follower:
            fill(leader, random.Random(3), 300)
            leader.snapshot()

            def installed(meta: Any, state: Any) -> None:
                raise KeyError("the host's bug")

            async with serving(follower, installed=installed) as (server, _):
                sending = asyncio.create_task(send(leader, server))
                while not server.failures:
                    await asyncio.sleep(0.001)
            # It is in force all the same: the store restores it when it is opened.
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sending
        with KvStore(str(tmp_path / "leader"), SMALL) as leader, KvStore(str(tmp_path / "f"), SMALL) as follower:
            assert follower.items() == leader.items()

    asyncio.run(run())


@pytest.mark.parametrize("ends", ["removed", "stopped"])
def test_what_a_host_has_not_restored_is_told_and_restored_when_the_log_is_received_for_again(
        ends: str, tmp_path: Path) -> None:
    async def run() -> None:
        with KvStore(str(tmp_path / "leader"), SMALL) as leader, KvStore(str(tmp_path / "f"), SMALL) as follower:
            fill(leader, random.Random(3), 300)
            leader.snapshot()
            fails = [True]

            def installed(meta: Any, state: Any) -> None:
                if fails[0]:
                    raise KeyError("the host's bug")
                follower.installed(meta, state)

            given: dict[str, Any] = {"term": 1, "applied": lambda: follower.machine.applied, "installed": installed}
            server = SnapshotServer(listen=("127.0.0.1", 0), limits=LIMITS)
            await server.start()
            taking = server.add(follower.log, follower.snapshots, **given)
            sending = asyncio.create_task(send(leader, server))
            while not server.failures:
                await asyncio.sleep(0.001)
            if ends == "removed":
                await server.remove(follower.log.log_id)
                for told in (await sending, await taking.next_outcome()):
                    assert "has not restored its machine by it: `installed` raised KeyError" in str(error_of(told))
                assert taking.stage == "idle"
                fails[0] = False
                taking = server.add(follower.log, follower.snapshots, **given)
                assert isinstance(await send(leader, server), Done)
            else:
                await server.stop()
                assert taking.stage == "installing"
                assert taking.outcomes == 0
                sending.cancel()
                fails[0] = False
                await server.start()
            assert isinstance(await taking.next_outcome(), Done)
            assert follower.items() == leader.items()
            assert taking.stage == "idle"
            assert isinstance(await send(leader, server), Skipped)
            await server.stop()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_host_that_raises_when_it_is_asked_loses_a_line_and_no_task_dies(tmp_path: Path) -> None:
    async def run() -> None:
        with KvStore(str(tmp_path / "leader"), SMALL) as leader, KvStore(str(tmp_path / "f"), SMALL) as follower:
            fill(leader, random.Random(3), 300)
            leader.snapshot()
            wrong: list[str] = ["applied", "term_seen"]

            def applied() -> int:
                if "applied" in wrong:
                    wrong.remove("applied")
                    raise KeyError("the host's bug")
                return follower.machine.applied

            def term_seen(term: int) -> None:
                if "term_seen" in wrong:
                    wrong.remove("term_seen")
                    raise KeyError("the host's bug")

            async with serving(follower, applied=applied, term_seen=term_seen) as (server, _):
                for _ in range(2):
                    await send(leader, server, 2)
                assert server.failures == 2
            assert wrong == []
            assert follower.items() == leader.items()

    asyncio.run(run())


def test_a_sender_whose_line_ends_with_a_bug_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(reader: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("compactlib.hosting.transfer.sending.read_message", broken)

    async def run() -> None:
        with KvStore(str(tmp_path / "leader"), SMALL) as leader, KvStore(str(tmp_path / "f"), SMALL) as follower:
            fill(leader, random.Random(3), 30)
            leader.snapshot()
            async with serving(follower) as (server, _):
                with pytest.raises(KeyError):
                    await send(leader, server)

    asyncio.run(run())


def test_a_follower_that_reads_no_more_ends_the_transfer(tmp_path: Path) -> None:
    async def run() -> None:
        patience = TransferLimits(window_bytes=64 << 20, resend_seconds=0.3, sender_seconds=0.6)
        stuck = asyncio.Event()
        with KvStore(str(tmp_path / "leader"), SMALL) as leader, KvStore(str(tmp_path / "f"), SMALL) as follower:
            for number in range(24):
                leader.put(f"key {number}", bytes(1 << 20))
            leader.snapshot()
            async with serving(follower) as (server, _):
                async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                    there, back = await asyncio.open_connection(*server.address)

                    async def answers() -> None:
                        while data := await there.read(4096):
                            writer.write(data)

                    answering = asyncio.create_task(answers())
                    for _ in range(8):
                        back.write(await reader.read(4096))
                    await stuck.wait()
                    for line in (back, writer):
                        line.transport.abort()
                    await asyncio.wait([answering])

                listener = await asyncio.start_server(pass_on, "127.0.0.1", 0, limit=4096)
                client = SnapshotClient(listener.sockets[0].getsockname()[:2], limits=patience)
                try:
                    async with asyncio.timeout(20):
                        outcome = await client.send(leader.log, leader.snapshots, term=1)
                finally:
                    stuck.set()
                    listener.close()
            assert error_of(outcome).reason is AbortReason.TIMED_OUT

    asyncio.run(run())


def test_a_follower_whose_worker_writes_snapshots_meanwhile_takes_those_of_its_leader(tmp_path: Path) -> None:
    """Whichever comes first, row and snapshot store stay together, and nothing fails."""
    async def run() -> None:
        rng = random.Random(7)
        with KvStore(str(tmp_path / "leader"), SMALL) as leader, \
                KvStore(str(tmp_path / "f"), SMALL, with_worker=False) as follower:
            def copy() -> MachineCopy:
                machine = follower.machine
                with applying:
                    return MachineCopy(machine.applied, machine.live_set(), machine.snapshot())

            applying = threading.Lock()
            writer = SnapshotWriter(follower.log, applied=lambda: follower.machine.applied, copy=copy, when=Applied(1),
                                    checkpoint_when=Applied(1), look_seconds=0.001)
            worker = LogCompactionWorker(follower.log.segments, snapshots=writer)
            follower.log.attach(worker=lambda _: worker)
            async with serving(follower) as (server, _):
                for _ in range(8):
                    fill(leader, rng, 60, keys=20)
                    behind = follower.machine.applied
                    leader.snapshot()
                    live = leader.log.state.live
                    # A few entries come in the ordinary way first, and the machine applies them.
                    for index in range(behind + 1, behind + 20):
                        payload = encode_command(Put("k", b"v"))
                        entry = leader.log.read(index)
                        follower.log.append([(index, 1, entry.payload if isinstance(entry, Entry) else payload)])
                        follower.log.sync()
                        with applying:
                            follower.catch_up()
                    assert isinstance(await send(leader, server), Done)
                    assert follower.log.state.index >= leader.log.state.index
                    assert follower.items() == leader.items()
                    assert follower.log.state.live == live
            worker.request_snapshot()
            worker.wait_until_idle()
            assert worker.failures == 0, worker.last_error
            follower.snapshots.audit()
            follower.log.audit()
        with KvStore(str(tmp_path / "f"), SMALL) as follower:
            assert follower.items()

    asyncio.run(run())
