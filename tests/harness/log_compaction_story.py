# SPDX-License-Identifier: Apache-2.0
"""The language of `promises/scenarios/raftlog/compaction_*.txt`: commands on a log, and expectations.

One command a line; `#` begins a comment. Numbers are written `1,2,20` or `1..16`; files `1` and `2->1`.

| command | effect |
| --- | --- |
| `limits entries=16 bytes=1000` | for segments that are created from here on (default 16 entries) |
| `append 1..16 term 2 size 100` | entries with payloads that contain index and term, or of `size` zero bytes |
| `sync`, `reopen`, `wait 61 seconds` | |
| `snapshot 48 live 1,2,20` | `live none` for an empty live set |
| `compact`, `compact by seed` | by the log's own rule, or by the policy `drop` or `seed` |
| `crash compact by seed after 11 operations` | the first 11 operations are on the disk |
| `crash compact by seed before "unlink *" losing "rename *"` | at the first match; loses matching unsynced changes |
| `crash compact by seed before last "unlink *" losing everything` | at the last match; loses all unsynced changes |
| `unsynced 45 term 2` | an entry that the next `crash` appends first, and does not sync |
| `take lease`, `take plan 1..20` | a lease of the files, and one for a read of these indexes |
| `damage 21`, `repair 21` | one byte of the payload, in the segment file |
| `refuse "create *rewrite-*"`, `heal` | the disk refuses matching changes with "no space left" |
| `garbage NAME`, `remove NAME`, `drop entry 20` | a stray file; a file; an entry left out of its (rewritten) segment |
| `expect ...` | see `Story.expect_*` |
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compactlib.clock import ManualClock
from compactlib.errors import CompactionFailed, CompactlibError, CorruptData, DiskFull
from compactlib.files import Files, LocalFiles
from compactlib.raftlog import (
    DeadEntry,
    DropDead,
    Entry,
    LogOptions,
    LogReader,
    MissingEntry,
    SeedPolicy,
    SegmentLimits,
    SegmentLog,
)
from compactlib.testing import Choices, FilesInFront, RecordingFiles, Request, record, repeat_crash
from tests.harness.plain_log import PlainLog

POLICIES: dict[str, Callable[[], Any]] = {"drop": DropDead, "seed": SeedPolicy}


def numbers(text: str) -> list[int]:
    """Parse `1,2,20..22`."""
    found: list[int] = []
    for part in [] if text == "none" else text.split(","):
        first, _, last = part.partition("..")
        found.extend(range(int(first), int(last or first) + 1))
    return found


SEGMENT = "{:016d}.segment"


def number_of(name: str) -> int | None:
    """Return the number in the name of a segment's file; `None` for any other name."""
    found = re.fullmatch(r"(\d{16})\.segment", name)
    return int(found[1]) if found else None


def payload_of(index: int, term: int = 1) -> bytes:
    """Return a payload whose length and bytes identify its entry; each fifth is empty."""
    return b"" if index % 5 == 0 else b"%d in %d, " % (index, term) * (1 + index % 3)


class Crash(Choices):
    """Picks a crash after some operations, which loses the unsynced changes that match a pattern."""

    def __init__(self, point: int, losing: str) -> None:
        super().__init__()
        self.lost = 0
        self._point, self._losing = point, losing

    def pick(self, name: str, ordinary: Any, *others: Any) -> Any:
        number, _, change = name.partition(" ")
        if number == "operations":
            return (ordinary, *others)[self._point]
        if not number.isdigit() or not fnmatch.fnmatch(change, self._losing):
            return ordinary
        self.lost += 1
        return next(other for other in others if str(other) == "LOST")


