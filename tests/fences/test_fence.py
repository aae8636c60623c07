# SPDX-License-Identifier: Apache-2.0
"""Fences: what every one of them promises, run on all of them, and the stored form of a record."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from compactlib.clock import ManualClock
from compactlib.errors import Busy, CompactlibError, CorruptData, InvalidInput, ReadOnly, Unsupported
from compactlib.fences import (
    Admission,
    Commitment,
    Fence,
    FencedOff,
    FileFence,
    KVFence,
    MemoryFence,
    ObjectFence,
    TokenFence,
)
from compactlib.fences.fence import RECORDS
from compactlib.kv import MemoryStore
from compactlib.objects import MemoryObjects
from compactlib.testing import FenceConformance, RecordingFiles, explore_crashes, record
from compactlib.testing.fences import PlainFence
from tests.harness.failing_files import FailingFiles


@pytest.mark.parametrize("seconds", [-1.0, math.inf, math.nan])
def test_a_time_that_cannot_be_waited_is_refused(seconds: float, tmp_path: Path) -> None:
    for make in (MemoryFence, partial(FileFence, tmp_path / "fence")):
        with pytest.raises(InvalidInput, match="wait_seconds is"):
            make(wait_seconds=seconds)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(("fence", "resource", "token", "message"), [
    (KVFence(MemoryStore()), "log", 5, "give a LockingFence"), (None, "log", 5, "give a LockingFence"),
    (MemoryFence(), "", 5, "0 bytes"), (MemoryFence(), 7, 5, "must be text"), (MemoryFence(), "log", -1, "token -1"),
    (MemoryFence(), "log", "5", "token '5'")])
def test_what_makes_no_commit_fence(fence: Any, resource: Any, token: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        TokenFence(fence, resource, token)


class TestObjectFence(FenceConformance):
    def make_fence(self, folder: Path) -> Fence:
        return ObjectFence(MemoryObjects())


KINDS: dict[str, Callable[[], Fence]] = {"memory": MemoryFence, "kv": lambda: KVFence(MemoryStore()),
                                         "objects": lambda: ObjectFence(MemoryObjects())}
STEPS = st.lists(st.tuples(st.sampled_from(["admit", "admit", "commit", "commit", "floor"]), st.sampled_from("ab"),
                           st.integers(0, 9), st.sampled_from([b"x", b"y"])), max_size=25)


@pytest.mark.parametrize("kind", sorted(KINDS))
@given(steps=STEPS)
def test_any_steps_do_what_a_plain_fence_does(kind: str, steps: list[tuple[str, str, int, bytes]]) -> None:
    fence, plain = KINDS[kind](), PlainFence()
    for what, resource, token, value in steps:
        try:
            found: object = (fence.admit(resource, token) if what == "admit" else
                             fence.commit(resource, token, value) if what == "commit" else fence.raise_floor(token))
        except CompactlibError as error:
            found = type(error)
        assert found == plain.step(what, resource, token, value)


def test_another_process_waits_as_long_as_it_was_told(tmp_path: Path) -> None:
    mine, clock = FileFence(tmp_path / "fence"), ManualClock()
    # A second object has a lock of its own, as another process would.
    theirs = FileFence(tmp_path / "fence", clock=clock, wait_seconds=2)
    with mine.guard("log", 5):
        with pytest.raises(Busy):
            theirs.admit("log", 9)
        assert 2 <= clock.monotonic() < 2.1
    assert theirs.admit("log", 9).token == 9
    with pytest.raises(FencedOff):
        mine.admit("log", 5)


# ---------------------------------------------------------------------------------------------- on the disk


def commits(folder: Path, files: RecordingFiles) -> None:
    fence = FileFence(folder / "fence", files=files)
    for token in (3, 8):
        fence.admit("log", token)
        files.acknowledge(("admitted", token))
        fence.commit("log", token, b"%d" % token)
        files.acknowledge(("committed", token))
    fence.admit("job", 4)
    fence.raise_floor(6)
    files.acknowledge(("floor", 6))


def nothing_promised_is_broken(folder: Path, acknowledged: object) -> None:
    fence = FileFence(folder / "fence")
    for kind, token in acknowledged:  # type: ignore[attr-defined]
        if kind == "committed":
            done = fence.committed("log")
            assert done is not None
            assert done.token >= token
        elif token > 0:
            with pytest.raises(FencedOff):
                fence.admit("log", token - 1)
        if kind == "floor":
            with pytest.raises(FencedOff):
                fence.admit("job", 5)
    assert fence.admit("log", 8).token == 8


def test_a_crash_at_any_point_keeps_what_was_promised(tmp_path: Path) -> None:
    explore_crashes(record(tmp_path, commits), nothing_promised_is_broken)


def test_the_crash_test_notices_a_record_that_is_not_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(files: RecordingFiles, path: str, pieces: list[bytes], **_: object) -> None:
        if os.path.exists(path):
            files.unlink(path)
        out = files.create(path)
        out.write_at(0, pieces)
        out.close()

    monkeypatch.setattr("compactlib.files.durable_record.write_durably", careless)
    recording = record(tmp_path, commits)
    monkeypatch.undo()
    with pytest.raises((AssertionError, CompactlibError)):
        explore_crashes(recording, nothing_promised_is_broken)


def test_a_disk_that_refuses_leaves_the_old_record_or_the_new_one(tmp_path: Path) -> None:
    counting = FailingFiles()
    FileFence(tmp_path / "0", files=counting).admit("log", 5)
    for number in range(1, counting.count + 1):
        folder = tmp_path / str(number)
        with pytest.raises(CompactlibError):
            FileFence(folder, files=FailingFiles(fail_at=number)).admit("log", 5)
        fence = FileFence(folder)
        assert fence.admit("log", 5).token == 5


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ReadOnly):
        FileFence(tmp_path / "fence", files=FailingFiles(fail_at=1, errno=13))


# ----------------------------------------------------------------------------------------------- stored form


EXAMPLES = [Admission("log", 5, None), Admission("lög", (1 << 64) - 1, Commitment(5, b"\0value")),
           Admission("", 7, None), Admission("log", 0, Commitment(0, b""))]


@pytest.mark.parametrize("each", EXAMPLES, ids=range(len(EXAMPLES)))
def test_a_record_comes_back_as_it_was(each: Admission) -> None:
    assert RECORDS.decode(RECORDS.encode(each), "here") == each


def test_the_bytes_of_a_record_are_the_same_in_every_release() -> None:
    written = RECORDS.encode(Admission("log", 41, Commitment(40, b"files")))
    assert written[:-4] == (b'CLFENCE\0\2\0{"resource":"log","token":41,"committed":{"token":40,"value":"ZmlsZXM="}}')


@pytest.mark.parametrize("each", EXAMPLES, ids=range(len(EXAMPLES)))
def test_damage_is_found(each: Admission) -> None:
    data = RECORDS.encode(each)
    for size in range(len(data)):
        with pytest.raises(CorruptData):
            RECORDS.decode(data[:size], "here")
    for place in range(len(data)):
        for bit in range(8):
            damaged = data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1:]
            with pytest.raises(CorruptData):
                RECORDS.decode(damaged, "here")


def test_a_record_of_a_newer_version_is_refused_by_name() -> None:
    from compactlib.files.checksum import crc32
    data = bytearray(RECORDS.encode(EXAMPLES[0])[:-4])
    data[8] = 3
    with pytest.raises(Unsupported, match="version 3"):
        RECORDS.decode(bytes(data) + crc32(data).to_bytes(4, "little"), "here")
    data[8] = 0
    with pytest.raises(CorruptData, match="version 2"):
        RECORDS.decode(bytes(data) + crc32(data).to_bytes(4, "little"), "here")
