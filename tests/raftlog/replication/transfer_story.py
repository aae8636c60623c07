# SPDX-License-Identifier: Apache-2.0
"""The language of `tests/raftlog/scenarios/transfer_*.txt`: a leader, a follower, and what their line does.

One command a line; what follows `#` is for the reader. Letters under way are counted from 1.

| command | what it does |
| --- | --- |
| `leader applies 30` | commands of its own, at random but the same each time |
| `leader compacts` | takes a snapshot and drops what is dead by it and not pinned |
| `follower has everything` | it has applied what the leader has, the ordinary way |
| `send` | a new transfer of the leader's newest snapshot; one under way is forgotten, as by a restart |
| `deliver 2`, `deliver until entries`, `deliver all` | hand letters over: so many, until a kind comes, or all |
| `repeat letter 1`, `drop letter 2`, `swap letters 1 2`, `cut the line` | what a network does |
| `damage entry`, `damage state` | on its way into the next chunk, before the frame is made |
| `wait 5 seconds` | both sides look at the clock |
| `disk is slow`, `disk catches up` | entries are not durable until then |
| `receiver restarts`, `... empty-handed`, `... torn` | with what it had staged of the state; without; damaged |
| `term 4 begins` | the follower hears of it; `leader knows` tells the leader |
| `expect trace` | the next lines, indented, are the letters handed over since the last one |
| `expect sender sending`, `expect receiver idle` | the stages |
| `expect done`, `expect skipped`, `expect aborted timed_out` | how it ended, at the sender |
| `expect follower equals`, `expect follower unchanged` | state and live entries, or the log at its last applied entry |
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import attrs

from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog.replication.errors import TransferAborted
from compactlib.raftlog.replication.messages import EntryChunk, StateChunk, TransferMessage
from compactlib.raftlog.replication.wire import LENGTH_BYTES, decode, encode
from tests.raftlog.replication.transfer_world import Letter, World, places_of


class TransferStory:
    """Plays one scenario."""

    def __init__(self) -> None:
        self.world = World(random.Random(1), commands=0)
        self.said = 0
        self.commands: dict[str, Callable[[list[str]], None]] = {
            name.removeprefix("do_"): getattr(self, name) for name in dir(self) if name.startswith("do_")}

    def run(self, text: str) -> None:
        """Play the lines; an error names the line."""
        lines: Iterator[tuple[int, str]] = iter(enumerate(text.splitlines(), 1))
        for number, line in lines:
            words = line.split("#")[0].split()
            if not words:
                continue
            try:
                if words == ["expect", "trace"]:
                    lines = self.expect_trace(lines)
                else:
                    self.commands[words[0]](words[1:])
            except Exception as error:
                error.add_note(f"in line {number}: {line}")
                raise

    def expect_trace(self, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
        """The indented lines that follow are what was handed over."""
        rest = list(lines)
        wanted = []
        while rest and rest[0][1].startswith("  "):
            wanted.append(rest.pop(0)[1].split("#")[0].strip())
        found = self.world.trace[self.said:]
        self.said = len(self.world.trace)
        assert found == wanted, "\n".join(["the letters were", *(f"  {each}" for each in found)])
        return iter(rest)

    def do_leader(self, words: list[str]) -> None:
        if words[0] == "applies":
            self.world.leader.apply(int(words[1]))
        elif words[0] == "knows":
            self.world.by_sender(self.world.sender.observe_term(self.world.follower.term, self.world.now))
        else:
            assert words == ["compacts"], words
            self.world.leader.take()

    def do_follower(self, words: list[str]) -> None:
        assert words == ["has", "everything"], words
        leader, follower = self.world.leader, self.world.follower
        follower.log = dict(leader.log)
        follower.durable = set(leader.log)
        follower.places = dict(leader.places)
        follower.last_applied = leader.last

    def do_send(self, words: list[str]) -> None:
        self.world.start_sender()

    def do_deliver(self, words: list[str]) -> None:
        if words[0] == "all":
            while self.world.network:
                self.world.deliver(0)
        elif words[0] == "until":
            while self.kind(0).lower() not in (words[1], words[1] + "chunk", words[1].rstrip("s") + "chunk",
                                               words[1].replace("entries", "entrychunk")):
                self.world.deliver(0)
        else:
            for _ in range(int(words[0])):
                self.world.deliver(0)

    def kind(self, place: int) -> str:
        return type(self.message(place)).__name__

    def message(self, place: int) -> TransferMessage:
        return decode(self.world.network[place].frame[LENGTH_BYTES:])

    def do_repeat(self, words: list[str]) -> None:
        self.world.deliver(int(words[1]) - 1, keep=True)

    def do_drop(self, words: list[str]) -> None:
        self.world.network.pop(int(words[1]) - 1)

    def do_swap(self, words: list[str]) -> None:
        one, other = (int(word) - 1 for word in words[1:])
        letters = self.world.network
        letters[one], letters[other] = letters[other], letters[one]

    def do_cut(self, words: list[str]) -> None:
        self.world.network.clear()

    def do_damage(self, words: list[str]) -> None:
        wanted = EntryChunk if words[0] == "entry" else StateChunk
        place = next(place for place in range(len(self.world.network)) if isinstance(self.message(place), wanted))
        message = self.message(place)
        if isinstance(message, EntryChunk):
            bad = attrs.evolve(message.entries[0], payload=message.entries[0].payload + b"!")
            message = attrs.evolve(message, entries=(bad, *message.entries[1:]))
        else:
            assert isinstance(message, StateChunk)
            message = attrs.evolve(message, data=b"?" + message.data[1:])
        self.world.network[place] = Letter(True, encode(message))

    def do_wait(self, words: list[str]) -> None:
        self.world.pass_time(float(words[0]))

    def do_disk(self, words: list[str]) -> None:
        self.world.disk_is_slow = words == ["is", "slow"]
        if words == ["catches", "up"]:
            self.world.let_disk_catch_up()

    def do_receiver(self, words: list[str]) -> None:
        self.world.restart_receiver(keep_staged="empty-handed" not in words, tear_staged="torn" in words)

    def do_term(self, words: list[str]) -> None:
        self.world.follower.term = int(words[0])
        self.world.by_receiver(self.world.receiver.observe_term(int(words[0])))

    def do_expect(self, words: list[str]) -> None:
        outcome = self.world.sender_outcome
        match words:
            case ["sender", stage]:
                assert self.world.sender.stage == stage, self.world.sender
            case ["receiver", stage]:
                assert self.world.receiver.stage == stage, self.world.receiver
            case ["done"]:
                assert isinstance(outcome, Done), outcome
            case ["skipped"]:
                assert isinstance(outcome, Skipped), outcome
            case ["aborted", reason]:
                assert isinstance(outcome, Failed), outcome
                assert isinstance(outcome.error, TransferAborted)
                assert outcome.error.reason.name.lower() == reason, outcome.error
            case ["follower", "equals"]:
                assert self.world.follower.installed[-1] == self.world.sent.manifest
                assert self.world.follower.places == places_of(self.world.sent.state)
                self.world.judge_follower()
            case ["follower", "unchanged"]:
                assert not self.world.follower.installed
                assert max(self.world.follower.log, default=-1) <= self.world.follower.last_applied
                self.world.judge_follower()
            case _:
                raise AssertionError(f"no such expectation: {words}")
