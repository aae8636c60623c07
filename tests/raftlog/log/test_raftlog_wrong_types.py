# SPDX-License-Identifier: Apache-2.0
"""What cannot be meant is `InvalidInput`, for every argument of every method of a log, and harms nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compactlib.errors import InvalidInput
from compactlib.raftlog import (
    LogOptions,
    LogReader,
    RaftLog,
    RaftLogStore,
    SeedPolicy,
    SegmentLimits,
    SegmentLog,
    SnapshotMeta,
    StoreOptions,
    open_log,
)
from compactlib.raftlog.model.values import AppendAnswer
from tests.raftlog.compaction_logs import entries_of, options


def segment_log(folder: Path) -> SegmentLog:
    log = SegmentLog(folder, options(limits=SegmentLimits(max_entries=4)))
    log.extend(entries_of(1, 10))
    return log


def raft_log(folder: Path) -> RaftLog:
    log = open_log(folder, StoreOptions(background=False))
    log.append(entries_of(1, 10))
    return log


def reader(folder: Path) -> LogReader:
    segment_log(folder).close()
    return LogReader(folder)


def store(folder: Path) -> RaftLogStore:
    return RaftLogStore(folder, StoreOptions(background=False))


RIGHT: dict[str, Any] = {"index": 5, "term": 1, "payload": b"x", "entries": [], "first": 11, "indexes": [1, 2],
                         "payloads": [b"x"], "last_index": 10, "log_id": "log", "meta": SnapshotMeta(10, 1),
                         "prev_index": 10, "prev_term": 1, "answer": AppendAnswer(True, 10, 11)}
WRONG: tuple[Any, ...] = (object(), "text", 3.5, [object()])
TEXT = {"log_id", "payload", "voted_for"}
"""What may be text, or something like it."""
OF_THE_STORE = {"owns", "confirmed", "freeze", "flush_through", "require_held", "record_state", "require_outside",
                "examine"}
"""Called by the library's own parts alone."""


def asked(method: Callable[..., Any], given: dict[str, Any]) -> None:
    """Call it; what answers one by one is asked for all."""
    answer = method(**given)
    if inspect.isgenerator(answer):
        list(answer)


def methods() -> Iterator[Any]:
    """Every argument of every method of the faces."""
    for make, face in ((segment_log, SegmentLog), (raft_log, RaftLog), (reader, LogReader), (store, RaftLogStore)):
        for name, method in inspect.getmembers(face, inspect.isfunction):
            if not name.startswith("_") and name not in OF_THE_STORE:
                for argument in list(inspect.signature(method).parameters.values())[1:]:
                    yield pytest.param(make, name, argument.name, id=f"{face.__name__}.{name}({argument.name})")


@pytest.mark.parametrize(("make", "name", "argument"), list(methods()))
def test_an_argument_of_another_kind_is_invalid_input(tmp_path: Path, make: Callable[[Path], Any], name: str,
                                                      argument: str) -> None:
    for number, wrong in enumerate(WRONG):
        if argument in TEXT and wrong == "text":
            continue
        opened = make(tmp_path / str(number))
        method = getattr(opened, name)
        given = {each.name: RIGHT.get(each.name) for each in inspect.signature(method).parameters.values()
                 if each.default is inspect.Parameter.empty}
        with pytest.raises(InvalidInput):
            asked(method, {**given, argument: wrong})
        opened.audit()
        opened.close()


@pytest.mark.parametrize("given", [
    {"policy": None}, {"policy": SeedPolicy}, {"policy": "seed"}, {"trigger": 3}, {"limits": 4}, {"files": "disk"},
    {"clock": 0.0}, {"observer": print}, {"run_id": "run"}, {"keep_links_seconds": "long"}], ids=str)
def test_an_option_of_another_kind_is_invalid_input(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        LogOptions(**given)


def test_options_of_another_kind_are_invalid_input(tmp_path: Path) -> None:
    for make in (SegmentLog, RaftLogStore, open_log):
        with pytest.raises(InvalidInput):
            make(tmp_path / "log", "options")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        StoreOptions(log="options")  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [
    {}, {20: (20, 2, b"other term")}, {20: (25, 1, b"gap")}, {20: (5, 1, b"taken back")},
    {20: (20, 1, bytearray(b"x"))}, {20: (20, 1)}, {20: (True, 1, b"")}, {20: ("20", 1, b"")}, {20: (20, -1, b"")},
    {0: (-1, 1, b"")}, {20: (20, 1, None)}])
def test_many_entries_at_once_are_those_entries_one_by_one(tmp_path: Path, change: dict[int, Any]) -> None:
    entries: list[Any] = [change.get(index, (index, 1, b"%d" % index)) for index in range(40)]
    found = []
    for name, given in (("at once", entries), ("one by one", iter(entries))):
        with SegmentLog(tmp_path / name) as log:
            try:
                log.extend(given)
                ended = ""
            except InvalidInput as error:
                ended = str(error)
            log.sync()
            log.audit()
            found.append((ended, list(log.entries())))
    assert found[0] == found[1]
    assert len(found[0][1]) >= (0 if 0 in change else 20)
