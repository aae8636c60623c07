# SPDX-License-Identifier: Apache-2.0
"""The key-value store of `examples/raft_kv.py`: values in the log, places in memory."""

from __future__ import annotations

import contextlib
import random
import threading
from pathlib import Path

import pytest

from compactlib.errors import Busy, NotFound
from compactlib.raftlog import LogCompactionWorker, LogOptions, SegmentLimits, StoreOptions
from compactlib.raftlog.policy import plan_clump
from examples.kv_machine import KvMachine, Put
from examples.raft_kv import KvStore
from tests.raftlog.wrapped_files import UnsyncedFiles


def options(entries: int = 64) -> StoreOptions:
    """Small segments, on a disk that is not waited for."""
    return StoreOptions(background=False, log=LogOptions(limits=SegmentLimits(max_entries=entries),
                                                         files=UnsyncedFiles(), keep_links_seconds=0.0))


def settle(store: KvStore) -> None:
    """Everything to segments, and the worker at rest."""
    store.log.flush()
    (worker,) = store.log._workers  # noqa: SLF001
    assert isinstance(worker, LogCompactionWorker)
    while worker.run_pending():
        pass


def segments(store: KvStore) -> int:
    """How many there are."""
    return len(store.log.refs)


def test_one_key_once_and_one_ten_thousand_times(tmp_path: Path) -> None:
    with KvStore(str(tmp_path / "one"), options(4096)) as store:
        store.put("k1", b"once")
        for start in range(0, 10_000, 1000):
            store.write([Put("k2", b"%d" % number) for number in range(start, start + 1000)])
        settle(store)
        assert segments(store) == 3
        store.snapshot()
        settle(store)
        assert segments(store) == 2
        assert store.log.state.live.count == 2
        store.put("k3", b"third")
        before = store.items()
        assert before == {"k1": b"once", "k2": b"9999", "k3": b"third"}
    with KvStore(str(tmp_path / "one"), options(4096)) as store:
        assert store.items() == before
        store.snapshot()
        assert store.log.state.live.count == 3
        settle(store)
        store.compact()
        assert store.items() == before
        store.machine.audit()
    with KvStore(str(tmp_path / "one"), options(4096)) as store:
        assert store.items() == before


def test_delete_one_of_three_and_put_it_again(tmp_path: Path) -> None:
    with KvStore(str(tmp_path / "kv"), options()) as store:
        for key in ("k1", "k2", "k3"):
            store.put(key, key.encode())
        store.delete("k2")
        assert sorted(store.items()) == ["k1", "k3"]
        for call in (store.get, store.delete):
            with pytest.raises(NotFound, match="there is no key 'k2'"):
                call("k2")
        store.snapshot()
        # Nothing has changed since: there is nothing to take.
        store.snapshot()
        store.put("k2", b"again")
        assert store.get("k2") == b"again"
    with KvStore(str(tmp_path / "kv"), options()) as store:
        assert store.items() == {"k1": b"k1", "k2": b"again", "k3": b"k3"}


def test_raft_kv_agrees_with_a_dictionary_through_restarts(tmp_path: Path) -> None:
    rng, expected = random.Random(3), dict[str, bytes]()
    store = KvStore(str(tmp_path / "kv"), options())
    for number in range(600):
        key = f"k{rng.randrange(25)}"
        if rng.random() < 0.2 and key in expected:
            store.delete(key)
            del expected[key]
        else:
            expected[key] = rng.randbytes(rng.randrange(60))
            store.put(key, expected[key])
        chance = rng.random()
        if chance < 0.03:
            store.snapshot()
        elif chance < 0.05:
            store.log.flush()
            with contextlib.suppress(Busy):  # the worker is at it
                store.compact()
        elif chance < 0.07:
            store.close()
            store = KvStore(str(tmp_path / "kv"), options())
        if number % 50 == 0:
            assert store.items() == expected
            store.machine.audit()
    assert store.items() == expected
    store.close()


def test_clumping_shortens_the_live_set_and_changes_no_value(tmp_path: Path) -> None:
    with KvStore(str(tmp_path / "kv"), options()) as store:
        for number in range(400):
            store.put(f"k{number}" if number % 9 == 0 else "other", b"%d" % number)
        store.snapshot()
        before, runs = store.items(), store.log.state.live.run_count
        assert runs > 40
        store.clump(5)
        assert store.items() == before
        store.snapshot()
        # The rewritten values are after the last put of the key that was written repeatedly.
        assert store.log.state.live.run_count <= 5
        settle(store)
        store.compact()
        assert store.items() == before


def test_a_write_between_a_clump_plan_and_its_rewrites_is_kept(tmp_path: Path) -> None:
    with KvStore(str(tmp_path / "kv"), options()) as store:
        for number in range(60):
            store.put(f"k{number}" if number % 9 == 0 else "other", b"%d" % number)
        scattered = plan_clump(store.machine.live_set(), 2)
        proposed = store.rewrites(scattered)
        assert [command.of for command in proposed] == list(scattered)
        store.put("k9", b"newer")
        store.delete("k18")
        store.delete("k27")
        store.put("k27", b"newer, too")
        expected = store.items()
        # Two members may have proposed the same.
        store.write([*proposed, *proposed])
        assert store.items() == expected
        assert [index for index in scattered if index in store.machine.live_set()] == []
        store.machine.audit()
        store.snapshot()
        settle(store)
    with KvStore(str(tmp_path / "kv"), options()) as store:
        assert store.items() == expected


def test_clumping_with_concurrent_writers_loses_no_update(tmp_path: Path) -> None:
    """Three threads propose; the log orders their proposals, as a leader does."""
    expected: dict[str, bytes] = {}
    with KvStore(str(tmp_path / "kv"), options()) as store:
        store.write([Put(f"k{key}" if key % 3 == 0 else "other", b"%d" % key) for key in range(90)])
        order, done, written = threading.Lock(), threading.Event(), threading.Event()

        def write(keys: range) -> None:
            for number in range(60):
                key, value = f"k{keys[number % len(keys)]}", b"%d of %d" % (number, keys.start)
                with order:
                    store.put(key, value)
                    expected[key] = value
                    written.set()

        def clump() -> None:
            while not done.is_set():
                with order:
                    plan = plan_clump(store.machine.live_set(), 2)
                    proposed = store.rewrites(plan)
                    written.clear()
                # Another's write comes in between, as long as anybody writes.
                while not (written.wait(0.01) or done.is_set()):
                    pass
                for command in proposed:
                    with order:
                        store.write([command])

        writers = [threading.Thread(target=write, args=[range(start, 90, 6)]) for start in (0, 3)]
        clumper = threading.Thread(target=clump)
        for thread in (*writers, clumper):
            thread.start()
        for thread in writers:
            thread.join()
        done.set()
        clumper.join()
        assert {key: value for key, value in store.items().items() if key != "other"} == expected
        store.machine.audit()


def test_a_machine_restored_is_the_machine_that_was_taken() -> None:
    machine, again = KvMachine(), KvMachine()
    assert list(machine.snapshot()) == []
    again.restore(machine.snapshot())
    again.begin_after(7)
    assert (again.places, again.applied) == ({}, 7)
    again.audit()
