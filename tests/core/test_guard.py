# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: SLF001 - no public name shows a fork's objects, and the forgotten ones
"""An object that fails in the middle of a change closes itself, and opening it again is the only repair."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from compactlib import _forks
from compactlib.budget import Budget
from compactlib.errors import BudgetSpent, Busy, Closed, InvalidInput
from compactlib.guard import Guard, Run
from compactlib.testing import Interrupted
from tests.core import toy_store
from tests.core.toy_store import ToyStore
from tests.harness.interruptions import interruptions

FILES = (str(toy_store.__file__),)
EVERY = 10_000


def guards() -> list[Guard]:
    """All guards of this process that somebody has."""
    return [each for reference in list(_forks._open) if isinstance(each := reference(), Guard)]


def leave_a_change(guard: Guard, error: BaseException | None = None, what: str = "a change") -> None:
    """Leave a change of the guard's object by an exception."""
    error = ZeroDivisionError() if error is None else error
    try:
        with guard.lock:
            guard.begin(what)
            raise error
    except type(error):
        pass


@pytest.mark.parametrize("error", [ValueError("v"), InvalidInput("i"), KeyboardInterrupt(), GeneratorExit()])
def test_an_exception_before_a_change_leaves_the_object_open(error: BaseException) -> None:
    guard = Guard("the log in /data")

    def refuse() -> None:
        with guard.lock:
            guard.require_open()
            raise error

    with pytest.raises(type(error)):
        refuse()
    guard.require_open()
    assert guard.is_open


@pytest.mark.parametrize("error", [ValueError("v"), InvalidInput("i"), KeyboardInterrupt(), GeneratorExit()])
def test_an_exception_inside_a_change_closes_the_object(error: BaseException) -> None:
    guard = Guard("the log in /data")
    leave_a_change(guard, error, "an append")
    with pytest.raises(Closed, match=r"^the log in /data was left in the middle of an append by an error or an "
                                     r"interrupt; open it again$"):
        guard.require_open()
    with pytest.raises(Closed), guard.lock:
        guard.begin()
    assert not guard.is_open


def test_a_change_that_was_taken_back_leaves_the_object_open() -> None:
    guard = Guard("the log in /data")

    def refuse() -> None:
        with guard.lock:
            guard.begin()
            guard.undone()
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        refuse()
    guard.require_open()


def test_the_first_reason_stays() -> None:
    guard = Guard("the log in /data")
    guard.fail(OSError("the disk is gone"))
    guard.close()
    with pytest.raises(Closed, match=r"failed \(OSError: the disk is gone\); open it again"):
        guard.require_open()


def test_a_change_within_a_change_closes_the_object() -> None:
    guard = Guard("the log in /data")
    with guard.lock:
        guard.begin()
        with pytest.raises(Closed), guard.lock:
            guard.begin()


def test_an_interrupt_at_any_place_of_an_append_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    stores = [ToyStore(folder, ["a"])]
    kept, seen_closed = [], 0
    for interrupted in interruptions(lambda: stores[0].log("a").append(b"first"), EVERY, FILES):
        log = stores[-1].log("a")
        before = acknowledged = len(log.entries())
        try:
            with interrupted:
                acknowledged = log.append(b"new")
        except KeyboardInterrupt as error:
            kept.append(error)  # as a notebook keeps it, and with it all frames
        try:
            assert log.append(b"next") == before + 1 + (log.entries()[before] != b"next")
        except Closed:
            seen_closed += 1
            log = stores[-1].log("a")
            assert before <= acknowledged <= len(log.entries()) <= before + 1
            assert log.append(b"next") == len(log.entries())
    assert seen_closed > 5
    stores[-1].close()


def test_an_interrupt_at_any_place_of_opening_leaves_the_folder_free(tmp_path: Path) -> None:
    def opened() -> None:
        with ToyStore(tmp_path, ["a", "b"]) as store:
            store.log("b").append(b"x")

    kept = []
    for interrupted in interruptions(opened, EVERY, FILES):
        try:
            with interrupted:
                opened()
        except KeyboardInterrupt as error:
            kept.append(error)
        ToyStore(tmp_path, ["a", "b"], timeout=0.1).close()
    assert len(kept) > 50


def test_an_interrupt_at_any_place_of_a_read_leaves_no_use(tmp_path: Path) -> None:
    store = ToyStore(tmp_path, ["a"])
    kept = []
    for interrupted in interruptions(lambda: store.log("a").entries(), EVERY, FILES):
        try:
            with interrupted:
                store.log("a").entries()
        except KeyboardInterrupt as error:
            kept.append(error)
        assert store.log("a").guard.wait_idle(0.1)
        assert store.log("a").guard.is_open
    assert kept
    store.close()


