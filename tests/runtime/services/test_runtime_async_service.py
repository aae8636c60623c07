# SPDX-License-Identifier: Apache-2.0
"""A service in an event loop: tasks that are kept, calls that block, and an end in time, whatever anybody raises."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import pytest

from compactlib.contract import AsyncService
from compactlib.errors import Busy, Closed, InvalidInput, StorageError, TaskFailed
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.runtime import Observer, RecordingObserver
from compactlib.runtime.services.async_service import AsyncServiceFace, AsyncWork


class Trouble(Exception):
    """Of a host's own."""


class Shop(AsyncServiceFace):
    """A service that does what a test says."""

    def __init__(self, *, observer: Observer | None = None, begin: Callable[[], Awaitable[object]] | None = None,
                 end: Callable[[], Awaitable[object]] | None = None) -> None:
        self._work = AsyncWork("the shop", event="shop_failed", threads=2, observer=observer)
        self.begins = self.ends = 0
        self.begin, self.end = begin, end

    @property
    def work(self) -> AsyncWork:
        return self._work

    async def _begin(self) -> None:
        self.begins += 1
        if self.begin is not None:
            await self.begin()

    async def _end(self) -> None:
        self.ends += 1
        if self.end is not None:
            await self.end()

    async def _pending(self) -> Sequence[Outcome[Any]]:
        return [Skipped("nothing")]


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, 60))


async def raises(error: BaseException) -> None:
    raise error


async def forever() -> None:
    await asyncio.Event().wait()


def test_a_service_is_one_by_the_contract() -> None:
    async def main() -> None:
        shop = Shop()
        made: AsyncService = shop
        assert isinstance(await made.stop(), Done)
        for _ in range(2):
            async with made:
                await made.start()
                assert await made.run_pending() == [Skipped("nothing")]
                assert shop.work.is_running
            assert isinstance(await made.stop(), Done)
            assert shop.work.is_stopping
        assert (shop.begins, shop.ends) == (2, 2)
        assert "stopped" in repr(shop.work)

    run(main())


def test_what_a_task_raises_is_kept_and_told_and_the_others_go_on() -> None:
    async def main() -> None:
        observer = RecordingObserver()
        async with Shop(observer=observer) as shop:
            other = shop.work.spawn(forever(), "other")
            await shop.work.spawn(raises(Trouble("oops")), "lifting").wait()
            assert isinstance(shop.last_error, Trouble)
            assert shop.failures == 1
            assert not other.has_ended
            assert observer.events == [("shop_failed", {"what": "lifting", "error": "Trouble", "message": "oops",
                                                        "failures": 1})]
        assert other.has_ended

    run(main())


def test_a_turn_that_raises_is_taken_again() -> None:
    async def main() -> None:
        turns: list[int] = []
        enough = asyncio.Event()

        async def turn() -> None:
            turns.append(len(turns))
            if len(turns) in (1, 2, 4):
                raise Trouble("oops")
            if len(turns) == 6:
                enough.set()
                await forever()

        async with Shop() as shop:
            shop.work.keep_on(turn, "sweeping", first_pause_seconds=0.0)
            await enough.wait()
            assert shop.failures == 3

    run(main())


def test_audit_names_what_has_ended_that_should_go_on() -> None:
    async def main() -> None:
        async with Shop() as shop:
            task = shop.work.keep_on(forever, "sweeping")
            await asyncio.sleep(0)
            task.cancel()
            await task.wait()

    run(main())


def test_calls_that_block_run_in_threads_and_stop_waits_for_them() -> None:
    async def main() -> None:
        shop = Shop()
        went_in, go_on = threading.Event(), threading.Event()

        def blocks() -> str:
            went_in.set()
            assert go_on.wait(30)
            return threading.current_thread().name

        async with shop:
            waiting = shop.work.spawn(shop.work.call(blocks), "waiting")
            await asyncio.to_thread(went_in.wait, 30)
            outcome = await shop.stop(wait_seconds=0.0)
            assert isinstance(outcome, Failed)
            assert isinstance(outcome.error, Busy)
            assert "blocks" in str(outcome.error)
            with pytest.raises(Busy, match="is being stopped"):
                await shop.start()
            go_on.set()
            assert isinstance(await shop.stop(), Done)
            assert waiting.has_ended

    run(main())


def test_a_call_that_hangs_keeps_neither_stop_nor_the_process_from_ending() -> None:
    async def main() -> str:
        shop = Shop()
        hung, never = threading.Event(), threading.Event()

        def hangs() -> None:
            hung.set()
            never.wait()

        await shop.start()
        shop.work.spawn(shop.work.call(hangs), "hanging")
        await asyncio.to_thread(hung.wait, 30)
        outcome = await shop.stop(wait_seconds=0.05)
        assert isinstance(outcome, Failed)
        return str(outcome.error)

    assert "hangs still runs" in run(main())


