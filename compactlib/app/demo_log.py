# SPDX-License-Identifier: Apache-2.0
"""The demo's logs: writing one, and copying it so that each executor gets the same job."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence

import attrs

from compactlib.app.inspection import inspect_log
from compactlib.app.kv_machine import KvMachine, Put, encode_command
from compactlib.app.workload import Step
from compactlib.clock import Clock
from compactlib.files import Files, LocalFiles, list_folder
from compactlib.raftlog import Entry, LogOptions, LogReader, SegmentLimits, SegmentLog

LOCK = "LOCK"
"""The file that belongs to the process that writes a log, not to the log."""

_TERM = 1
_SEGMENTS = 24
"""About how many segments the demo's log is to have, whatever its size, so that there is something to plan."""
_SYNC_BYTES = 4_000_000


@attrs.frozen(kw_only=True)
class WrittenLog:
    """A log, and what must be found in it for ever after.

    Attributes:
        folder: where it is.
        machine: the state machine after the last entry.
        digests: SHA-256 of each key's value, taken when it was written.
        deleted: keys that were put and then deleted.
        last_index: the last entry's index, at which the snapshot was recorded.
        payload_bytes: commands written, in bytes.
        unreadable: steps that were passed over because their file could not be read.
        seconds: how long writing took.
    """

    folder: str
    machine: KvMachine
    digests: Mapping[str, bytes]
    deleted: frozenset[str]
    last_index: int
    payload_bytes: int
    unreadable: int
    seconds: float


@attrs.frozen
class LogSize:
    """How large a log is: entries and segments, and the bytes of their files."""

    entries: int
    segments: int
    file_bytes: int

    @classmethod
    def of(cls, folder: str) -> LogSize:
        """The size of the log in `folder`."""
        with LogReader(folder) as reader:
            seen = inspect_log(reader)
        segments = seen.view.segments
        return cls(sum(stats.entries for stats in segments), len(segments), sum(size or 0 for size in seen.file_bytes))


def limits_for(history: Sequence[Step]) -> SegmentLimits:
    """Limits under which a history fills some two dozen segments, most of them by their bytes."""
    size = sum(step.file.size_bytes for step in history if step.version)
    most = SegmentLimits()
    return SegmentLimits(max_entries=min(max(2 * len(history) // _SEGMENTS, 2), most.max_entries),
                         max_bytes=min(max(size // _SEGMENTS, 1), most.max_bytes))


def write_log(folder: str, history: Iterable[Step], *, limits: SegmentLimits, seed: int, clock: Clock) -> WrittenLog:
    """Write a history through the state machine onto a new log, and record a snapshot at its end.

    Raises:
        StorageError: the disk refused.
    """
    began = clock.monotonic()
    machine = KvMachine()
    digests: dict[str, bytes] = {}
    deleted: set[str] = set()
    index = size = unsynced = unreadable = 0
    with SegmentLog(folder, LogOptions(limits=limits)) as log:
        for step in history:
            command = step.command(seed)
            if command is None:
                unreadable += 1
                continue
            index += 1
            payload = encode_command(command)
            log.append(index, _TERM, payload)
            machine.apply(Entry(index, _TERM, payload))
            if isinstance(command, Put):
                digests[command.key] = hashlib.sha256(command.value).digest()
            elif digests.pop(command.key, None) is not None:
                deleted.add(command.key)
            size += len(payload)
            unsynced += len(payload)
            if unsynced >= _SYNC_BYTES:
                log.sync()
                unsynced = 0
        log.record_snapshot(index, machine.live_set())
    return WrittenLog(folder=folder, machine=machine, digests=digests, deleted=frozenset(deleted), last_index=index,
                      payload_bytes=size, unreadable=unreadable, seconds=clock.monotonic() - began)


def copy_log(source: str, target: str) -> None:
    """Copy a log without a writer to a folder that does not exist yet.

    Raises:
        StorageError: the disk refused, or `target` exists.
    """
    disk = LocalFiles()
    disk.make_folder(target)
    for name in list_folder(source):
        if name != LOCK:
            _copy_file(disk, os.path.join(source, name), os.path.join(target, name))


def _copy_file(files: Files, source: str, target: str) -> None:
    out = files.create(target)
    try:
        with open(source, "rb") as file:
            out.copy_from(file.fileno(), 0, os.fstat(file.fileno()).st_size, 0)
        # The next sync must not have to wait for these bytes as well: the executors are being timed.
        out.sync()
    finally:
        out.close()