def test_an_interrupt_at_any_place_of_asking_and_closing_is_repeated(tmp_path: Path) -> None:
    def left() -> ToyStore:
        store = ToyStore(tmp_path, ["a"])
        leave_a_change(store.guard)
        return store

    def asked(store: ToyStore) -> None:
        assert not store.guard.is_open
        store.close()

    kept = []
    for interrupted in interruptions(lambda: asked(left()), EVERY, FILES):
        store = left()
        try:
            with interrupted:
                asked(store)
        except KeyboardInterrupt as error:
            kept.append(error)
        done = threading.Thread(target=asked, args=(store,))  # a lock that stayed taken would hold it up
        done.start()
        done.join()
        ToyStore(tmp_path, ["a"], timeout=0.1).close()
    assert len(kept) > 50


def test_thread_whose_change_failed_finds_the_object_closed_while_another_holds_the_lock() -> None:
    """It removes no file then that the change may have made count."""
    guard = Guard("the log in /data")
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        with guard.lock:
            held.set()
            go.wait()

    leave_a_change(guard)
    other = threading.Thread(target=hold)
    other.start()
    held.wait()
    try:
        assert not guard.is_open
    finally:
        go.set()
        other.join()


def test_threads_that_wait_for_the_lock_find_the_object_closed() -> None:
    guard = Guard("the log in /data")
    begun, go = threading.Event(), threading.Event()
    refused: list[str] = []

    def change() -> None:
        try:
            with guard.lock:
                guard.begin("a cut")
                begun.set()
                go.wait()
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass

    def wait() -> None:
        try:
            with guard.lock:
                guard.require_open()
        except Closed as error:
            refused.append(str(error))

    threads = [threading.Thread(target=change), *(threading.Thread(target=wait) for _ in range(8))]
    threads[0].start()
    begun.wait()
    for thread in threads[1:]:
        thread.start()
    guard.require_open()  # without the lock: the change may still succeed
    assert guard.is_open
    go.set()
    for thread in threads:
        thread.join()
    assert len(refused) == 8
    assert all("a cut" in each for each in refused)


def test_a_failed_fsync_closes_the_object_from_outside_of_the_lock() -> None:
    guard = Guard("the log in /data")
    with guard.lock:
        guard.begin("an append")
        syncer = threading.Thread(target=guard.fail, args=(OSError(5, "Input/output error"),))
        syncer.start()
        syncer.join()
        guard.done()  # the change in memory ends; no call acknowledges it as durable
    with pytest.raises(Closed, match="Input/output error"), guard.lock:
        guard.begin()


def test_opening_again_waits_for_reads_in_flight(tmp_path: Path) -> None:
    store = ToyStore(tmp_path, ["a"])
    store.log("a").append(b"x")
    log = store.log("a")
    with pytest.raises(Busy, match="is open for writing by process"):
        ToyStore(tmp_path, ["a"])
    reading, go = threading.Event(), threading.Event()
    read: list[list[bytes]] = []

    def reads() -> None:
        with store.guard.use():
            store.guard.require_open()
            reading.set()
            go.wait()
            read.append(log.entries())

    reader = threading.Thread(target=reads)
    reader.start()
    reading.wait()
    leave_a_change(store.guard, KeyboardInterrupt())
    with pytest.raises(Busy, match="still used after 0 seconds"):
        ToyStore(tmp_path, ["a"], timeout=0)
    opened: list[ToyStore] = []
    opener = threading.Thread(target=lambda: opened.append(ToyStore(tmp_path, ["a"])))
    opener.start()
    go.set()
    reader.join()
    opener.join()
    assert read == [[b"x"]]
    assert opened[0].log("a").entries() == [b"x"]
    store.close()  # may be called often, and takes nothing from the new one
    with pytest.raises(Busy):
        ToyStore(tmp_path, ["a"])
    opened[0].close()


def test_closing_within_a_use_is_refused() -> None:
    guard = Guard("the log in /data")
    with guard.use(), guard.use(), pytest.raises(Busy):
        guard.release()
    guard.release(timeout=0)


def compact(guard: Guard, work: Callable[[Run], object], budget: Budget | None = None,
            kind: str = "compaction") -> None:
    run = Run(guard, budget)
    with run.held:
        run.begin(kind)
        work(run)


