# SPDX-License-Identifier: Apache-2.0
"""`LocalLog`: the command log of a single node, in the segments of a `SegmentLog`.

A command is applied as soon as it has an index, so that the next command sees its effect. Its caller waits until it
is durable: a single thread at a time writes and syncs the pending commands of all threads. After a disk error, or an
exception of the state machine, the machine and the log may differ: the log closes itself. Open it again, with a
restored machine.

Each opening is a new term, recorded in the log. Entries: `docs/formats/command-log.md`.

Locks, in this order: `_writing`, held during a write and its sync; the guard's, which orders commands; the segment
log's.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

from compactlib._closing import Closing, closed_on_failure
from compactlib._steady_clock import SteadyClock
from compactlib.commandlog.errors import NotStarted, OutOfStep
from compactlib.commandlog.protocol import MAX_PAYLOAD_BYTES, Command, CommandMachine, require_outside_commands
from compactlib.errors import CorruptData, InvalidInput, Unsupported
from compactlib.files.disk import StrPath, local_path
from compactlib.guard import Guard
from compactlib.observer import Observers
from compactlib.raftlog.compaction.plan import DropDead
from compactlib.raftlog.log.segment_log import SegmentLog
from compactlib.raftlog.options import LogOptions
from compactlib.raftlog.values import Entry

_HEAD = struct.Struct("<Bd")
"""The kind of an entry, and its time in seconds."""
_COMMAND = 1
_OPENING = 2


class LocalLog(Closing):
    """A `CommandLog` in a folder, for one process. Commands are durable when `decide` returns.

    The constructor raises as `SegmentLog`.

    Args:
        folder: the folder of the log.
        options: settings of the segments; its clock stamps the commands, its observer receives `command_log_syncs` and
            `command_log_commands`.
        create: whether a missing log is created. If not, a folder without a log is `NotALog`, and is not changed.
        first_index: the first index of a new log, >= 1. If its predecessor was lost and fences remember its tokens: a
            number above them.
    """

    def __init__(self, folder: StrPath, options: LogOptions | None = None, *, create: bool = True,
                 first_index: int = 1) -> None:
        if first_index < 1:
            raise InvalidInput(f"first_index is {first_index}; a log begins at 1 or above")
        self._options = LogOptions() if options is None else options
        self._observer = Observers(self._options.observer)
        self._clock = SteadyClock(self._options.clock)
        self._guard: Guard = Guard(f"the command log in {os.fspath(folder)}")
        self._writing = threading.Lock()
        self._machine: CommandMachine | None = None
        # Commands that were applied and may not be in the log yet.
        self._pending: list[Entry] = []
        self._term = 0
        self._guard.stand_for(local_path(folder))
        self._log = SegmentLog(folder, self._options, create=create)
        self._guard.keep(self._log)
        with closed_on_failure(self._log):
            if first_index > 1 and self._log.last_index < 0:
                self._log.snapshot(first_index - 1, ())
            snapshot = self._log.state
            self._first = max(snapshot.index, 0) + 1
            self._last = max(self._log.last_index, self._first - 1)
            self._durable = self._last
            if snapshot.live:
                kept = self._log.read(snapshot.index)
                if not isinstance(kept, Entry):
                    raise self._damaged(snapshot.index, "the entry with the last term", repr(kept))
                self._term = kept.term

    def start(self, machine: CommandMachine) -> None:
        require_outside_commands(self._guard)
        with self._guard.lock:
            self._guard.require_open()
            if self._machine is not None:
                raise InvalidInput("this log was started before; open another one for another state machine")
            applied = machine.applied_index or self._first - 1
            is_cut = bool(self._log.state.live)  # by `compact`
            if not self._first - 1 <= applied <= self._last or (is_cut and not machine.applied_index):
                raise OutOfStep(applied_index=machine.applied_index, first_index=self._first, last_index=self._last)
            self._guard.begin("its start")
            self._replay(machine, applied)
            self._term += 1
            self._last += 1
            self._log.append([(self._last, self._term, _HEAD.pack(_OPENING, self._clock.now()))])
            self._log.sync()
            self._durable = self._last
            self._machine = machine
            self._guard.done()

    def _replay(self, machine: CommandMachine, applied: int) -> None:
        # From the first entry, also if the machine has applied some: to find the last term, and damage.
        expected = self._first
        for entry in self._log.entries(self._first):
            if entry.index != expected:
                raise self._damaged(expected, f"entry {expected}", f"entry {entry.index}")
            expected += 1
            self._term = entry.term
            if len(entry.payload) < _HEAD.size:
                raise self._damaged(entry.index, f"at least {_HEAD.size} bytes", f"{len(entry.payload)} bytes")
            kind, time = _HEAD.unpack_from(entry.payload)
            if kind not in (_COMMAND, _OPENING):
                raise Unsupported(f"entry {entry.index} of {self._log.folder} is of kind {kind}, this release knows "
                                  f"{_COMMAND} and {_OPENING}; open the log with the release that wrote it")
            if kind == _COMMAND and entry.index > applied:
                machine.apply(Command(entry.index, entry.term, time), entry.payload[_HEAD.size:])
        if expected != self._last + 1:
            raise self._damaged(expected, f"entries up to {self._last}", f"an end before {expected}")

    def _damaged(self, index: int, expected: str, found: str) -> CorruptData:
        return CorruptData(path=self._log.folder, offset=0, expected=expected, found=found, index=index)

    def decide(self, make: Callable[[Command], bytes | None]) -> Any:
        require_outside_commands(self._guard)
        result = None
        with self._guard.lock:
            machine = self._require_started()
            command = Command(self._last + 1, self._term, self._clock.now())
            payload = make(command)
            if payload is not None:
                if len(payload) > MAX_PAYLOAD_BYTES:
                    raise InvalidInput(f"a command of {len(payload)} bytes was given, this log takes at most "
                                       f"{MAX_PAYLOAD_BYTES}; split it")
                entry = Entry(command.index, command.term, _HEAD.pack(_COMMAND, command.appended_at) + payload)
                self._guard.begin(f"command {command.index}")
                result = machine.apply(command, payload)
                self._last = command.index
                self._pending.append(entry)
                self._guard.done()
            awaited = self._last
        if awaited > self._durable:
            pending: list[Entry] = []
            with self._writing:
                if awaited > self._durable:
                    with self._guard.lock:
                        self._guard.require_open()
                        pending = list(self._pending)
                    self._write(pending)
            self._notify(pending)
        return result

    def _write(self, pending: Sequence[Entry]) -> None:
        """Make commands durable; the caller holds `_writing`. Any exception closes the log."""
        if not pending:
            return
        try:
            self._log.append(pending)
            self._log.sync()
        except BaseException as error:
            self._guard.fail(error)
            raise
        # In this order: a pending command is written again, which truncates the log first. So an acknowledged command
        # is not pending.
        del self._pending[:len(pending)]
        self._durable = pending[-1].index

    def _notify(self, written: Sequence[Entry]) -> None:
        """Notify the observer of a batch, under no lock."""
        if written:
            self._observer.event("command_log_syncs", add=1)
            self._observer.event("command_log_commands", add=len(written))

    def compact(self, index: int) -> None:
        require_outside_commands(self._guard)
        with self._writing:
            self._guard.require_open()
            if index > self._durable:
                raise InvalidInput(f"compact to {index} would remove commands that are not durable, which are those "
                                   f"above {self._durable}; compact to the index of a snapshot")
            if index >= self._first:
                # The last covered entry stays: without later entries, it has the last term.
                self._log.snapshot(index, live=[index])
                self._first = index + 1
        self._log.compact(policy=DropDead())

    @property
    def first_index(self) -> int:
        """The index of the first command in the log; `last_index + 1` if there is none."""
        return self._first

    @property
    def last_index(self) -> int:
        """The index of the last command or opening, durable or not."""
        return self._last

    @property
    def term(self) -> int:
        """Count of the log's openings; 0 before `start`."""
        return self._term if self._machine is not None else 0

    def close(self) -> None:
        require_outside_commands(self._guard)
        pending: list[Entry] = []
        try:
            if self._guard.is_open:
                with self._writing, self._guard.lock:
                    if self._guard.is_open:
                        pending = self._pending[:]
                        try:
                            self._write(pending)
                        finally:
                            self._guard.close()
        finally:
            self._guard.release()
        self._notify(pending)

    def _require_started(self) -> CommandMachine:
        self._guard.require_open()
        if self._machine is None:
            raise NotStarted(f"{self._guard.name} has no state machine yet; call start() first")
        return self._machine

    def __repr__(self) -> str:
        return f"LocalLog({self._log.folder!r}, {self._first} to {self._last}, term {self.term})"
