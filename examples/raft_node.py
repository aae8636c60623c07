# SPDX-License-Identifier: Apache-2.0
"""A small Raft: a complete member of a group that replicates a key-value store. Short, because the log does its part.

    MEMBERS="a=127.0.0.1:7001 b=127.0.0.1:7002 c=127.0.0.1:7003"
    python -m examples.raft_node a /tmp/a $MEMBERS &        # and so b and c
    python -m examples.raft_node - put colour blue $MEMBERS
    python -m examples.raft_node - get colour $MEMBERS

What Raft asks for (https://raft.github.io/raft.pdf), and who does it here:

| Raft | done by |
| --- | --- |
| term and vote are durable before they are answered, one vote a term | `RaftLog.record_hard_state` |
| AppendEntries: conflicting entries are removed, repeated or late messages change nothing | `RaftLog.append_entries` |
| the entries that a follower lacks, or its need of the snapshot | `RaftLog.entries_after` |
| snapshots: written in the background, sent, put in force | `SnapshotWriter`, `send_snapshot`, `receive_snapshot` |
| the log stays small: values live in it, and compaction keeps the live entries | `LogCompactionWorker` |
| elections, accepted messages, commits, reads, clients | this file |

Members talk in lines of JSON, a connection each, on loopback only, since nothing here authenticates a member; a
snapshot follows its line. A member's name is its identity: a member that has lost its disk takes a new name.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import os
import random
import re
import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from time import monotonic
from typing import Any

import attrs

from compactlib.errors import CompactlibError, Conflict, InvalidInput, NotFound, Stale
from compactlib.files import LocalFiles, sync_names
from compactlib.raftlog import (
    AppendAnswer,
    AppendEntries,
    Entry,
    LogCompactionWorker,
    MachineCopy,
    SnapshotWriter,
    StateReader,
    StoreOptions,
    open_log,
    receive_snapshot,
    send_snapshot,
)
from compactlib.raftlog.errors import RefusalReason, TransferRefused
from examples.kv_machine import Delete, KvMachine, Put, decode_command, encode_command

MAX_LINE_BYTES = 64 << 20
SNAPSHOT_SECONDS = 60.0
"""Seconds for a stream of a snapshot; then the leader sends the rest in a new stream."""
NOTHING = encode_command(Delete(""))
"""The first entry of a new leader, so that an entry of its own term can be committed."""

Message = dict[str, Any]


@attrs.frozen
class Address:
    """Where a member listens. `InvalidInput` if it is not this machine."""

    host: str
    port: int

    def __attrs_post_init__(self) -> None:
        if self.host not in ("127.0.0.1", "::1", "localhost"):
            raise InvalidInput(f"a member was given {self.host!r} without TLS, where every caller is believed; "
                               "stay on 127.0.0.1")


async def ask(address: Address, message: Message, *, seconds: float) -> Message | None:
    """Return a member's answer; `None` without one: then the member may have carried out the request."""
    with contextlib.suppress(OSError, TimeoutError, ValueError):
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(address.host, address.port, limit=MAX_LINE_BYTES)
            with contextlib.closing(writer):
                writer.write(json.dumps(message).encode() + b"\n")
                await writer.drain()
                line = await reader.readline()
                answer: Message | None = json.loads(line) if line.endswith(b"\n") else None
                return answer
    return None


