# SPDX-License-Identifier: Apache-2.0
"""A store is crashed after every operation on the disk, under every loss of what was not synced: put, delete, undelete,
TTL update, roll-over, sealing, closing, and opening after a crash."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.blobstore import Blob, BlobStore, BlobStoreConfig, CompactAll, Deleted
from compactlib.blobstore.config import Durability
from compactlib.blobstore.model.values import Answer
from compactlib.blobstore.store.operations import draft_put
from compactlib.clock import ManualClock
from compactlib.files import Files
from compactlib.outcome import Done
from compactlib.testing import RecordingFiles, explore_crashes, explore_recovery

NOW = 1000.0
Step = Callable[[BlobStore], object]
State = dict[bytes, object]

# One record of each kind, contents that fill segments of 1 KiB, and index segments of three records.
STEPS: Sequence[Step] = (
    lambda store: store.put(b"a", b"a" * 50),
    lambda store: store.put(b"b", b"b" * 700, ttl_seconds=90),
    lambda store: store.delete(b"a"),
    lambda store: store.ttl_update(b"b"),
    lambda store: store.put(b"c", b""),
    lambda store: store.undelete(b"a"),
    lambda store: store.put(b"d", b"d" * 600),
    lambda store: store.delete(b"d"),
)
KEYS = [b"a", b"b", b"c", b"d"]


def config_of(durability: Durability) -> BlobStoreConfig:
    return BlobStoreConfig(capacity_bytes=1 << 16, segment_bytes=1 << 10, durability=durability, index_max_entries=3,
                           sync_interval_seconds=1e6, ttl_update_buffer_seconds=1)


def plain(answer: Answer) -> object:
    if isinstance(answer, Blob):
        return answer.content, answer.info.expires_at, answer.info.life_version
    return answer


def state_of(store: BlobStore) -> State:
    return {key: plain(store.get(key)) for key in KEYS}


def opened(folder: Path, durability: Durability, files: Files | None = None) -> BlobStore:
    return BlobStore(folder / "store", config_of(durability), files=files, clock=ManualClock(NOW),
                     new_incarnation=lambda: b"the incarnation.")


def states_after_each_step(folder: Path, durability: Durability) -> list[State]:
    """What the store answers before the first step, and after each."""
    states = []
    with opened(folder, durability) as store:
        states.append(state_of(store))
        for step in STEPS:
            step(store)
            states.append(state_of(store))
    return states


@attrs.frozen
class Checker:
    """What must hold after a crash.

    Attributes:
        durability: of the store.
        states: what it may answer, by the number of steps.
        in_flight: how many steps beyond the acknowledged ones may be there; `None` for any number.
    """

    durability: Durability
    states: list[State]
    in_flight: int | None

    def __call__(self, folder: Path, acknowledged: Sequence[Any]) -> None:
        least = max(acknowledged, default=0)
        most = len(STEPS) if self.in_flight is None else min(least + self.in_flight, len(STEPS))
        with opened(folder, self.durability) as store:
            assert not store.recovery.damage
            store.audit()
            found = state_of(store)
            assert found in self.states[least:most + 1], (least, found)
            # The log goes on from there.
            store.put(b"later", b"x" * 300)
            store.delete(b"later")
        with opened(folder, self.durability) as store:
            assert not store.recovery.damage
            assert not store.recovery.cut_bytes
            assert state_of(store) == found
            assert isinstance(store.get(b"later"), Deleted)
            store.audit()


def run(durability: Durability, files: RecordingFiles, folder: Path) -> None:
    with opened(folder, durability, files) as store:
        for count, step in enumerate(STEPS, 1):
            step(store)
            if durability == "interval" and count % 3 == 0:
                store.flush()
            if durability != "interval" or count % 3 == 0:
                files.acknowledge(count)
    files.acknowledge(len(STEPS))


@pytest.mark.parametrize("durability", ["each", "group", "interval"])
def test_nothing_acknowledged_is_lost_by_a_crash_at_any_step(durability: Durability, tmp_path: Path) -> None:
    states = states_after_each_step(tmp_path, durability)
    recorded = tmp_path / "recorded"
    recorded.mkdir()
    files = RecordingFiles(recorded)
    run(durability, files, recorded)
    checked = explore_crashes(files.recording(), Checker(durability, states, None if durability == "interval" else 1),
                     limit_per_point=256, seed=1)
    assert checked > 40


@pytest.mark.parametrize("durability", ["each", "interval"])
def test_nothing_acknowledged_is_lost_by_a_crash_while_opening_after_a_crash(durability: Durability,
                                                                              tmp_path: Path) -> None:
    states = states_after_each_step(tmp_path, durability)
    recorded = tmp_path / "recorded"
    recorded.mkdir()
    files = RecordingFiles(recorded)
    run(durability, files, recorded)

    def recover(folder: Path, again: Files) -> None:
        opened(folder, durability, again).close()

    checked = explore_recovery(files.recording(), recover, Checker(durability, states,
                                                                  None if durability == "interval" else 1),
                              limit_per_point=4, seed=1)
    assert checked > 20


def test_what_a_store_answers_after_a_kill_stays_after_a_crash(tmp_path: Path) -> None:
    """A process is killed before it has synced; the next one answers what it had written; then the power fails."""
    states = states_after_each_step(tmp_path, "interval")
    recorded = tmp_path / "recorded"
    recorded.mkdir()
    files = RecordingFiles(recorded)
    killed = opened(recorded, "interval", files)
    for step in STEPS[:2]:
        step(killed)
    killed._lock_file.release()  # noqa: SLF001
    with opened(recorded, "interval", files) as store:
        assert state_of(store) == states[2]
        files.acknowledge(2)
    explore_crashes(files.recording(), Checker("interval", states, None), seed=1)


@pytest.mark.parametrize("durability", ["group", "interval"])
def test_a_compaction_removes_nothing_because_of_what_a_crash_takes(durability: Durability, tmp_path: Path) -> None:
    """The old content of a blob is garbage as soon as the new one is written; the new one is not durable yet."""
    config = attrs.evolve(config_of(durability), journal_max_entries=0)
    files = RecordingFiles(tmp_path)
    with BlobStore(tmp_path / "store", config, files=files, clock=ManualClock(NOW)) as store:
        store.put(b"a", b"old" * 100)
        store.put(b"b", b"b" * 500)
        store.close_active_segment()
        files.acknowledge("old")

        def answers(folder: Path, acknowledged: Sequence[Any]) -> None:
            with BlobStore(folder / "store", config, clock=ManualClock(NOW)) as again:
                found = again.get(b"a")
                assert isinstance(found, Blob), found
                assert found.content in (b"old" * 100, b"new" * 100)

        with store._log.lock:  # noqa: SLF001 - as between the writing of a record and its sync, with "group"
            draft = draft_put(b"a", store._log.contents.find(b"a"), content_bytes=300,  # noqa: SLF001
                              now_ms=int(NOW * 1000), ttl_seconds=None, account=0, container=0, replace=True)
            store._log.append(draft, b"new" * 100)  # noqa: SLF001
        began = len(files.recording().operations)
        outcome = store.compact(policy=CompactAll(min_used_fraction=0.0))
        assert isinstance(outcome, Done)
        assert outcome.stats.copied_records == 1
        recording = files.recording()
    explore_crashes(recording, answers, points=range(began, len(recording.operations) + 1), seed=1)


@attrs.frozen
class RandomWork:
    """Steps drawn by a seed: every operation, contents of many sizes, flushes, roll-overs and restarts between them."""

    seed: int
    count: int = 14

    def steps(self) -> list[Step]:
        """Each is allowed where it stands."""
        rng = random.Random(self.seed)
        live: set[bytes] = set()
        deleted: set[bytes] = set()
        expiring: set[bytes] = set()
        steps: list[Step] = []
        for number in range(self.count):
            kinds = ["put", "put", "roll", "flush", *(["delete"] if live else []), *(["undelete"] if deleted else []),
                     *(["ttl"] if expiring & live else [])]
            kind = rng.choice(kinds)
            if kind == "put":
                key = b"%d" % number
                ttl = rng.choice([None, 90.0])
                steps.append(partial(put, key, rng.choice([0, 1, 90, 400, 850]), ttl))
                live.add(key)
                expiring |= {key} if ttl else set()
            elif kind in ("roll", "flush"):
                steps.append(BlobStore.close_active_segment if kind == "roll" else BlobStore.flush)
            else:
                key = rng.choice(sorted({"delete": live, "undelete": deleted, "ttl": expiring & live}[kind]))
                steps.append(partial({"delete": delete, "undelete": undelete, "ttl": ttl_update}[kind], key))
                if kind == "delete":
                    live.discard(key)
                    deleted.add(key)
                elif kind == "undelete":
                    deleted.discard(key)
                    live.add(key)
                else:
                    expiring.discard(key)
        return steps

    def keys(self) -> list[bytes]:
        """Every id that may have been put."""
        return [b"%d" % number for number in range(self.count)]


def put(key: bytes, size: int, ttl: float | None, store: BlobStore) -> object:
    return store.put(key, key[:1] * size, ttl_seconds=ttl)


def delete(key: bytes, store: BlobStore) -> object:
    return store.delete(key)


def undelete(key: bytes, store: BlobStore) -> object:
    return store.undelete(key)


def ttl_update(key: bytes, store: BlobStore) -> object:
    return store.ttl_update(key)


def campaign(seed: int, folder: Path, limit: int) -> int:
    """Crash one random work everywhere; how many different folders were checked."""
    rng = random.Random(seed)
    durability: Durability = rng.choice(["each", "group", "interval"])
    work = RandomWork(seed)
    steps, keys = work.steps(), work.keys()
    restarts = {rng.randrange(len(steps)) for _ in range(2)}
    states: list[State] = []

    def answers(store: BlobStore) -> State:
        return {key: plain(store.get(key)) for key in keys}

    recorded = folder / "recorded"
    recorded.mkdir()
    files = RecordingFiles(recorded)
    store = opened(recorded, durability, files)
    states.append(answers(store))
    for number, step in enumerate(steps, 1):
        step(store)
        states.append(answers(store))
        if number in restarts:
            store.close()
            store = opened(recorded, durability, files)
        if durability != "interval" or step is BlobStore.flush or number in restarts:
            files.acknowledge(number)
    store.close()
    files.acknowledge(len(steps))

    def check(crashed: Path, acknowledged: Sequence[Any]) -> None:
        least = max(acknowledged, default=0)
        with opened(crashed, durability) as again:
            assert not again.recovery.damage
            again.audit()
            found = answers(again)
            assert found in states[least:] if durability == "interval" else found in states[least:least + 2]
        with opened(crashed, durability) as again:
            assert answers(again) == found
            assert again.recovery.to_dicts() == []

    return explore_crashes(files.recording(), check, limit_per_point=limit, seed=seed)


@pytest.mark.parametrize("seed", range(4))
def test_random_work_survives_a_crash_anywhere(seed: int, scratch: Path) -> None:
    assert campaign(seed, scratch, 8) > 20


@pytest.mark.soak
def test_random_work_survives_a_crash_anywhere_long(scratch: Path) -> None:
    for seed in range(4, 60):
        (scratch / f"{seed}").mkdir()
        campaign(seed, scratch / f"{seed}", 32)