def test_one_run_of_a_kind_at_a_time() -> None:
    guard = Guard("the log in /data")
    refused: list[str] = []

    def again(run: Run) -> None:
        assert guard.running == ("compaction",)

        def other() -> None:
            compact(guard, lambda run: None, kind="verification")
            try:
                compact(guard, lambda run: None)
            except Busy as error:
                refused.append(str(error))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        with pytest.raises(Busy):
            compact(guard, lambda run: None)
        with pytest.raises(Busy):
            guard.release()

    guard_before = Guard("another")
    compact(guard_before, lambda run: guard_before.require_open())
    compact(guard, again)
    assert refused == ["a compaction of the log in /data is under way; wait for its end, or cancel its budget"]
    assert guard.running == ()
    with pytest.raises(Closed):
        compact(guard, lambda run: None)


def test_closing_cancels_a_run_and_waits_for_its_end() -> None:
    guard, budget = Guard("the log in /data"), Budget()
    begun, ended = threading.Event(), []

    def work(run: Run) -> None:
        begun.set()
        try:
            while True:
                run.budget.spend(1)
        except BudgetSpent as error:
            ended.append(error.reason)

    thread = threading.Thread(target=compact, args=(guard, work, budget))
    thread.start()
    begun.wait()
    guard.release()
    assert ended == ["cancelled"]
    assert not budget.cancelled
    thread.join()


def test_an_interrupt_at_any_place_of_a_run_ends_it() -> None:
    guard = Guard("the log in /data")
    kept = []
    for interrupted in interruptions(lambda: compact(guard, lambda run: run.budget.spend(1)), EVERY, (__file__,)):
        try:
            with interrupted:
                compact(guard, lambda run: run.budget.spend(1))
        except KeyboardInterrupt as error:
            kept.append(error)
        assert guard.running == ()
        assert guard.wait_idle(0.1)
        compact(guard, lambda run: run.budget.spend(1))
    assert len(kept) > 20


def in_child(check: Callable[[], object]) -> None:
    """Fork, check there, and raise here if that has failed or hangs."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        sys.settrace(None)
        try:
            check()
            os.write(writing, b"fine")
        except BaseException as error:
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        found = answer.read()
    os.waitpid(child, 0)
    assert found == b"fine", found


def open_files(folder: Path) -> list[str]:
    """Descriptors of this process that lead to the folder or its lock."""
    names = []
    for number in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue
    return [name for name in names if name in (str(folder), str(folder / "LOCK"))]


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="lists the descriptors of a process")
def test_a_fork_at_any_step_is_refused_and_holds_no_folder(tmp_path: Path) -> None:
    def act(stores: list[ToyStore]) -> None:
        stores.append(ToyStore(tmp_path, ["a"]))
        stores[0].log("a").append(b"x")
        stores[0].log("a").entries()
        stores[0].close()

    forks = 0
    for place in interruptions(lambda: act([]), EVERY, FILES):
        stores: list[ToyStore] = []

        def check(stores: list[ToyStore] = stores) -> None:
            assert open_files(tmp_path) == []
            for guard in guards():
                assert not guard.is_open
                with pytest.raises(Closed, match=r"(open it again|when it is closed there)$"), guard.lock:
                    guard.begin()
                guard.release(timeout=0)
            for store in stores:
                with pytest.raises(Closed, match=f"by process {os.getppid()}|was closed"):
                    store.log("a")

        def fork(check: Callable[[], None] = check) -> None:
            nonlocal forks
            # Another thread's fork would wait here until the folder is locked.
            if not _forks.forking._is_owned():  # type: ignore[attr-defined]
                forks += 1
                in_child(check)

        with Interrupted(place.place, fork, FILES):
            act(stores)
        del stores
    assert forks > 100


def test_a_fork_waits_while_a_folder_is_being_locked(tmp_path: Path) -> None:
    holding, go = threading.Event(), threading.Event()

    def locks() -> None:
        with _forks.forking:
            holding.set()
            go.wait()

    thread, forked = threading.Thread(target=locks), threading.Event()

    def forks() -> None:
        in_child(lambda: None)
        forked.set()

    other = threading.Thread(target=forks)
    thread.start()
    holding.wait()
    other.start()
    assert not forked.wait(0.05)
    go.set()
    thread.join()
    other.join()
    assert forked.is_set()


def test_a_guard_without_references_is_forgotten() -> None:
    gc.collect()
    before = len(guards())
    guard = Guard("the log in /data")
    with guard.use():
        pass
    for _ in range(10):
        reader = threading.Thread(target=guard.use)
        reader.start()
        reader.join()
    assert len(guard._uses) == 1  # this thread's; those of ended threads are gone
    assert len(guards()) == before + 1
    del guard
    assert len(guards()) == before