@pytest.mark.parametrize(("error", "seen"), [
    (Trouble("oops"), Trouble), (StorageError(operation="write", path="/x", errno=5), StorageError),
    (StopIteration(), TaskFailed), (asyncio.CancelledError(), TaskFailed),
])
def test_what_a_call_raises_comes_to_whoever_waits(error: BaseException, seen: type[BaseException]) -> None:
    def fails() -> None:
        raise error

    async def main() -> None:
        async with Shop() as shop:
            with pytest.raises(seen):
                await shop.work.call(fails)

    run(main())


def test_what_cannot_begin_has_not_begun() -> None:
    async def main() -> None:
        shop = Shop()

        async def begin() -> None:
            shop.work.spawn(forever(), "half")
            await asyncio.sleep(0)
            if shop.begins == 1:
                raise Trouble("in use")

        shop.begin = begin
        with pytest.raises(Trouble):
            await shop.start()
        with pytest.raises(Closed, match="start it first"):
            shop.work.spawn(forever(), "too early")
        with pytest.raises(Closed, match="start it first"):
            await shop.work.call(print)
        await shop.start()
        assert shop.work.is_running
        await shop.stop()

    run(main())


def test_what_is_cancelled_again_while_its_beginning_is_taken_back_has_not_begun() -> None:
    async def main() -> None:
        is_ending = asyncio.Event()

        async def ends_slowly() -> None:
            try:
                await forever()
            finally:
                is_ending.set()
                await asyncio.sleep(0.05)

        async def begin() -> None:
            shop.work.spawn(ends_slowly(), "slow")
            await (asyncio.sleep(0) if shop.begins > 1 else forever())

        shop = Shop(begin=begin)
        starting = asyncio.create_task(shop.start())
        await asyncio.sleep(0.01)
        starting.cancel()
        await is_ending.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not shop.work.is_running
        await shop.start()
        assert shop.begins == 2
        assert isinstance(await shop.stop(), Done)

    run(main())


def test_two_who_start_begin_it_once_and_a_stop_meanwhile_closes_what_was_opened() -> None:
    async def main() -> None:
        go_on = asyncio.Event()
        opened: list[str] = []

        async def begin() -> None:
            await go_on.wait()
            opened.append("it")

        async def end() -> None:
            opened.remove("it")

        shop = Shop(begin=begin, end=end)
        starting = [asyncio.create_task(shop.start()) for _ in range(2)]
        await asyncio.sleep(0)
        stopping = asyncio.create_task(shop.stop())
        await asyncio.sleep(0)
        go_on.set()
        assert isinstance(await stopping, Done)
        await asyncio.wait(starting)
        assert (shop.begins, shop.ends, opened) == (1, 1, [])
        assert shop.failures == 0

    run(main())


def test_an_end_that_was_cancelled_is_come_to_when_it_is_stopped_again() -> None:
    async def main() -> None:
        ending = asyncio.Event()

        async def end() -> None:
            ending.set()
            await (asyncio.sleep(0) if shop.ends > 1 else forever())

        shop = Shop(end=end)
        await shop.start()
        task = shop.work.spawn(forever(), "waiting")
        stopping = asyncio.create_task(shop.stop())
        await ending.wait()
        for each in asyncio.all_tasks() - {asyncio.current_task(), stopping}:
            if "_stop" in repr(each.get_coro()):
                each.cancel()
        assert isinstance(await stopping, Failed)
        assert isinstance(await shop.stop(), Done)
        assert task.has_ended
        assert shop.ends == 2
        async with shop:
            assert shop.work.is_running

    run(main())


def test_an_end_that_raises_is_noted_and_the_tasks_end_all_the_same() -> None:
    async def main() -> None:
        shop = Shop(end=lambda: raises(Trouble("the door sticks")))
        await shop.start()
        task = shop.work.spawn(forever(), "other")
        await asyncio.sleep(0)
        assert isinstance(await shop.stop(), Done)
        assert task.has_ended
        assert isinstance(shop.last_error, Trouble)

    run(main())


