# SPDX-License-Identifier: Apache-2.0
"""Around the fences: lost answers, kills and power failures, owners that pause, refused syncs, links, damage, forks."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import Busy, CompactlibError, CorruptData, InvalidInput, StorageError
from compactlib.kv import KVStore, MemoryStore, OutcomeUnknown
from compactlib.scheduler import FencedOff, FileFence, KVFence
from compactlib.scheduler.fences.fence import Admission, Commitment, Fence
from compactlib.testing import RecordingFiles, explore_kills
from tests.harness.faulty_store import FaultyStore, KVFault, KVOperation
from tests.harness.forks import in_a_fork
from tests.tools.faults.lost_answers import LostAnswer, explore_lost_answers
from tests.tools.faults.plan import FailingFiles
from tests.tools.interleave.pauses import SteppedFiles, explore_pauses
from tests.tools.interleave.stage import Stage
from tests.tools.interleave.stores import SteppedStore

# --------------------------------------------------------------------------------------------------- lost answers


def kv_fence(store: KVStore) -> KVFence:
    return KVFence(store, clock=ManualClock(), rng=random.Random(1))


def told_of(call: Callable[[], object]) -> str:
    try:
        call()
    except OutcomeUnknown:
        return "unknown"
    except CompactlibError:
        return "nothing changed"
    return "done"


def test_what_a_fence_tells_after_a_lost_answer_is_true() -> None:
    steps = ["admit 5", "commit 5", "admit 9", "commit 9", "floor 7"]

    def work(store: FaultyStore) -> list[str]:
        fence = kv_fence(store)
        return [told_of(lambda: fence.admit("job", 5)), told_of(lambda: fence.commit("job", 5, b"five")),
                told_of(lambda: fence.admit("job", 9)), told_of(lambda: fence.commit("job", 9, b"nine")),
                told_of(lambda: fence.raise_floor(7))]

    def check(store: KVStore, answer: LostAnswer) -> None:
        told = dict(zip(steps, answer.returned, strict=True))  # type: ignore[call-overload]
        fence = KVFence(store)
        done = fence.committed("job")
        if told["commit 9"] == "done":
            assert done == Commitment(9, b"nine")
        elif told["commit 9"] == "nothing changed":
            assert done != Commitment(9, b"nine")
            # Below the floor its record goes, unless a higher token was admitted.
            if told["commit 5"] != "unknown" and told["admit 9"] == "done":
                assert (done == Commitment(5, b"five")) == (told["commit 5"] == "done")
        for what, token in (("admit 9", 8), ("admit 5", 4), ("floor 7", 6)):
            if told[what] == "done":
                with pytest.raises(FencedOff):
                    fence.admit("job", token)
        if told["floor 7"] == "nothing changed":
            fence.admit("a new one", 1)
        if answer.failed_looks is not None and answer.failed_tries == 0:
            assert list(told.values()).count("done") == 5, "the answer was found by looking"

    assert explore_lost_answers(MemoryStore, work, check).runs >= 60


@pytest.mark.parametrize(("others", "expected"), [
    # The commit was carried out, and then somebody else came: it has committed.
    (lambda fence: fence.admit("job", 9), Admission("job", 5, Commitment(5, b"five"))),
    # Another has committed since: nobody can say whether this one had before.
    (lambda fence: (fence.admit("job", 9), fence.commit("job", 9, b"nine")), OutcomeUnknown),
    (lambda fence: fence.raise_floor(7), OutcomeUnknown),
])
def test_a_commit_without_an_answer_and_a_newer_token(others: Callable[[Fence], object], expected: Any) -> None:
    inner = MemoryStore()
    KVFence(inner).admit("job", 5)
    lost: list[bool] = []

    def choose(operation: KVOperation) -> KVFault | None:
        if operation.name == "set_if" and not lost:
            lost.append(True)
            return KVFault.UNKNOWN_DONE
        if lost == [True]:
            lost.append(True)
            others(KVFence(inner))
        return None

    fence = kv_fence(FaultyStore(inner, choose))
    if expected is OutcomeUnknown:
        with pytest.raises(OutcomeUnknown):
            fence.commit("job", 5, b"five")
    else:
        assert fence.commit("job", 5, b"five") == expected


def test_a_commit_that_was_lost_before_a_newer_token_came_has_changed_nothing() -> None:
    inner = MemoryStore()
    KVFence(inner).admit("job", 5)

    def choose(operation: KVOperation) -> KVFault | None:
        if operation.name == "set_if":
            KVFence(inner).admit("job", 9)
            return KVFault.UNKNOWN_LOST
        return None

    with pytest.raises(FencedOff):
        kv_fence(FaultyStore(inner, choose)).commit("job", 5, b"five")
    assert KVFence(inner).committed("job") is None


def test_an_admission_that_was_written_is_not_told_as_if_it_was_not() -> None:
    written: list[bool] = []

    def choose(operation: KVOperation) -> KVFault | None:
        written.extend([True] if operation.name == "set_if" else [])
        return KVFault.FAIL if written and operation.key == b"floor" else None

    inner = MemoryStore()
    with pytest.raises(OutcomeUnknown, match="the floor cannot be read"):
        kv_fence(FaultyStore(inner, choose)).admit("job", 5)
    with pytest.raises(FencedOff):
        KVFence(inner).admit("job", 4)


# ------------------------------------------------------------------------------------------------ owners that pause


def late(fence: Fence) -> list[object]:
    return [fence.admit("job", 5), fence.commit("job", 5, b"five"), fence.raise_floor(3)]


def newer(fence: Fence) -> list[object]:
    return [fence.admit("job", 9), fence.commit("job", 9, b"nine"), fence.raise_floor(7), fence.admit("other", 8)]


def check_pauses(fence: Fence, results: Any, *, may_be_busy: bool) -> None:
    for result in results.values():
        assert isinstance(result, list | FencedOff) or (may_be_busy and isinstance(result, Busy)), result
    if isinstance(results["newer"], list):
        assert fence.committed("job") == Commitment(9, b"nine")
        for resource, token in (("job", 8), ("other", 7), ("a new one", 6)):
            with pytest.raises(FencedOff):
                fence.admit(resource, token)


def test_a_late_worker_that_pauses_at_any_request_to_a_store() -> None:
    def world(stage: Stage) -> SteppedStore:
        inner = MemoryStore()
        KVFence(inner).admit("other", 2)
        return SteppedStore(inner, stage)

    explore_pauses({"late": lambda store: late(KVFence(store)), "newer": lambda store: newer(KVFence(store))}, world,
                   lambda store, results: check_pauses(KVFence(store), results, may_be_busy=False), both=True)


def test_a_late_worker_that_pauses_at_any_change_of_a_folder(tmp_path: Path) -> None:
    folders = iter(range(1 << 30))

    class World:
        def __init__(self, stage: Stage) -> None:
            self.folder = tmp_path / str(next(folders))
            FileFence(self.folder).admit("other", 2)
            self.files = SteppedFiles(None, stage)

        def fence(self) -> FileFence:
            return FileFence(self.folder, files=self.files, wait_seconds=0)

    explore_pauses({"late": lambda world: late(world.fence()), "newer": lambda world: newer(world.fence())}, World,
                   lambda world, results: check_pauses(FileFence(world.folder), results, may_be_busy=True))


# ------------------------------------------------------------------------------ killed, succeeded, and power fails


def life(*calls: tuple[str, Any]) -> Callable[[Path, RecordingFiles], object]:
    def live(folder: Path, files: RecordingFiles) -> None:
        fence = FileFence(folder / "fence", files=files)
        for what, token in calls:
            try:
                if what == "floor":
                    fence.raise_floor(token)
                elif what == "commit":
                    fence.commit("job", token, b"%d" % token)
                elif what == "look":
                    token = getattr(fence.committed("job"), "token", None)
                else:
                    fence.admit("job", token)
            except (FencedOff, InvalidInput):
                continue
            files.acknowledge((what, token))

    return live


def promised(folder: Path, acknowledged: Any) -> None:
    if not (folder / "fence").exists():
        assert all(token is None for _, token in acknowledged)
        return
    fence = FileFence(folder / "fence")
    for what, token in acknowledged:
        done = fence.committed("job")
        if what in ("commit", "look") and token is not None:
            if done is None:
                # Forgotten, for the floor lies above.
                with pytest.raises(FencedOff):
                    fence.admit("another", token)
            else:
                assert done.token >= token
        elif what != "look":
            with pytest.raises(FencedOff):
                fence.admit("job", token - 1)


FIRST = life(("admit", 3), ("commit", 3), ("floor", 2), ("admit", 5), ("commit", 5), ("floor", 5))
NEXT = life(("look", 0), ("admit", 3), ("admit", 5), ("commit", 5), ("floor", 5), ("look", 0), ("admit", 6))


def test_a_fence_whose_owner_was_killed_and_whose_next_owner_met_a_power_failure() -> None:
    checked = explore_kills(FIRST, NEXT, promised, limit_per_point=4, max_states=400, seed=2)
    assert checked > 100


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_fence_in_thirty_thousand_states_of_kill_and_power_failure() -> None:
    rng = random.Random(4)
    distinct = 0
    for _ in range(18):
        calls = [sorted(((rng.choice(["admit", "commit", "floor", "look"]), rng.randrange(1, 30)) for _ in range(24)),
                        key=lambda call: call[1]) for _ in range(2)]
        distinct += explore_kills(life(*calls[0]), life(*calls[1]), promised, limit_per_point=64, max_states=4_000,
                                  seed=rng.randrange(1 << 30))
    assert distinct >= 30_000


def test_what_was_refused_halfway_is_written_anew_before_it_is_acknowledged(tmp_path: Path) -> None:
    counting = FailingFiles()
    FileFence(tmp_path / "counted", files=counting).admit("job", 5)
    for number in range(4, counting.count + 1):
        # One refusal, and the same object is asked again: what it left may not be durable.
        files = FailingFiles(fail_at=number)
        fence = FileFence(tmp_path / str(number), files=files)
        with pytest.raises(StorageError):
            fence.admit("job", 5)
        before = files.count
        fence.admit("job", 5)
        assert files.count > before, "answered although nothing was made durable"
        before = files.count
        fence.admit("job", 5)
        assert files.count == before, "known to be durable by now"


def test_what_a_refused_sync_left_is_written_anew_before_it_is_told(tmp_path: Path) -> None:
    counting = FailingFiles()
    counted = FileFence(tmp_path / "counted", files=counting)
    counted.admit("job", 5)
    counted.commit("job", 5, b"value")
    files = FailingFiles(fail_at=counting.count)
    fence = FileFence(tmp_path / "fence", files=files)
    fence.admit("job", 5)
    with pytest.raises(StorageError, match="sync folder"):
        fence.commit("job", 5, b"value")
    found = FileFence(tmp_path / "fence").committed("job")
    before = files.count
    assert fence.committed("job") == found == Commitment(5, b"value")
    assert files.count - before > 1, "a later sync of the folder is no proof"
    before = files.count
    assert fence.committed("job") == found
    assert files.count == before, "known to be durable by now"


def test_a_fence_that_others_write_to_while_it_is_open_syncs_what_it_finds(tmp_path: Path) -> None:
    counting = FailingFiles()
    fence = FileFence(tmp_path / "fence", files=counting)

    def changes_of(call: Callable[[], object]) -> int:
        before = counting.count
        assert call() is not None
        call()
        return counting.count - before

    # Each time killed just before the last sync of the folder.
    FileFence(tmp_path / "fence").admit("job", 5)
    assert changes_of(lambda: fence.admit("job", 5)) == 1
    FileFence(tmp_path / "fence").commit("job", 5, b"value")
    assert changes_of(lambda: fence.committed("job")) == 1


# ---------------------------------------------------------------------------------------- links, damage and forks


def test_links_are_never_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"v" * 40)
    fence = FileFence(tmp_path / "fence")
    fence.admit("job", 5)
    [record] = list((tmp_path / "fence").glob("*.fence"))
    for name in (record.name, "FLOOR", "LOCK", record.name + ".tmp"):
        path = tmp_path / "fence" / name
        kept = path.read_bytes() if path.exists() else None
        path.unlink(missing_ok=True)
        os.symlink(outside, path)
        if name.endswith(".tmp"):
            fence.commit("job", 5, b"value")
        else:
            with pytest.raises(InvalidInput, match="is not an ordinary file"):
                fence.admit("job", 6)
            path.unlink()
        if kept is not None:
            path.write_bytes(kept)
        assert outside.read_bytes() == b"v" * 40
    assert fence.committed("job") == Commitment(5, b"value")


@pytest.mark.parametrize("kind", ["file", "kv"])
def test_a_damaged_record_is_named_and_the_others_work(kind: str, tmp_path: Path) -> None:
    store = MemoryStore()
    fence: Fence = FileFence(tmp_path / "fence") if kind == "file" else KVFence(store)
    for number, name in enumerate("abcd"):
        fence.admit(name, 1 + number)
    if kind == "file":
        min((tmp_path / "fence").glob("*.fence")).write_bytes(b"")
    else:
        store.set(b"fences", b"resource/a", b"")
    with pytest.raises(CorruptData):
        fence.raise_floor(9)
    with pytest.raises(FencedOff):
        fence.admit("new", 8)
    left = (len(list((tmp_path / "fence").glob("*.fence"))) if kind == "file" else
            sum(1 for _ in store.scan(b"fences", prefix=b"resource/")))
    assert left == 1, "the others are done with"
    fence.admit("e", 9)


def test_a_fork_goes_on_with_a_fence_of_its_parent(tmp_path: Path) -> None:
    fence = FileFence(tmp_path / "fence", wait_seconds=0)
    with fence.guard("job", 5):
        # The parent is within its guarded step.
        assert isinstance(in_a_fork(lambda: fence.admit("job", 9)), Busy)
        fence.commit("job", 5, b"within")
    assert fence.admit("job", 9).committed == Commitment(5, b"within")