class Node:
    """One member.

    Args:
        name: which of the members.
        members: all of them, itself included.
        folder: of its log and its snapshots; created if absent.
        options: of the log; `keep_trailing` entries before a snapshot stay, for followers slightly behind it.
        heartbeat: seconds between two messages of a leader; without one for 6 to 12 times as
            long, a member becomes a candidate.
        snapshot_every: entries applied between two snapshots.
        rng: draws the time before it becomes a candidate.
    """

    def __init__(self, name: str, members: Mapping[str, Address], folder: str, options: StoreOptions | None = None, *,
                 heartbeat: float = 0.1, snapshot_every: int = 10_000, rng: random.Random | None = None) -> None:
        self.name, self.members = name, dict(members)
        self.peers = [member for member in members if member != name]
        self.heartbeat, self.rng = heartbeat, rng or random.Random()
        if not os.path.isdir(folder):
            LocalFiles().make_folder(folder)
            sync_names(LocalFiles(), folder)
        options = attrs.evolve(options or StoreOptions(keep_trailing=snapshot_every), machine_of=lambda _: KvMachine())
        self.log = open_log(os.path.join(folder, "log"), options)
        self.machine, self.applying, self.received = KvMachine(), threading.Lock(), 0
        if self.log.state.index >= 0:
            with self.log.open_state() as state:
                self.restore(state)
        self.log.attach(
            lambda log: LogCompactionWorker(log, every_seconds=heartbeat * 5),
            lambda log: SnapshotWriter(log, applied=lambda: self.machine.applied, copy=self.copy_of_machine,
                                       when=snapshot_every, every_seconds=heartbeat * 5))
        self.commit = self.machine.applied
        # The term in which it was elected: it leads as long as that is its term; its first entry then, and its last.
        self.leads = self.first_of_term = self.durable = -1
        self.leader: str | None = None
        # Of each follower: the next index to send, the last index that equals this log's, the last round it answered.
        self.next: dict[str, int] = {}
        self.match: dict[str, int] = {}
        self.heard: dict[str, int] = {}
        self.round = 0
        self.heard_at = self.patience = 0.0
        self.dropped: set[str] = set()
        # Receives a snapshot, and restores the machine by it; nothing else changes the log during that time.
        self.receiving: asyncio.Task[object] | None = None
        self.change = asyncio.Event()

    # -- the machine

    def restore(self, state: StateReader) -> None:
        """Take the state of a snapshot that is in force."""
        machine = KvMachine()
        machine.restore(state.pieces())
        machine.begin_after(state.manifest.index)
        with self.applying:
            self.machine = machine

    def copy_of_machine(self) -> MachineCopy:
        """For a snapshot, in the worker's thread."""
        with self.applying:
            return MachineCopy(self.machine.applied, self.machine.live_set(), self.machine.snapshot())

    def committed(self, index: int) -> None:
        """Everything up to `index` is: apply it."""
        self.commit = max(self.commit, index, self.machine.applied)
        with self.applying:
            for entry in self.log.entries(self.machine.applied + 1, self.commit):
                assert entry.index == max(self.machine.applied, 0) + 1, (entry, self.machine)
                self.machine.apply(entry)
        self.changed()

    def value_of(self, key: str) -> str | None:
        """A key's value, from the log."""
        try:
            entry = self.log.read(self.machine.place_of(key))
        except NotFound:
            return None
        assert isinstance(entry, Entry), entry
        command = decode_command(entry.payload)
        assert isinstance(command, Put), command
        return command.value.decode()

    # -- terms

    @property
    def term(self) -> int:
        """The highest that it knows."""
        return self.log.hard_state.term

    @property
    def is_leader(self) -> bool:
        """Whether it leads, as far as it knows."""
        return self.leads == self.term

    def has_majority(self, peers: int) -> bool:
        """Return whether a number of others, and this member, are a majority."""
        return 2 * (1 + peers) > len(self.members)

    def keep_term(self, term: int) -> None:
        """Note a term durably."""
        with contextlib.suppress(Stale):
            self.log.record_hard_state(term)

    def see_term(self, term: int) -> None:
        """Note a term of a message. A higher term ends this member's leadership, and the transfers of lower terms."""
        if term > self.term:
            self.keep_term(term)
            self.changed()
            self.end_receiving()

    def end_receiving(self) -> None:
        """The stream of a leader that leads no more may stay silent for ever."""
        if self.receiving is not None:
            self.receiving.cancel()

    def last(self) -> tuple[int, int]:
        """Return the term and index of the last entry: the member with the higher pair may lead."""
        index = self.log.last_index
        return self.log.term_of(index) or 0, index

    # -- waiting

    def changed(self) -> None:
        """Wake the waiting threads after a change."""
        change, self.change = self.change, asyncio.Event()
        change.set()

    async def until(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Whether it holds in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not holds():
                    await self.change.wait()
        return holds()

    # -- elections

    async def watch(self) -> None:
        """Become a candidate after the timeout without a leader's message."""
        while True:
            await asyncio.sleep(self.heartbeat)
            if self.is_leader or self.receiving is not None:
                self.hear()
            elif monotonic() - self.heard_at > self.patience:
                self.hear()
                await self.stand()

    def hear(self) -> None:
        """Restart the timeout, after a leader's message or a vote for a candidate."""
        self.heard_at, self.patience = monotonic(), self.heartbeat * self.rng.uniform(6, 12)
        self.changed()

    async def stand(self) -> None:
        """Ask for votes in a new term, and lead if a majority gives theirs."""
        try:
            term = self.log.record_hard_state(self.term + 1, self.name).term
        except Stale:
            return
        self.end_receiving()
        last_term, last_index = self.last()
        question = {"kind": "vote", "term": term, "last_term": last_term, "last_index": last_index}
        votes = 0
        asked = [asyncio.create_task(self.ask(peer, question)) for peer in self.peers]
        for answer in asyncio.as_completed(asked):
            reply = await answer
            if reply is not None:
                self.see_term(reply["term"])
                votes += reply["granted"]
            if self.has_majority(votes):
                break
        if self.has_majority(votes) and self.term == term:
            self.lead(term)

    async def on_vote(self, said: Message) -> Message:
        """A candidate asks."""
        self.see_term(said["term"])
        granted = False
        if said["term"] == self.term and (said["last_term"], said["last_index"]) >= self.last():
            with contextlib.suppress(Conflict, Stale):
                self.log.record_hard_state(said["term"], said["from"])
                granted = True
                self.hear()
        return {"term": self.term, "granted": granted}

    def lead(self, term: int) -> None:
        """It was elected."""
        self.leads, self.leader = term, self.name
        self.next = dict.fromkeys(self.peers, self.log.last_index + 1)
        self.match, self.heard = dict.fromkeys(self.peers, -1), dict.fromkeys(self.peers, 0)
        self.first_of_term = self.append(NOTHING)

    # -- replication

    def append(self, payload: bytes) -> int:
        """As the leader; durably. The followers are sent it at once."""
        self.durable = self.log.append([(max(self.log.last_index, 0) + 1, self.leads, payload)])
        self.log.sync()
        self.advance()
        self.changed()
        return self.durable

    def advance(self) -> None:
        """Commit the entries of a majority, up to the last of this term."""
        index = sorted([self.durable, *self.match.values()], reverse=True)[len(self.members) // 2]
        if index > self.commit and self.log.term_of(index) == self.leads:
            self.committed(index)

    async def replicate(self, peer: str) -> None:
        """While it leads: keep a follower's log the same as this one, and let it know that there is a leader."""
        while True:
            if not self.is_leader:
                await self.change.wait()
                continue
            message, this_round = self.log.entries_after(self.next[peer] - 1), self.round
            takes_more = await (self.bring_up(peer) if message is None else self.send_entries(peer, message))
            if takes_more:
                await self.until(partial(self.has_news, peer, this_round), self.heartbeat)
            else:
                await asyncio.sleep(self.heartbeat)

    def has_news(self, peer: str, last_round: int) -> bool:
        """Whether a follower is to be sent something before the next sign of life."""
        return not self.is_leader or self.round > last_round or self.next[peer] <= self.durable

    async def send_entries(self, peer: str, message: AppendEntries) -> bool:
        """Entries, or a sign of life; whether the follower takes more at once."""
        term, this_round = self.leads, self.round
        reply = await self.ask(peer, {
            "kind": "append", "term": term, "commit": self.commit, "prev_index": message.prev_index,
            "prev_term": message.prev_term,
            "entries": [(index, of, base64.b64encode(data).decode()) for index, of, data in message.entries]})
        if reply is None:
            return False
        self.see_term(reply["term"])
        if not reply["term"] == term == self.term == self.leads:
            return False
        self.heard[peer] = max(self.heard[peer], this_round)
        if "answer" in reply:
            answer = AppendAnswer(**reply["answer"])
            self.next[peer] = self.log.next_index(answer)
            self.match[peer] = max(self.match[peer], answer.match_index)
            self.advance()
        self.changed()
        return "answer" in reply

    async def bring_up(self, peer: str) -> bool:
        """Send the snapshot to a follower that is too far behind; whether it takes entries now."""
        if peer in self.dropped:
            return False
        term, address = self.leads, self.members[peer]
        try:
            async with asyncio.timeout(SNAPSHOT_SECONDS):
                stream = await asyncio.open_connection(address.host, address.port)
                with contextlib.closing(stream[1]):
                    stream[1].write(json.dumps({"kind": "snapshot", "from": self.name, "term": term}).encode() + b"\n")
                    report = await send_snapshot(stream, self.log, term=term)
                    reached = report.index
        except TransferRefused as refused:
            self.see_term(refused.term)
            if refused.reason is not RefusalReason.ALREADY_APPLIED:
                return False
            reached = refused.last_applied
        except (OSError, CompactlibError):
            return False
        if self.leads != term:
            return False
        self.next[peer] = reached + 1
        return True

    async def take_snapshot(self, said: Message, stream: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        """A leader sends its snapshot; the newest stream counts."""
        self.see_term(said["term"])
        before, self.receiving = self.receiving, asyncio.current_task()
        if before is not None:
            before.cancel()
            await asyncio.wait([before])
        self.hear()
        try:
            await receive_snapshot(stream, self.log, last_applied=self.machine.applied)
        finally:
            # A stream that breaks at its end, or a task that is cancelled, may have brought it all the same.
            if self.log.state.index > self.machine.applied:
                with self.log.open_state() as state:
                    self.restore(state)
                self.received += 1
            if self.receiving is asyncio.current_task():
                self.receiving = None

    async def on_append(self, said: Message) -> Message:
        """A leader sends entries, or a sign of life."""
        self.see_term(said["term"])
        if said["term"] < self.term:
            return {"term": self.term}
        self.leader = said["from"]
        self.hear()
        if self.receiving is not None:
            # A snapshot is coming in: nothing else may touch the log.
            return {"term": self.term}
        answer = self.log.append_entries(said["prev_index"], said["prev_term"], (
            (index, term, base64.b64decode(payload)) for index, term, payload in said["entries"]))
        self.committed(min(said["commit"], answer.match_index))
        return {"term": self.term, "answer": attrs.asdict(answer)}

    # -- clients

    async def on_put(self, said: Message) -> Message:
        """Give a key a value: done once it is committed and applied."""
        if not self.is_leader:
            return {"leader": self.leader}
        term = self.leads
        index = self.append(encode_command(Put(said["key"], said["value"].encode())))
        await self.until(lambda: self.term != term or self.machine.applied >= index, said.get("seconds", 10.0))
        # In one and the same term nobody else writes at this index.
        return {"done": True} if self.term == term and self.machine.applied >= index else {"unknown": True}

    async def on_get(self, said: Message) -> Message:
        """A key's value, as it is after everything that was answered before: who leads still has to be asked first."""
        if not self.is_leader:
            return {"leader": self.leader}
        term, read_at = self.leads, max(self.commit, self.first_of_term)
        self.round = this_round = self.round + 1
        self.changed()

        def is_due() -> bool:
            heard = sum(self.heard[peer] >= this_round for peer in self.peers)
            return self.has_majority(heard) and self.machine.applied >= read_at

        await self.until(lambda: self.term != term or is_due(), said.get("seconds", 10.0))
        return {"value": self.value_of(said["key"])} if self.term == term and is_due() else {"leader": None}

    async def on_status(self, _said: Message) -> Message:
        """For who looks."""
        return {"name": self.name, "term": self.term, "is_leader": self.is_leader, "leader": self.leader,
                "commit": self.commit, "applied": self.machine.applied, "last": self.log.last_index,
                "snapshot": self.log.state.index, "received": self.received, "segments": len(self.log.refs),
                "keys": {key: self.value_of(key) for key in sorted(self.machine.places)}}

    async def on_drop(self, said: Message) -> Message:
        """For tests: neither talk nor listen to these members, as if the network were cut."""
        self.dropped = set(said["peers"])
        return {}

    # -- the wire

    async def ask(self, peer: str, message: Message) -> Message | None:
        """What another member answers."""
        if peer in self.dropped:
            return None
        return await ask(self.members[peer], {**message, "from": self.name}, seconds=self.heartbeat * 20)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One question of a member or a client, or a snapshot."""
        answers: dict[str, Callable[[Message], Awaitable[Message]]] = {
            "vote": self.on_vote, "append": self.on_append, "put": self.on_put, "get": self.on_get,
            "status": self.on_status, "drop": self.on_drop}
        with contextlib.closing(writer), contextlib.suppress(OSError, ValueError):
            line = await reader.readline()
            said = json.loads(line) if line.endswith(b"\n") else {}
            if said.get("from") in self.dropped:
                return
            if said.get("kind") == "snapshot":
                with contextlib.suppress(CompactlibError):
                    await self.take_snapshot(said, (reader, writer))
            elif said.get("kind") in answers:
                writer.write(json.dumps(await answers[said["kind"]](said)).encode() + b"\n")
                await writer.drain()

    async def run(self) -> None:
        """Until cancelled."""
        here = self.members[self.name]
        server = await asyncio.start_server(self.serve, here.host, here.port, limit=MAX_LINE_BYTES)
        self.hear()
        async with server, asyncio.TaskGroup() as tasks:
            tasks.create_task(self.watch())
            for peer in self.peers:
                tasks.create_task(self.replicate(peer))


class Client:
    """Calls the leader, whichever member that is; waits up to `seconds` for each answer."""

    def __init__(self, members: Mapping[str, Address], *, seconds: float = 5.0) -> None:
        self.members, self.seconds = dict(members), seconds
        self.first = next(iter(self.members))

    async def ask(self, message: Message) -> Message | None:
        """Return the leader's answer; `None` if the outcome is unknown."""
        while True:
            answer = await ask(self.members[self.first], {**message, "seconds": self.seconds / 2}, seconds=self.seconds)
            if answer is not None and not {"leader", "unknown"} & answer.keys():
                return answer
            names = list(self.members)
            here, self.first = self.first, names[(names.index(self.first) + 1) % len(names)]
            if answer is None or "unknown" in answer:
                return None
            if answer["leader"] not in (None, here):
                self.first = answer["leader"]
            else:
                await asyncio.sleep(0.05)

    async def put(self, key: str, value: str) -> bool:
        """Whether it was done; if not, it is unknown: it may have been, or may be yet."""
        return await self.ask({"kind": "put", "key": key, "value": value}) is not None

    async def get(self, key: str) -> str | None:
        """A key's value, or `None` if it has none."""
        while (answer := await self.ask({"kind": "get", "key": key})) is None:
            pass
        value: str | None = answer["value"]
        return value


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", help="of this member; - for a client")
    parser.add_argument("what", nargs="+", help="the member's folder, or put KEY VALUE, or get KEY; then all members")
    parser.add_argument("--heartbeat", type=float, default=0.1)
    parser.add_argument("--snapshot-every", type=int, default=10_000)
    parser.add_argument("--keep-trailing", type=int, default=10_000)
    arguments = parser.parse_args()
    members = {}
    for name, host, port in (re.split("[=:]", word) for word in arguments.what if "=" in word):
        members[name] = Address(host, int(port))
    words = [word for word in arguments.what if "=" not in word]
    if arguments.name == "-":
        client = Client(members)
        print(asyncio.run(client.get(words[1]) if words[0] == "get" else client.put(words[1], words[2])))
        return
    node = Node(arguments.name, members, words[0], StoreOptions(keep_trailing=arguments.keep_trailing),
                heartbeat=arguments.heartbeat, snapshot_every=arguments.snapshot_every)
    with node.log, contextlib.suppress(KeyboardInterrupt):
        asyncio.run(node.run())


if __name__ == "__main__":
    main()
