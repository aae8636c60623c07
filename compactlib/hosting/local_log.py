# SPDX-License-Identifier: Apache-2.0
"""`LocalLog`: the command log of a single node, in raftlog segments.

A command is carried out as soon as it has its place, so that the next one can build on it; its proposer waits until it
is durable, together with all others that were proposed meanwhile: one sync for any number of threads. What was carried
out and could not be made durable was not acknowledged, but it is in the machine: the log then takes no commands any
more (`LogBroken`), and a restored machine takes over.

Each opening is a new term, noted in the log. Entries: `docs/formats/command-log.md`.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from compactlib._arguments import require_type
from compactlib._closing import Closing
from compactlib.errors import Busy, Closed, CompactionFailed, CorruptData, InvalidInput, StorageError, Unsupported
from compactlib.files.disk import StrPath
from compactlib.hosting.command_log import CommandMachine
from compactlib.hosting.errors import LogBroken, NotStarted, OutOfStep
from compactlib.kv.errors import OutcomeUnknown
from compactlib.kv.parts.group_commit import GroupCommit
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog import DropDead, Entry, LogOptions, SegmentLog
from compactlib.runtime import SteadyClock
from compactlib.runtime.later import LaterObserver
from compactlib.runtime.owned_lock import OwnedLock
from compactlib.scheduler.model.values import Command

_HEAD = struct.Struct(">Bq")
_COMMAND = 1
_OPENING = 2
_MAX_PAYLOAD_BYTES = 64 << 20
_MAX_BATCH = 10_000


@attrs.frozen
class _Pending:
    """A command that was carried out and is not in the log yet."""

    index: int
    term: int
    entry: bytes


class LocalLog(Closing):
    """A `CommandLog` in a folder, for one process. Commands are durable when `propose` returns.

    Args:
        folder: made if there is none.
        options: how the segments are kept; its clock gives commands their time, held against the monotonic clock
            (`SteadyClock`; give one of your own for other bounds, or to `accept` a jump), its observer is notified
            `command_log_syncs` and `command_log_commands`.
        create: whether the log may be made. If not, a folder without one is `NotALog`, and stays as it is.

    Raises:
        Busy: another process, or another object in this one, has it open.
        NotALog: the folder holds other things; or no log, and `create` is not set.
        CorruptData: the log is damaged.
        Unsupported: it was written by a later release.
        StorageError: the disk refused.
    """

    def __init__(self, folder: StrPath, options: LogOptions | None = None, *, create: bool = True) -> None:
        self._options = LogOptions() if options is None else options
        self._machine: CommandMachine | None = None
        self._pending: list[_Pending] = []
        self._broken: str | None = None
        self._closed = False
        self._observer = LaterObserver(self._options.observer)
        self._order = OwnedLock(f"the log in {os.fspath(folder)}")
        # Taken last: a snapshot syncs what was written, and must not meet what is written and not synced.
        self._writing = OwnedLock(f"the entries of the log in {os.fspath(folder)}")
        # The thread that a command, or the start, runs the host's callables in.
        self._holder: int | None = None
        self._syncs: GroupCommit[int, None] = GroupCommit(self._sync, max_batch=_MAX_BATCH)
        self._log = SegmentLog(folder, self._options, create=create)
        try:
            snapshot = self._log.snapshot
            self._first = 1 if snapshot is None else snapshot.index + 1
            self._last = max(self._log.last_index or 0, self._first - 1)
            self._durable = self._last
            self._clock: SteadyClock | None = None
            # Term and time of the last entry, as far as it was read.
            self._term, self._last_time = (0, None) if snapshot is None else self._stamp_at(snapshot.index)
        except BaseException:
            self._log.close()
            raise

    # -- starting

    def start(self, machine: CommandMachine) -> None:
        """See `CommandLog.start`. Replays about 200,000 commands a second, plus what the machine itself needs.

        Raises:
            OutOfStep: see `CommandLog.start`.
            CorruptData: one of the commands that follow is damaged or missing.
            Unsupported: a command was written by a later release.
            StorageError: the new term could not be noted; close the log, and open it again.
        """
        with self._in_order():
            self._require_open()
            if self._machine is not None:
                raise InvalidInput("this log was started before; open another one for another state machine")
            applied = machine.applied_index
            if not self._first - 1 <= applied <= self._last:
                raise OutOfStep(applied_index=applied, first_index=self._first, last_index=self._last)
            self._replay(machine)
            clock = self._options.clock
            self._clock = clock if isinstance(clock, SteadyClock) else SteadyClock(
                clock, last_known=self._last_time, observer=self._observer)
            self._term += 1
            self._last += 1
            # Not refused whatever the clock says: an opening is no command.
            try:
                self._log.append(self._last, self._term, _HEAD.pack(_OPENING, round(self._clock.steady() * 1e9)))
                self._log.sync()
            except BaseException as error:
                self._break(f"the opening could not be noted: {error!r}")
                raise
            self._durable = self._last
            self._machine = machine
        self._observer.deliver()

    def _replay(self, machine: CommandMachine) -> None:
        # From its beginning, though the machine may stand later: the last term must be known, and damage reported.
        expected = self._first
        for entry in self._log.entries(self._first):
            if entry.index != expected:
                raise self._damaged(expected, f"entry {expected}", f"entry {entry.index}")
            expected += 1
            self._term = entry.term
            if len(entry.payload) < _HEAD.size:
                raise self._damaged(entry.index, f"at least {_HEAD.size} bytes", f"{len(entry.payload)} bytes")
            kind, time_ns = _HEAD.unpack_from(entry.payload)
            self._last_time = time_ns / 1e9
            if kind not in (_COMMAND, _OPENING):
                raise Unsupported(f"entry {entry.index} of {self._log.folder} is of kind {kind}, this release knows "
                                  f"{_COMMAND} and {_OPENING}; open the log with the release that wrote it")
            if kind == _COMMAND and entry.index > machine.applied_index:
                machine.apply(Command(entry.index, entry.term, time_ns / 1e9), entry.payload[_HEAD.size:])
        if expected != self._last + 1:
            raise self._damaged(expected, f"entries up to {self._last}", f"an end before {expected}")

    def _stamp_at(self, index: int) -> tuple[int, float | None]:
        found = self._log.read(index)
        if not isinstance(found, Entry) or len(found.payload) < _HEAD.size:
            raise self._damaged(index, f"entry {index}, which holds the last term", repr(found))
        return found.term, _HEAD.unpack_from(found.payload)[1] / 1e9

    def _damaged(self, index: int, expected: str, found: str) -> CorruptData:
        return CorruptData(path=self._log.folder, offset=0, expected=expected, found=found, index=index)

    # -- commands

    def propose(self, payload: bytes) -> Any:
        """See `CommandLog.propose`. About 10 microseconds, and its share of a sync."""
        return self.decide(lambda command: payload)

    def decide(self, make: Callable[[Command], bytes | None]) -> Any:
        """See `CommandLog.decide`."""
        try:
            with self._in_order():
                machine, clock = self._require_started()
                # Whole nanoseconds, so that a replay gives the machine the very same float.
                time_ns = round(clock.steady() * 1e9)
                command = Command(self._last + 1, self._term, time_ns / 1e9, clock.expiry())
                payload, result = make(command), None
                if payload is not None:
                    # Refused while a jump is in doubt; who only looks is not.
                    clock.now()
                    result = self._carry_out(machine, command, time_ns, payload)
                awaited = self._last
            self._wait_until_durable(awaited)
        finally:
            self._observer.deliver()
        return result

    def _carry_out(self, machine: CommandMachine, command: Command, time_ns: int, payload: bytes) -> Any:
        require_type("a command", payload, bytes, "bytes")
        if len(payload) > _MAX_PAYLOAD_BYTES:
            raise InvalidInput(f"a command of {len(payload)} bytes was given, this log takes at most "
                               f"{_MAX_PAYLOAD_BYTES}; split it")
        # Wherever this is cut short, the machine and the log may differ.
        try:
            result = machine.apply(command, payload)
            self._last = command.index
            self._pending.append(_Pending(command.index, command.term, _HEAD.pack(_COMMAND, time_ns) + payload))
        except BaseException as error:
            self._break(f"the state machine raised {error!r} at command {command.index}")
            if not isinstance(error, Exception):
                raise
            raise self._is_broken() from error
        return result

    def _wait_until_durable(self, index: int) -> None:
        if index > self._durable:
            try:
                self._syncs.submit(index)
            except OutcomeUnknown as error:
                # The thread that wrote for all that wait was interrupted.
                self._break(f"the log ended in {error!r}")
                raise self._is_broken() from error

    def _sync(self, batch: Sequence[int]) -> list[Exception | None]:
        """Write and sync everything that was carried out so far, whichever thread waits for it."""
        # Wherever this is cut short from where they are taken on, what is pending may be in the log or not.
        try:
            with self._order:
                self._require_whole()
                pending, self._pending = self._pending, []
            if pending:
                with self._writing:
                    self._log.extend((one.index, one.term, one.entry) for one in pending)
                    self._log.sync()
                self._durable = pending[-1].index
        except LogBroken:
            raise
        except BaseException as error:
            self._break(f"the log ended in {error!r}")
            if not isinstance(error, Exception):
                raise
            raise self._is_broken() from error
        if pending:
            self._observer.count("command_log_syncs")
            self._observer.count("command_log_commands", len(pending))
        return [None] * len(batch)

    # -- keeping it small, and the rest

    def compact(self, index: int) -> Done[Any] | Skipped | Failed:
        """See `CommandLog.compact`. Drops the segments that hold nothing later."""
        with self._in_order():
            self._require_open()
            if index > self._durable:
                raise InvalidInput(f"the log is to forget commands up to {index}, durable are those up to "
                                   f"{self._durable}; compact to what a snapshot covers")
        with self._writing:
            try:
                if index >= self._first:
                    # The last entry that is covered stays: with nothing after it, it is where the last term is found.
                    self._log.record_snapshot(index, live=[index])
                    self._first = index + 1
            except StorageError as error:
                return Failed(error)
        try:
            report = self._log.compact(policy=DropDead())
        except Busy as error:
            return Skipped(str(error), is_busy=True)
        except (CompactionFailed, StorageError, CorruptData) as error:
            return Failed(error)
        return Skipped(report.why) if report.is_empty else Done(report)

    @property
    def first_index(self) -> int:
        """The first command that the log holds; `last_index + 1` if it holds none."""
        return self._first

    @property
    def last_index(self) -> int:
        """The index of the last command or opening, durable or not; 0 if there was none."""
        return self._last

    @property
    def durable_index(self) -> int:
        """The index of the last command that is durable."""
        return self._durable

    @property
    def term(self) -> int:
        """How often the log was opened; 0 before `start`."""
        return self._term

    def close(self) -> None:
        """See `CommandLog.close`. Commands under way are made durable first, unless the log is broken.

        In a fork of the process that opened the log it only gives up the fork's copy.

        Raises:
            Busy: called from within a command; nothing was done.
        """
        if self._order.is_inherited:
            self._closed = True
            self._log.close()
            return
        self._require_outside()
        with self._order:
            if self._closed:
                return
            self._closed = True
            awaited = self._last
        try:
            if self._broken is None:
                self._wait_until_durable(awaited)
        finally:
            self._log.close()

    def __repr__(self) -> str:
        return f"LocalLog({self._log.folder!r}, {self._first} to {self._last}, term {self._term})"

    @contextlib.contextmanager
    def _in_order(self) -> Iterator[None]:
        # Before who is inside is looked at, which a fork may have copied in the middle of a command.
        self._order.require_mine()
        self._require_outside()
        with self._order:
            self._holder = threading.get_ident()
            try:
                yield
            finally:
                self._holder = None

    def _require_outside(self) -> None:
        if self._holder == threading.get_ident():
            raise Busy(f"the log in {self._log.folder} is in the middle of a command, and was called from within it by "
                       f"the state machine or by what decides on a command; call it when that has returned")

    def _require_whole(self) -> None:
        if self._broken is not None:
            raise self._is_broken()

    def _require_open(self) -> None:
        self._require_whole()
        if self._closed:
            raise Closed(f"the log in {self._log.folder} was closed; open it again")

    def _require_started(self) -> tuple[CommandMachine, SteadyClock]:
        self._require_open()
        if self._machine is None or self._clock is None:
            raise NotStarted(f"the log in {self._log.folder} has no state machine yet; call start() first")
        return self._machine, self._clock

    def _break(self, cause: str) -> None:
        if self._broken is None:
            self._broken = cause

    def _is_broken(self) -> LogBroken:
        return LogBroken(index=self._last, durable_index=self._durable, cause=self._broken or "")