def test_stopping_from_a_task_a_call_or_an_observer_is_busy_and_stops_all_the_same() -> None:
    class Stopping(Observer):
        def event(self, name: str, fields: object) -> None:
            told.append(shop.is_mine)
            tasks.append(asyncio.get_running_loop().create_task(shop.stop()))

    told: list[object] = []
    tasks: list[asyncio.Task[Any]] = []
    shop = Shop(observer=Stopping())

    async def stops() -> None:
        assert await shop.work.call(lambda: shop.is_mine)
        try:
            await shop.stop()
        except Busy as error:
            told.append(str(error))
            raise

    async def main() -> None:
        await shop.start()
        assert not shop.is_mine
        task = shop.work.spawn(stops(), "stopping itself")
        await task.wait()
        assert isinstance(await shop.stop(), Done)
        with pytest.raises(Busy):
            await tasks[0]
        assert "from within" in str(told[0])
        assert told[1] is True

    run(main())


def test_a_task_that_does_not_listen_is_named() -> None:
    async def main() -> None:
        released = asyncio.Event()

        async def deaf() -> None:
            while not released.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await released.wait()

        shop = Shop()
        await shop.start()
        shop.work.spawn(deaf(), "the deaf one")
        await asyncio.sleep(0)
        outcome = await shop.stop(wait_seconds=0.01)
        assert isinstance(outcome, Failed)
        assert "the deaf one still runs" in str(outcome.error)
        released.set()
        assert isinstance(await shop.stop(), Done)

    run(main())


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_what_ends_a_process_is_kept_and_ends_the_loop(error: BaseException) -> None:
    shop = Shop()

    async def main() -> None:
        async with shop:
            shop.work.spawn(raises(error), "ending")
            await forever()

    with pytest.raises(type(error)):
        asyncio.run(main())
    assert shop.last_error is error
    gc.collect()


def test_timers_and_what_is_handed_in_run_in_the_loop_and_their_errors_are_noted() -> None:
    async def main() -> None:
        seen: list[tuple[str, str]] = []
        enough = asyncio.Event()

        def note(what: str) -> None:
            seen.append((what, threading.current_thread().name))
            if len(seen) == 3:
                enough.set()
            assert shop.is_mine
            if what == "timer":
                raise Trouble("oops")

        shop = Shop()
        with pytest.raises(Closed):
            shop.work.hand_in(lambda: note("early"), "early")
        with pytest.raises(Closed):
            shop.work.later(0.0, lambda: note("early"), "early")
        async with shop:
            shop.work.hand_in(lambda: note("here"), "here")
            assert seen == [("here", threading.current_thread().name)]
            shop.work.later(-1.0, lambda: note("timer"), "timer")
            shop.work.later(1e6, lambda: note("never"), "never").cancel()
            await asyncio.to_thread(shop.work.hand_in, lambda: note("there"), "there")
            await enough.wait()
            shop.work.later(0.0, lambda: note("late"), "late")
            assert shop.failures == 1
        await asyncio.sleep(0)
        assert sorted(each for each, _ in seen) == ["here", "there", "timer"]
        assert len({thread for _, thread in seen}) == 1

    run(main())


def test_what_was_to_come_later_does_not_come_after_a_later_start() -> None:
    async def main() -> None:
        shop = Shop()
        told: list[str] = []
        ended = asyncio.Event()
        await shop.start()
        shop.work.later(0.01, lambda: told.append("timer"), "timer")
        await shop.stop()
        await shop.start()
        shop.work.later(0.02, ended.set, "the end")
        await ended.wait()
        assert told == []
        await shop.stop()

    asyncio.run(main())


def test_run_pending_answers_what_it_raises() -> None:
    class Failing(Shop):
        async def _pending(self) -> Sequence[Outcome[Any]]:
            raise Trouble("oops")

    async def main() -> None:
        shop = Failing()
        (outcome,) = await shop.run_pending()
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, TaskFailed)
        assert isinstance(shop.last_error, Trouble)

    run(main())


def test_another_loop_is_refused_while_the_first_one_lives_and_taken_when_it_is_gone() -> None:
    shop = Shop()
    first = asyncio.new_event_loop()
    first.run_until_complete(shop.start())

    async def main() -> None:
        with pytest.raises(InvalidInput, match="another event loop"):
            await shop.start()
        with pytest.raises(InvalidInput, match="another event loop"):
            await shop.stop()

    run(main())
    first.close()
    with pytest.raises(Closed, match="was closed"):
        shop.work.hand_in(print, "late")

    async def again() -> None:
        await shop.start()
        assert isinstance(await shop.stop(), Done)

    run(again())
    assert shop.begins == 2


@pytest.mark.parametrize("threads", [0, -1, 1.5, None])
def test_wrong_arguments_are_refused(threads: Any) -> None:
    with pytest.raises(InvalidInput, match="at least 1"):
        AsyncWork("the shop", event="x", threads=threads)
    with pytest.raises(InvalidInput, match="no time to wait"):
        run(Shop().stop(wait_seconds="soon"))  # type: ignore[arg-type]