class Story:
    """Carries out a scenario in a folder, and checks its expectations."""

    def __init__(self, folder: Path) -> None:
        self.base, self.folder, self.crashes = folder, folder / "log", 0
        self.limits = SegmentLimits(max_entries=16)
        self.clock = ManualClock(time.time())
        self.refused: list[str] = []
        self.unsynced: list[tuple[int, int]] = []
        self.written: dict[int, Entry] = {}
        self.snapshot: tuple[int, list[int]] = (-1, [])
        self.report: Any = None
        self.error: Exception | None = None
        self.plan: Any = None
        self.plan_indexes: list[int] = []
        self.lease: Any = None
        self._log: SegmentLog | None = None

    @property
    def log(self) -> SegmentLog:
        """The log, opened if it is not."""
        if self._log is None:
            self._log = SegmentLog(self.folder, self._options(FilesInFront(self._refuse)))
        return self._log

    def _options(self, files: Files | None = None) -> Any:
        return LogOptions(limits=self.limits, clock=self.clock, keep_links_seconds=60.0,
                          files=LocalFiles() if files is None else files)

    def _refuse(self, request: Request, act: Callable[[], Any]) -> Any:
        if any(fnmatch.fnmatch(f"{request.kind} {request.target or request.path}", glob) for glob in self.refused):
            raise DiskFull(operation=request.kind, path=request.path, errno=28)
        return act()

    def run(self, text: str) -> None:
        """Carry out all lines; a failure has the line."""
        try:
            for place, line in enumerate(text.splitlines(), 1):
                words = shlex.split(line, comments=True)
                if words:
                    try:
                        self._command(words)
                    except Exception as error:
                        error.add_note(f"in line {place}: {line}")
                        raise
        finally:
            self.close()

    def close(self) -> None:
        """Close the log, if it is open."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _command(self, words: list[str]) -> None:
        for count in (2, 1):
            method = getattr(self, "do_" + "_".join(words[:count]).replace("-", "_"), None)
            if method is not None:
                method(*words[count:])
                return
        raise AssertionError(f"not understood: {' '.join(words)}")

    # -- the log

    def do_limits(self, *settings: str) -> None:
        values = {f"max_{name}": int(value) for name, value in (setting.split("=") for setting in settings)}
        self.close()
        self.limits = SegmentLimits(**{"max_entries": 16, **values})

    def do_append(self, indexes: str, *rest: str) -> None:
        given = dict(zip(rest[::2], map(int, rest[1::2]), strict=True))
        term = given.get("term", 1)
        for index in numbers(indexes):
            payload = bytes(given["size"]) if "size" in given else payload_of(index, term)
            self.written = {other: entry for other, entry in self.written.items() if other < index}
            self.written[index] = Entry(index, term, payload)
            self.log.append([(index, term, payload)])

    def do_sync(self) -> None:
        self.log.sync()

    def do_reopen(self) -> None:
        self.close()
        assert self.log is not None

    def do_wait(self, seconds: str, _: str) -> None:
        # Links have times of the system's clock: after this wait they are old enough.
        self.clock.advance(max(time.time() - self.clock.now(), 0.0) + float(seconds))

    def do_snapshot(self, index: str, _: str, live: str) -> None:
        self.log.snapshot(int(index), numbers(live))
        self.snapshot = int(index), numbers(live)

    def do_compact(self, *by: str) -> None:
        assert not by or by[1] in POLICIES, by
        self.report = self.error = None
        try:
            self.report = self.log.compact(policy=POLICIES[by[1]]() if by else None)
        except CompactlibError as error:
            self.error, self.report = error, getattr(error, "report", None)

    def do_reclaim(self) -> None:
        self.log.reclaim()

    def do_take_lease(self) -> None:
        self.lease = self.log.lease()

    def do_take_plan(self, indexes: str) -> None:
        self.plan, self.plan_indexes = self.log.lease(), numbers(indexes)

    # -- faults

    def do_crash(self, _compact: str, _by: str, policy: str, when: str, *rest: str) -> None:
        assert self.log is not None
        self.close()

        opened = 0

        def compact(folder: Path, files: RecordingFiles) -> None:
            nonlocal opened
            with SegmentLog(folder, self._options(files)) as log:
                opened = len(files.recording().operations)
                for index, term in self.unsynced:
                    log.append([(index, term, payload_of(index, term))])
                with contextlib.suppress(CompactionFailed):
                    log.compact(policy=POLICIES[policy]())

        recording = record(self.folder, compact)
        operations = [str(operation) for operation in recording.operations]
        if when == "after":
            point = int(rest[0])
        else:
            matches = [place for place, operation in enumerate(operations)
                       if place >= opened and fnmatch.fnmatch(operation, rest[1] if rest[0] == "last" else rest[0])]
            assert matches, f"no operation matches {rest}"
            point = matches[-1 if rest[0] == "last" else 0]
        losing = rest[rest.index("losing") + 1] if "losing" in rest else ""
        crash = Crash(point, "*" if losing == "everything" else losing)
        self.crashes += 1
        self.folder = self.base / f"after-crash-{self.crashes}"
        repeat_crash(recording, crash, self.folder)
        assert crash.lost or not losing, f"nothing that can be lost matches {losing!r}"
        self.unsynced.clear()

    def do_unsynced(self, index: str, _: str, term: str) -> None:
        self.unsynced.append((int(index), int(term)))

    def do_damage(self, index: str) -> None:
        number = next(ref.number for ref in self.log.refs if ref.first <= int(index) <= ref.last)
        path = self.folder / SEGMENT.format(number)
        data = bytearray(path.read_bytes())
        payload = self.written[int(index)].payload
        # Its first byte may have been damaged before.
        first = re.escape(payload[:1]) + b"|" + re.escape(bytes([payload[0] ^ 0xFF]))
        place = re.search(rb"(?<!\d)(" + first + rb")" + re.escape(payload[1:]), data, re.DOTALL)
        assert place is not None
        data[place.start()] ^= 0xFF
        path.write_bytes(data)

    do_repair = do_damage

    def do_refuse(self, glob: str) -> None:
        assert self.log is not None
        self.refused.append(glob)

    def do_heal(self) -> None:
        self.refused.clear()

    def do_garbage(self, name: str) -> None:
        self.close()
        (self.folder / name).write_bytes(b"\x83neither this nor that")

    def do_remove(self, name: str) -> None:
        self.close()
        (self.folder / name).unlink()

    def do_drop_entry(self, index: str) -> None:
        ref = next(ref for ref in self.log.refs if ref.first <= int(index) <= ref.last)
        number = ref.number
        self.close()
        kept = [entry for entry in self.written.values() if ref.first <= entry.index <= ref.last
                and entry.index != int(index)]
        # Write the segment as if the log had never had the entry.
        other = self.base / f"without-{index}"
        before = range(kept[0].index - (number - 1) * len(kept), kept[0].index)
        with SegmentLog(other, LogOptions(limits=SegmentLimits(max_entries=len(kept)))) as log:
            log.append([*(Entry(each, 1, b"") for each in before), *kept])
            log.append([(kept[-1].index + 1, kept[-1].term, b"")])
        path = self.folder / SEGMENT.format(number)
        path.unlink()
        path.write_bytes((other / path.name).read_bytes())

    # -- expectations

    @property
    def expected(self) -> PlainLog:
        """The expected content."""
        plain = PlainLog(dict(self.written))
        index, live = self.snapshot
        if index >= 0:
            plain.record_snapshot(index, live)
        return plain

    def do_expect_files(self, *files: str) -> None:
        """The segment files and links, and nothing else but the snapshot and the lock."""
        found = [f"{number_of(name)}->{number_of(os.readlink(self.folder / name))}"
                 if os.path.islink(self.folder / name) else f"{number_of(name)}"
                 for name in sorted(os.listdir(self.folder)) if number_of(name) is not None]
        assert found == list(files), found
        others = {name for name in os.listdir(self.folder) if number_of(name) is None}
        assert others <= {"LOCK", "SNAPSHOT"}, others

    def do_expect_refs(self, *refs: str) -> None:
        found = [f"{ref.number}{{{ref.first},{ref.last}}}" for ref in self.log.refs]
        assert found == list(refs), found

    def do_expect_live(self, _: str) -> None:
        """Require that the log and a reader read every live entry, and that all others are dead or missing."""
        if self._log is not None:
            # So that the reader finds the entries in memory, too.
            self.log.sync()
        with LogReader(self.folder) as reader:
            self.expected.check(reader)
        self.expected.check(self.log)
        names = [name for name in os.listdir(self.folder) if number_of(name) is None]
        assert {*names} <= {"LOCK", "SNAPSHOT"}, names

    def do_expect_done(self, *words: str) -> None:
        """Require `dropped 2,3`, `merged 1,4` once for each group, `failed 5,6 DiskFull`, `kept 7`."""
        report = self.report
        assert report is not None, self.error
        assert isinstance(self.error, CompactionFailed) == bool(report.failed)
        told: list[str] = []
        if report.dropped:
            told.append("dropped " + ",".join(map(str, report.dropped)))
        told += ["merged " + ",".join(map(str, group.members)) for group in report.done]
        told += [f"failed {','.join(map(str, group.members))} {type(group.error).__name__}" for group in report.failed]
        wanted = [",".join(map(str, numbers(word))) if word[0].isdigit() else word for word in words]
        assert " ".join(told) == " ".join(wanted), told

    def do_expect_skipped(self, text: str) -> None:
        assert self.report is not None, self.error
        assert self.report.is_empty
        assert text in self.report.why, self.report

    def do_expect_failed(self, name: str) -> None:
        assert self.error is not None, self.report
        found = [self.error, *getattr(self.error, "failures", {}).values()]
        assert name in {type(error).__name__ for error in found}, found

    def do_expect_recovered(self, what: str, members: str = "") -> None:
        """Require `finished 1,2,3`, `undone 1,2,3` or `nothing` of the last opening."""
        recovery = self.log.recovery
        if what == "nothing":
            assert not recovery, recovery
        elif what == "undone":
            name = "-".join(f"{number:016d}" for number in numbers(members)) + ".compacting"
            assert name in recovery.removed, recovery
        else:
            assert tuple(numbers(members)) in recovery.finished, recovery

    def do_expect_read(self, indexes: str, what: str) -> None:
        """Require `dead`, `missing`, `damaged`, or `term 2`."""
        for index in numbers(indexes):
            if what == "damaged":
                try:
                    self.log.read(index)
                except CorruptData as error:
                    assert error.index == index
                else:
                    raise AssertionError(f"{index} is readable")
            else:
                answer = self.log.read(index)
                found = (f"term{answer.term}" if isinstance(answer, Entry)
                         else type(answer).__name__.removesuffix("Entry").lower())
                assert found == what, answer
                assert isinstance(answer, Entry | DeadEntry | MissingEntry)

    def do_expect_plan(self, *_: str) -> None:
        """Require that the earlier read plan returns the results of the log of now."""
        assert self.plan is not None
        found = self.log.read_many(self.plan_indexes)
        assert list(found) == [self.expected.answer(index) for index in self.plan_indexes]

    def do_expect_open(self, name: str) -> None:
        """Require that opening raises this error, and changes nothing."""
        self.close()
        try:
            SegmentLog(self.folder, self._options()).close()
        except Exception as error:
            assert type(error).__name__ == name, error
        else:
            raise AssertionError("it opened")
