"""Fences: what every one of them promises, run on all of them, and the stored form of a record."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactlib.clock import ManualClock
from compactlib.errors import Busy, CompactlibError, CorruptData, InvalidInput, ReadOnly, Unsupported
from compactlib.kv import MemoryStore
from compactlib.scheduler.errors import CommittedOtherwise, FencedOff
from compactlib.scheduler.fence import (
    MAX_VALUE_BYTES,
    Admission,
    Commitment,
    Fence,
    LockingFence,
    MemoryFence,
    decode_record,
    encode_record,
)
from compactlib.scheduler.fence_file import FileFence
from compactlib.scheduler.fence_kv import KVFence
from compactlib.testing import CrashFailure, FailingFiles, RecordingFiles, explore, record

Make = Callable[[Path], Fence]
KINDS: dict[str, Make] = {"memory": lambda _: MemoryFence(), "file": lambda folder: FileFence(folder / "fence"),
                          "kv": lambda _: KVFence(MemoryStore())}
LOCKING: dict[str, Callable[[Path], LockingFence]] = {
    "memory": lambda _: MemoryFence(wait_seconds=0), "file": lambda folder: FileFence(folder / "fence", wait_seconds=0)}


@pytest.fixture(params=sorted(KINDS))
def fence(request: pytest.FixtureRequest, tmp_path: Path) -> Fence:
    return KINDS[request.param](tmp_path)


@pytest.fixture(params=sorted(LOCKING))
def locking(request: pytest.FixtureRequest, tmp_path: Path) -> LockingFence:
    return LOCKING[request.param](tmp_path)


# ------------------------------------------------------------------------------------------------ every fence


def test_tokens_ascend(fence: Fence) -> None:
    assert fence.admit("job", 5) == Admission("job", 5, None)
    assert fence.admit("job", 5) == Admission("job", 5, None)
    assert fence.admit("job", 9) == Admission("job", 9, None)
    with pytest.raises(FencedOff) as caught:
        fence.admit("job", 8)
    assert (caught.value.resource, caught.value.token, caught.value.highest) == ("job", 8, 9)
    fence.audit()


def test_resources_do_not_know_each_other(fence: Fence) -> None:
    fence.admit("one", 9)
    assert fence.admit("other", 1).token == 1


def test_a_late_worker_cannot_commit(fence: Fence) -> None:
    fence.admit("job", 5)
    fence.admit("job", 9)
    with pytest.raises(FencedOff):
        fence.commit("job", 5, b"late")
    assert fence.committed("job") is None
    fence.commit("job", 9, b"in time")
    assert fence.committed("job") == Commitment(9, b"in time")


def test_who_comes_later_sees_what_was_committed(fence: Fence) -> None:
    fence.admit("job", 5)
    fence.commit("job", 5, b"files")
    assert fence.admit("job", 9) == Admission("job", 9, Commitment(5, b"files"))
    with pytest.raises(FencedOff):
        fence.commit("job", 5, b"files")


def test_a_commit_may_be_repeated_but_not_changed(fence: Fence) -> None:
    fence.admit("job", 5)
    first = fence.commit("job", 5, b"files")
    assert fence.commit("job", 5, b"files") == first
    with pytest.raises(CommittedOtherwise):
        fence.commit("job", 5, b"other files")
    assert fence.committed("job") == Commitment(5, b"files")


def test_a_resource_is_committed_again_by_later_tokens(fence: Fence) -> None:
    for token in (1, 5, 6):
        fence.admit("log", token)
        fence.commit("log", token, b"state of %d" % token)
    assert fence.committed("log") == Commitment(6, b"state of 6")


@pytest.mark.parametrize("admitted", [None, 4])
def test_a_commit_needs_an_admission(fence: Fence, admitted: int | None) -> None:
    if admitted is not None:
        fence.admit("job", admitted)
    with pytest.raises(InvalidInput, match="never admitted"):
        fence.commit("job", 5, b"files")


@pytest.mark.parametrize(("resource", "token"), [("", 1), ("r" * 1001, 1), ("\ud800", 1), ("r", -1), ("r", 1 << 64)])
def test_names_and_tokens_that_are_none(fence: Fence, resource: str, token: int) -> None:
    with pytest.raises(InvalidInput):
        fence.admit(resource, token)
    with pytest.raises(InvalidInput):
        fence.commit(resource, token, b"")
    if token != 1:
        with pytest.raises(InvalidInput):
            fence.raise_floor(token)


def test_the_largest_that_is_taken(fence: Fence) -> None:
    resource, token = "ü" * 500, (1 << 64) - 1
    fence.admit(resource, token)
    fence.commit(resource, token, b"v" * MAX_VALUE_BYTES)
    assert fence.committed(resource) == Commitment(token, b"v" * MAX_VALUE_BYTES)
    with pytest.raises(InvalidInput, match="262145 bytes"):
        fence.commit(resource, token, b"v" * (MAX_VALUE_BYTES + 1))


def test_below_the_floor_nothing_is_admitted_and_nothing_kept(fence: Fence) -> None:
    for number in range(10):
        fence.admit(f"job {number}", number)
    fence.commit("job 9", 9, b"files")
    assert fence.raise_floor(7) == 7
    assert fence.raise_floor(3) == 0
    for resource in ("job 1", "job 9", "a new one"):
        with pytest.raises(FencedOff) as caught:
            fence.admit(resource, 6)
        assert caught.value.highest >= 7
    with pytest.raises(FencedOff):
        fence.commit("job 1", 1, b"")
    assert fence.admit("job 1", 7) == Admission("job 1", 7, None)
    assert fence.committed("job 9") == Commitment(9, b"files")
    fence.audit()


class PlainFence:
    """What a fence is, in a few lines."""

    def __init__(self) -> None:
        self.records: dict[str, list[object]] = {}
        self.floor = 0

    def step(self, what: str, resource: str, token: int, value: bytes) -> object:
        if what == "floor":
            self.floor = max(self.floor, token)
            old = [name for name, (highest, _) in self.records.items() if int(str(highest)) < self.floor]
            for name in old:
                del self.records[name]
            return len(old)
        found = self.records.get(resource)
        if token < self.floor or (found and token < int(str(found[0]))):
            return FencedOff
        if what == "admit":
            self.records[resource] = [token, found[1] if found else None]
        elif not found or found[0] != token:
            return InvalidInput
        elif isinstance(found[1], Commitment) and found[1].token == token and found[1].value != value:
            return CommittedOtherwise
        else:
            found[1] = Commitment(token, value)
        return Admission(resource, token, self.records[resource][1])  # type: ignore[arg-type]


STEPS = st.lists(st.tuples(st.sampled_from(["admit", "admit", "commit", "commit", "floor"]), st.sampled_from("ab"),
                           st.integers(0, 9), st.sampled_from([b"x", b"y"])), max_size=25)


@pytest.mark.parametrize("kind", ["memory", "kv"])
@given(steps=STEPS)
def test_any_steps_do_what_a_plain_fence_does(kind: str, steps: list[tuple[str, str, int, bytes]]) -> None:
    fence, plain = KINDS[kind](Path()), PlainFence()
    for what, resource, token, value in steps:
        try:
            found: object = (fence.admit(resource, token) if what == "admit" else
                             fence.commit(resource, token, value) if what == "commit" else fence.raise_floor(token))
        except CompactlibError as error:
            found = type(error)
        assert found == plain.step(what, resource, token, value)
        fence.audit()


def test_a_folder_does_what_a_plain_fence_does(tmp_path: Path) -> None:
    fence, plain, rng = FileFence(tmp_path / "fence"), PlainFence(), random.Random(7)
    for _ in range(300):
        what, resource = rng.choice(["admit", "admit", "commit", "commit", "commit", "floor"]), rng.choice("ab")
        token = max(plain.floor + rng.randrange(-2, 4), 0)
        value = rng.choice([b"x", b"y"])
        try:
            found: object = (fence.admit(resource, token) if what == "admit" else
                             fence.commit(resource, token, value) if what == "commit" else fence.raise_floor(token))
        except CompactlibError as error:
            found = type(error)
        assert found == plain.step(what, resource, token, value)
        if rng.random() < 0.1:
            fence = FileFence(tmp_path / "fence")
        fence.audit()


# ---------------------------------------------------------------------------------------------- guarded steps


def in_another_thread(call: Callable[[], object]) -> object:
    caught: list[object] = []

    def run() -> None:
        try:
            caught.append(call())
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return caught[0]


def test_a_newer_token_waits_for_the_end_of_a_guarded_step(locking: LockingFence) -> None:
    with locking.guard("log", 5) as admission:
        assert admission.token == 5
        assert isinstance(in_another_thread(lambda: locking.admit("log", 9)), Busy)
        locking.commit("log", 5, b"done within")
    assert in_another_thread(lambda: locking.admit("log", 9)) == Admission("log", 9, Commitment(5, b"done within"))
    with pytest.raises(FencedOff), locking.guard("log", 5):
        pytest.fail("a late worker's step has run")


def test_a_guarded_step_that_fails_lets_the_next_one_in(locking: LockingFence) -> None:
    with pytest.raises(ZeroDivisionError), locking.guard("log", 5):
        raise ZeroDivisionError
    assert isinstance(in_another_thread(lambda: locking.admit("log", 9)), Admission)


def test_a_guarded_step_cannot_let_a_newer_token_in_itself(locking: LockingFence) -> None:
    with locking.guard("log", 5):
        with pytest.raises(InvalidInput, match="leave the step first"):
            locking.admit("log", 9)
        with locking.guard("log", 5), locking.guard("another", 9):
            pass
        with pytest.raises(InvalidInput, match="leave the step first"):
            locking.admit("log", 9)


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
    fence.audit()
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
    report = explore(record(tmp_path, commits), nothing_promised_is_broken)
    assert report.points == report.complete_points


def test_the_crash_test_notices_a_record_that_is_not_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(files: RecordingFiles, path: str, pieces: list[bytes]) -> None:
        if os.path.exists(path):
            files.unlink(path)
        out = files.create(path)
        out.write_at(0, pieces)
        out.close()

    monkeypatch.setattr("compactlib.scheduler.fence_file.write_durably", careless)
    recording = record(tmp_path, commits)
    monkeypatch.undo()
    with pytest.raises(CrashFailure):
        explore(recording, nothing_promised_is_broken)


def test_a_disk_that_refuses_leaves_the_old_record_or_the_new_one(tmp_path: Path) -> None:
    counting = FailingFiles()
    FileFence(tmp_path / "0", files=counting).admit("log", 5)
    for number in range(1, counting.count + 1):
        folder = tmp_path / str(number)
        with pytest.raises(CompactlibError):
            FileFence(folder, files=FailingFiles(fail_at=number)).admit("log", 5)
        fence = FileFence(folder)
        fence.audit()
        assert fence.admit("log", 5).token == 5


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ReadOnly):
        FileFence(tmp_path / "fence", files=FailingFiles(fail_at=1, errno=13))


# ----------------------------------------------------------------------------------------------- stored form


RECORDS = [Admission("log", 5, None), Admission("lög", (1 << 64) - 1, Commitment(5, b"\0value")),
           Admission("", 7, None), Admission("log", 0, Commitment(0, b""))]


@pytest.mark.parametrize("each", RECORDS, ids=range(len(RECORDS)))
def test_a_record_comes_back_as_it_was(each: Admission) -> None:
    assert decode_record(encode_record(each), "here") == each


def test_the_bytes_of_a_record_are_the_same_in_every_release() -> None:
    assert encode_record(Admission("log", 41, Commitment(40, b"files"))).hex(" ", 4) == GOLDEN_RECORD


GOLDEN_RECORD = ("434c4645 4e434500 01000100 03000000 29000000 00000000 28000000 00000000 05000000 6c6f6766 696c6573 "
                 "97574d1a")


@pytest.mark.parametrize("each", RECORDS, ids=range(len(RECORDS)))
def test_damage_is_found(each: Admission) -> None:
    data = encode_record(each)
    for size in range(len(data)):
        with pytest.raises(CorruptData):
            decode_record(data[:size], "here")
    for place in range(len(data)):
        for bit in range(8):
            damaged = data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1:]
            with pytest.raises(CorruptData):
                decode_record(damaged, "here")


def test_a_record_of_a_newer_version_is_refused_by_name() -> None:
    from compactlib.checksum import crc32
    data = bytearray(encode_record(RECORDS[0])[:-4])
    data[8] = 2
    with pytest.raises(Unsupported, match="version 2"):
        decode_record(bytes(data) + crc32(data).to_bytes(4, "little"), "here")
    data[8] = 0
    with pytest.raises(CorruptData, match="version 1"):
        decode_record(bytes(data) + crc32(data).to_bytes(4, "little"), "here")


def test_a_record_under_another_s_name_is_noticed(tmp_path: Path) -> None:
    fence = FileFence(tmp_path)
    fence.admit("log", 5)
    (path,) = tmp_path.glob("*.fence")
    path.rename(tmp_path / "0123.fence")
    with pytest.raises(CompactlibError, match="belongs into"):
        fence.audit()
    store = MemoryStore()
    store.set(b"fences", b"resource/job", encode_record(Admission("log", 5, None)))
    with pytest.raises(CompactlibError, match="record of 'log'"):
        KVFence(store).audit()
    store.set(b"fences", b"resource/job", encode_record(Admission("job", 5, Commitment(6, b""))))
    with pytest.raises(CompactlibError, match="token 6 has committed"):
        KVFence(store).audit()
