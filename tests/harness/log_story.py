# SPDX-License-Identifier: Apache-2.0
"""The language of `promises/scenarios/raftlog/log_*.txt`: commands on a `RaftLog`, and expectations.

One command a line; `#` begins a comment. Numbers are written `1,2,20` or `1..16`, `none` for no number.

| command | effect |
| --- | --- |
| `append 1..16 term 2` | consecutive entries, with payloads that contain index and term |
| `sync`, `flush`, `reset 5`, `compact major` | |
| `snapshot 8 live 3,5` | |
| `receive 15 term 3 live 2,9 applied 7` | a leader's snapshot, with equal entries up to the applied index |
| `reopen` | close and open |
| `kill` | the process ends: unsynced entries are lost |
| `expect entries 1,2,5..9`, `expect terms 1..3 2` | the readable entries, and their term |
| `expect last 9`, `expect unconfirmed 6,7`, `expect memory 4`, `expect segments 2`, `expect wal files 1` | |

A command that must be refused ends in `=> ` and the error's name.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from compactlib.errors import CompactlibError, InvalidInput
from compactlib.raftlog import (
    DropDead,
    LogOptions,
    RaftLog,
    SeedPolicy,
    SegmentLimits,
    StoreOptions,
    open_log,
)
from tests.harness.log_compaction_story import numbers
from tests.harness.snapshot_line import transfer

OPTIONS = StoreOptions(background=False, log=LogOptions(limits=SegmentLimits(max_entries=8), keep_links_seconds=0.0))


def payload(index: int, term: int) -> bytes:
    return b"%d in term %d" % (index, term)


class LogStory:
    """Carries out a scenario in a folder."""

    def __init__(self, folder: Path) -> None:
        self.base = folder
        self.lives = self.received = 0
        self.log: RaftLog = open_log(folder / "life-0", OPTIONS)
        self.abandoned: list[RaftLog] = []

    def run(self, text: str) -> None:
        """Carry out all lines; a failure has the line."""
        try:
            for place, line in enumerate(text.splitlines(), 1):
                command, _, wanted = line.partition("#")[0].partition("=>")
                if command.split():
                    try:
                        self._one(command.split(), wanted.strip())
                    except Exception as error:
                        error.add_note(f"in line {place}: {line}")
                        raise
        finally:
            for log in (self.log, *self.abandoned):
                log.close()

    def _one(self, words: list[str], wanted: str) -> None:
        run: Callable[..., str | None] | None = getattr(self, f"do_{words[0]}", None)
        if run is None:
            raise InvalidInput(f"a story has no command {words[0]!r}")
        try:
            answer = run(*words[1:]) or ""
        except CompactlibError as error:
            if not wanted:
                raise
            answer = type(error).__name__
        assert answer == wanted, f"answered {answer!r}, expected {wanted!r}"

    def do_append(self, which: str, _term: str = "term", term: str = "1") -> None:
        self.log.append((index, int(term), payload(index, int(term))) for index in numbers(which))

    def do_entries(self, which: str, _term: str, term: str, _after: str, _prev: str, prev_term: str) -> None:
        indexes = numbers(which)
        answer = self.log.append_entries(indexes[0] - 1, int(prev_term), (
            (index, int(term), payload(index, int(term))) for index in indexes))
        assert answer.success

    def do_sync(self) -> None:
        self.log.sync()

    def do_flush(self) -> None:
        self.log.flush()

    def do_reset(self, last: str) -> None:
        self.log.reset(int(last))

    def do_compact(self, _: str, policy: str) -> None:
        self.log.compact(policy=DropDead() if policy == "drop" else SeedPolicy())

    def do_snapshot(self, index: str, _live: str = "live", live: str = "none") -> None:
        self.log.snapshot(int(index), numbers(live))

    def do_receive(self, index: str, *rest: str) -> None:
        given = named(rest)
        term, applied = int(given["term"]), int(given["applied"])
        self.received += 1
        with open_log(self.base / f"leader-{self.received}", OPTIONS) as leader:
            for each in range(1, int(index) + 1):
                old = self.log.term_of(each) if each <= applied else term
                leader.append([(each, old or 1, payload(each, old or 1))])
            leader.snapshot(int(index), numbers(given["live"]), [b"the state"])
            ended = transfer(leader, self.log, applied=applied, term=term)
        if not ended.is_well:
            raise ended.received

    def do_reopen(self) -> None:
        self.log.close()
        self.log = open_log(self.base / f"life-{self.lives}", OPTIONS)

    def do_kill(self) -> None:
        self.abandoned.append(self.log)
        before = self.base / f"life-{self.lives}"
        self.lives += 1
        after = self.base / f"life-{self.lives}"
        shutil.copytree(before, after, symlinks=True)
        self.log = open_log(after, OPTIONS)

    def do_expect(self, what: str, *rest: str) -> None:
        status = self.log.status()
        found: object
        wanted: object = numbers(rest[-1])
        match what:
            case "entries":
                found = [entry.index for entry in self.log.entries()]
                assert all(entry.payload in (payload(entry.index, entry.term), b"") for entry in self.log.entries())
            case "terms":
                wanted = int(rest[1])
                (found,) = {self.log.term_of(index) for index in numbers(rest[0])}
            case "unconfirmed":
                found = list(self.log.unconfirmed)
            case "last" | "memory" | "segments" | "wal":
                wanted = int(rest[-1])
                wal = len(list((self.base / f"life-{self.lives}" / "wal").glob("*.wal")))
                found = {"last": status.last_index, "memory": status.memtable_entries, "segments": status.segments,
                         "wal": wal}[what]
            case _:
                raise InvalidInput(f"a story cannot expect {what!r}")
        assert found == wanted, f"{what}: found {found}, expected {wanted}"
        self.log.audit()


def named(words: Sequence[str]) -> dict[str, str]:
    """Parse `after 5 term 2` into a dictionary."""
    return dict(zip(words[::2], words[1::2], strict=True))
