# SPDX-License-Identifier: Apache-2.0
"""Proof that a compaction lost nothing: what was written against what a log, opened anew, answers."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator

from compactlib.app.demo_log import LOCK, WrittenLog
from compactlib.app.kv_machine import KvMachine, Put, decode_command
from compactlib.errors import CompactlibError
from compactlib.files import list_folder
from compactlib.indexset import IndexSet
from compactlib.raftlog import DeadEntry, Entry, LogReader


def problems_in(folder: str, written: WrittenLog) -> Iterator[str]:
    """Open the log in `folder` and compare it with what was written; each difference in one line, none if all is well.

    * Each live value is there, with the digest that it was written with, and nothing else is live.
    * Every other index answers `DeadEntry`, those of deleted keys and of the deletes among them.
    * An empty state machine that is given what the log still holds becomes the one that wrote it.
    * Every byte that the log still holds passes its checksum.
    """
    try:
        with LogReader(folder) as reader:
            yield from _wrong_values(reader, written)
            yield from _wrong_dead(reader, written)
            snapshot = -1 if reader.snapshot is None else reader.snapshot.index
            if KvMachine.rebuilt(reader.entries(), snapshot=snapshot) != written.machine:
                yield "a state machine rebuilt from the log differs from the one that wrote it"
            yield from (str(finding.error) for finding in reader.verify().findings if finding.error is not None)
    except CompactlibError as error:
        yield str(error)


def differing_files(folder: str, other: str) -> list[str]:
    """Names in the folders of two logs that are not the same file, byte by byte, or the same link.

    When the last major was is not compared.
    """
    names = {*list_folder(folder), *list_folder(other)} - {LOCK, "CADENCE"}
    return [name for name in sorted(names)
            if _content(os.path.join(folder, name)) != _content(os.path.join(other, name))]


def _wrong_values(reader: LogReader, written: WrittenLog) -> Iterator[str]:
    places = written.machine.places
    if places.keys() != written.digests.keys():
        yield f"{len(places)} keys have a place in the log, but {len(written.digests)} have a value"
    keys = sorted(places, key=places.__getitem__)
    answers = reader.read_many([places[key] for key in keys])
    for key, answer in zip(keys, answers, strict=True):
        if _digest(key, answer) != written.digests.get(key):
            yield f"{key} at index {places[key]} is not what was written: {_told(answer)}"


def _wrong_dead(reader: LogReader, written: WrittenLog) -> Iterator[str]:
    dead = IndexSet.range(1, written.last_index) - written.machine.live_indexes()
    for index, answer in zip(dead, reader.read_many(dead.members()), strict=True):
        if not isinstance(answer, DeadEntry):
            yield f"index {index} should be dead: {_told(answer)}"


def _digest(key: str, answer: object) -> bytes | None:
    if not isinstance(answer, Entry):
        return None
    command = decode_command(answer.payload)
    return hashlib.sha256(command.value).digest() if isinstance(command, Put) and command.key == key else None


def _told(answer: object) -> str:
    return f"an entry of {len(answer.payload)} bytes" if isinstance(answer, Entry) else repr(answer)


def _content(path: str) -> str | None:
    if os.path.islink(path):
        return f"link to {os.readlink(path)}"
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
