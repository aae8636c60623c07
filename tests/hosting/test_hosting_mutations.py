# SPDX-License-Identifier: Apache-2.0
"""Messages that were mutated on the way: only named errors, in bounded memory and time; and servers that go on."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import time
import tracemalloc
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import attrs
import pytest

from compactlib.app import kv_machine
from compactlib.app.kv_machine import Put
from compactlib.catalog import CompactionService, NodeId, NodeReport, TcpTransport, Topology, ZoneResult
from compactlib.catalog.errors import MessageDamaged, MessageTooNew, RecordDamaged, RecordTooNew, UnknownMessage
from compactlib.catalog.log import replicated
from compactlib.catalog.model.timestamp import timestamp
from compactlib.catalog.round.messages import Hello as NodeHello, PublishTime, ReportRequest, RoundId
from compactlib.catalog.transport import wire
from compactlib.errors import CorruptData, InvalidInput, Unsupported
from compactlib.files.checksum import crc32
from compactlib.hosting.http import wire as http
from compactlib.hosting.transfer.lines import Hello
from compactlib.hosting.transfer.serving import SERVER_FAILED
from compactlib.indexset import IndexSet
from compactlib.raftlog.replication import wire as transfer
from compactlib.raftlog.replication.errors import FrameDamaged
from compactlib.raftlog.replication.messages import (
    EntryChunk,
    Envelope,
    LiveChunk,
    Offer,
    Probe,
    SentEntry,
    StateChunk,
    TransferMessage,
)
from compactlib.raftlog.snapshots.model import SnapshotManifest
from compactlib.scheduler import Command, PollRequest
from compactlib.scheduler.fences.token import TokenSealer
from compactlib.scheduler.persistence import codec
from examples.raft_kv import KvStore
from tests.catalog.transport.test_catalog_wire import MESSAGES
from tests.harness.effort import Effort
from tests.hosting.test_hosting_strangers import snapshots
from tests.raftlog.replication.test_raftlog_replication_wire import SAMPLES
from tests.scheduler.persistence.test_scheduler_codec import MESSAGES as SCHEDULER_MESSAGES, OPERATIONS

MOST_SECONDS = 2.0
"""Of CPU, for one message: a million tables take a third of it."""
MOST_LENGTH = 20_000
MOST_BYTES = 1 << 20
"""Of memory, for one message, and a hundred times its own length."""
SEALER = TokenSealer({"k": b"0123456789abcdef"})
SEAL = SEALER.seal("a job", 7)


@attrs.frozen
class Format:
    """One format that comes from other processes.

    Attributes:
        name: what it is.
        samples: real messages, encoded.
        decode: the real decoder.
        refusals: all that it may raise.
        seal: has the lengths and the checksum of a mutated one fit.
        most_bytes: that a message of few bytes may take.
    """

    name: str
    samples: tuple[bytes, ...]
    decode: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]
    seal: Callable[[bytes], bytes]
    most_bytes: int = MOST_BYTES

    def mutated(self, rng: random.Random) -> bytes:
        """One of the samples after a few accidents, or attacks; mostly under a checksum that fits."""
        data = bytearray(rng.choice(self.samples))
        for _ in range(rng.randint(1, 3)):
            rng.choice(MUTATIONS)(data, rng, self.samples)
            del data[MOST_LENGTH:]
        return self.seal(bytes(data)) if rng.random() < 0.8 else bytes(data)


def checked(data: bytes, salt: int = 0) -> bytes:
    """With the checksum that fits, at the end."""
    return data[:-4] + crc32(data[:-4], salt).to_bytes(4, "little") if len(data) > 4 else data


def measured(data: bytes) -> bytes:
    """A record of the catalog with the length and the checksum that fit."""
    length = (len(data) - 16).to_bytes(4, "little") if len(data) >= 16 else b""
    return checked(data[:8] + length + data[12:], crc32(b"command"))


def flip(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def cut(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    del data[rng.randint(0, len(data)):]


def put_number(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    """What may be a length, or a count."""
    size = rng.choice((1, 2, 4, 8))
    if len(data) >= size:
        at = rng.randint(0, len(data) - size)
        number = rng.choice((0, 1, len(data), 999_999, 1_000_001, (1 << 8 * size) - 1, 1 << 8 * size - 1))
        data[at:at + size] = (number % (1 << 8 * size)).to_bytes(size, rng.choice(("little", "big")))


def put_varint(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    at = rng.randint(0, len(data))
    data[at:at + 1] = rng.choice((b"\xff" * 9 + b"\x01", b"\xbf\x84\x3d", b"\x80\x80\x80\x80\x10", b"\x80\x00"))


def repeat(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    first, last = sorted(rng.randint(0, len(data)) for _ in range(2))
    data[last:last] = data[first:last] * rng.choice((1, 1, 2, 100))


def swap_type(data: bytearray, rng: random.Random, samples: Sequence[bytes]) -> None:
    """The beginning of another message."""
    size = rng.randint(1, 24)
    data[:size] = rng.choice(samples)[:size]


def splice(data: bytearray, rng: random.Random, samples: Sequence[bytes]) -> None:
    """The end of another message."""
    other = rng.choice(samples)
    data[rng.randint(0, len(data)):] = other[rng.randint(0, len(other)):]


VALUES = (b"null", b"-1", b"1e999", b"9" * 5000, b'"x"', b"[]", b"{}", b"[" * MOST_LENGTH, b"1.5", b"true")
TOKEN = re.compile(rb'"[^"]*"|-?[0-9.]+|null')


def swap_value(data: bytearray, rng: random.Random, _: Sequence[bytes]) -> None:
    """Another value where there is one in JSON."""
    found = list(TOKEN.finditer(data))
    if found:
        place = rng.choice(found)
        data[place.start():place.end()] = rng.choice((*VALUES, rng.choice(found).group()))


MUTATIONS = (flip, cut, put_number, put_varint, repeat, swap_type, splice, swap_value)


def genuine(data: bytes) -> None:
    """Whether a seal is taken for one; no other may be."""
    seal = data.decode("utf-8", "surrogateescape")
    assert SEALER.is_genuine("a job", 7, seal) is (seal == SEAL)
    assert not SEALER.is_genuine("a job", 8, seal)


REQUESTS = [one for one in SCHEDULER_MESSAGES if isinstance(one, PollRequest)]
COMMAND = Command(42, 7, 1727049615.25)
CATALOG = Format("catalog", tuple(wire.encode(message)[4:] for message in MESSAGES), wire.decode,
                 (MessageDamaged, UnknownMessage, MessageTooNew), checked, most_bytes=200 << 20)
TRANSFER = Format("transfer", tuple(transfer.encode(message)[4:] for message in SAMPLES), transfer.decode,
                  (FrameDamaged, Unsupported), checked)
FORMATS = [
    CATALOG, TRANSFER,
    Format("hello of a transfer", (Hello("c", "a").encode()[4:], Hello("", "é" * 100).encode()[4:]),
           lambda data: Hello.decode(data, source="a"), (FrameDamaged, Unsupported), checked),
    Format("live set", tuple(IndexSet.from_iterable(indexes).to_bytes() for indexes in (
        [], [5], range(9, 5000), range(0, 9_000, 70))), IndexSet.from_bytes, (CorruptData, Unsupported), checked),
    Format("command of the scheduler", tuple(codec.encode_command(COMMAND, one) for one in list[Any](OPERATIONS)),
           codec.decode_command, (CorruptData, Unsupported), checked),
    Format("message of the scheduler", tuple(map(codec.encode_message, SCHEDULER_MESSAGES)), codec.decode_message,
           (CorruptData, Unsupported), checked),
    Format("command of the catalog", (
        replicated.encode_command(replicated.LowestTime(timestamp(1000))),
        replicated.encode_command(replicated.Claim("n1"))), replicated.decode_command,
        (RecordDamaged, RecordTooNew), measured),
    Format("command of the key-value machine", (
        kv_machine.encode_command(Put("k", b"v" * 50)), kv_machine.encode_command(kv_machine.Delete("a key")),
        kv_machine.encode_command(kv_machine.Rewrite("k", b"v", 9))), kv_machine.decode_command, (InvalidInput,),
        bytes),
    Format("request over HTTP", tuple(http.encode(one, http.JSON) for one in REQUESTS),
           lambda data: http.decode(data, http.JSON, PollRequest), (InvalidInput, Unsupported), bytes),
    Format("seal of a token", (SEAL.encode(), SEALER.seal("another", 7).encode()), genuine, (), bytes),
]


@pytest.mark.parametrize("read", FORMATS, ids=lambda one: one.name)
def test_a_mutated_message_is_a_message_or_a_named_error_in_bounded_memory_and_time(read: Format,
                                                                                   effort: Effort) -> None:
    for sample in read.samples:
        assert read.seal(sample) == sample
        read.decode(sample)
    # What sets of indexes are read with where it is installed: importing it takes more memory than any message may.
    import_module("numpy")
    rng = random.Random(read.name)
    tracemalloc.start()
    try:
        for _ in range(effort(400, 112_000)):
            data = read.mutated(rng)
            tracemalloc.reset_peak()
            before, began = tracemalloc.get_traced_memory()[0], time.thread_time()
            with contextlib.suppress(*read.refusals):
                read.decode(data)
            took, peak = time.thread_time() - began, tracemalloc.get_traced_memory()[1] - before
            assert took < MOST_SECONDS, (took, data[:200])
            assert peak < read.most_bytes + 100 * len(data), (peak, len(data), data[:200])
    finally:
        tracemalloc.stop()


# --- real servers -----------------------------------------------------------------------------------------------------


async def says(address: tuple[str, int], hello: bytes, frames: Sequence[bytes]) -> bytes:
    """What is answered to these frames, until the connection ends."""
    answer = b""
    with contextlib.suppress(ConnectionError):
        reader, writer = await asyncio.open_connection(*address)
        try:
            writer.writelines([hello, *frames])
            writer.write_eof()
            answer = await reader.read()
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
    return answer


def framed(data: bytes, rng: random.Random) -> bytes:
    """With its length, or with a wrong one."""
    length = len(data) if rng.random() < 0.9 else rng.choice((0, len(data) + 1, len(data) - 1, 1 << 30, (1 << 32) - 1))
    return (length % (1 << 32)).to_bytes(4, "little") + data


class Host:
    """A database that answers whatever it is asked."""

    def report(self) -> NodeReport:
        return NodeReport(node=NodeId("b", 1), transactions_from=timestamp(1000))

    def zones(self, since: int) -> dict[int, int]:
        return {1: 2}

    def publish(self, zone: int, partitions: int, lowest: int) -> ZoneResult:
        assert lowest <= timestamp(1000)
        return ZoneResult(zone, published=partitions)

    def confirm(self, topology: Topology) -> bool:
        return False

    def plan(self, *_: object) -> NoReturn:
        raise AssertionError("it does not coordinate")

    compact = plan


def test_a_node_of_the_catalog_goes_on_among_mutated_messages(effort: Effort) -> None:
    async def story() -> None:
        rng, me = random.Random(1), NodeId("b", 1)
        listening = TcpTransport(me, cluster="c", listen=("127.0.0.1", 0))
        round_id = RoundId(5, NodeId("a", 1), 1)
        real = attrs.evolve(CATALOG, samples=(*CATALOG.samples, *(wire.encode(message)[4:] for message in (
            ReportRequest(round_id), PublishTime(round_id, 50), PublishTime(round_id, 1 << 60)))))
        hello = wire.encode(NodeHello("c", NodeId("a", 1)))
        async with CompactionService(me, Host(), listening) as service:
            service.elected(5, "a")
            for _ in range(effort(40, 4_000)):
                await says(listening.address, hello, [framed(real.mutated(rng), rng) for _ in range(5)])
            assert await says(listening.address, hello, []) == wire.encode(NodeHello("c", me))
            assert (service.node.term, service.node.coordinator) == (5, "a")
            assert (service.last_error, listening.last_error) == (None, None)

    asyncio.run(story())


def session(rng: random.Random) -> list[bytes]:
    """A transfer of a snapshot that never becomes whole, some of whose frames say something else."""
    live = rng.choice((IndexSet(), IndexSet.from_iterable([0, 3]), IndexSet.from_iterable([7]))).to_bytes()
    state = rng.randbytes(10)
    envelope = Envelope(rng.getrandbits(64), rng.randint(1, 3), rng.choice((1, 2, 2, 3)))
    meta = SnapshotManifest(
        index=rng.choice((3, 90, (1 << 64) - 1)), term=rng.choice((0, 1, 5)), live_count=rng.choice((0, 1, 2, 1 << 40)),
        live_bytes=rng.choice((0, len(live), len(live), 1 << 50)), live_crc=crc32(live),
        state_bytes=rng.choice((11, 1 << 62)), state_crc=crc32(state))
    entries = tuple(SentEntry(index, 1, crc32(b"z"), b"z") for index in rng.choice(((), (3,), (25, 24), (7,))))
    said: list[TransferMessage] = [
        Offer(envelope, meta, "log"), LiveChunk(envelope, 0, live),
        EntryChunk(envelope, rng.choice((-1, 0, 20)), entries),
        StateChunk(envelope, rng.choice((0, 0, 5, 1 << 60)), state), Probe(envelope)]
    read = attrs.evolve(TRANSFER, samples=(*(transfer.encode(one)[4:] for one in said), *TRANSFER.samples))
    frames = [transfer.encode(one) for one in said]
    for _ in range(rng.randint(0, 3)):
        frames[rng.randrange(len(frames))] = framed(read.mutated(rng), rng)
    return frames


def test_a_snapshot_server_goes_on_among_mutated_messages_and_keeps_what_was_acknowledged(
        tmp_path: Path, effort: Effort) -> None:
    async def story() -> None:
        rng = random.Random(2)
        with KvStore(str(tmp_path / "follower"), with_worker=False) as store:
            store.write([Put(f"k{number}", b"acknowledged") for number in range(20)])
            before = store.items()
        # Each with a server of its own: one that has seen the highest term takes no more from anybody.
        for _ in range(effort(8, 500)):
            async with snapshots(tmp_path, None, {}) as opened:
                for _ in range(3):
                    await says(opened.address, Hello("c", "a").encode(), session(rng))
                assert SERVER_FAILED not in {name for name, _ in opened.observer.events}
        with KvStore(str(tmp_path / "follower"), with_worker=False) as store:
            store.log.audit()
            assert store.items() == before

    asyncio.run(story())
