# SPDX-License-Identifier: Apache-2.0
"""The block queue: cases with known answers, and what is ours."""

from __future__ import annotations

import random

import pytest

from compactlib.errors import InvalidInput
from compactlib.scheduler import LevelConfig, SchedulerConfig
from compactlib.scheduler.model.values import BlockEntry
from compactlib.scheduler.queue.block_queue import BlockQueue, Pushed
from tests.scheduler.build import CFG3, at_once, batches, flushed_ids, levels, planned, push, queue_of

KEY = ("t", 1, 0)
A, B = ("A", 1, 0), ("B", 2, 0)


def test_a_full_batch_is_flushed_and_holes_stay_in_place() -> None:
    queue = queue_of(at_once(levels=levels((3, 0))))
    push(queue, KEY, 1, 2, 3)
    assert (batches(queue), queue.staged(KEY)) == ([["1", "2", "3"]], ())
    push(queue, KEY, 4, 5)
    assert queue.staged(KEY) == ("4", "5")
    assert queue.remove(KEY, "1")
    assert queue.remove(KEY, "2")
    assert batches(queue) == [["-", "-", "3"]]
    assert queue.remove(KEY, "3")
    assert batches(queue) == []
    push(queue, KEY, 6)
    assert batches(queue) == [["4", "5", "6"]]
    push(queue, KEY, 7)
    assert queue.staged(KEY) == ("7",)


def test_a_duplicate_is_rejected() -> None:
    queue = queue_of()
    assert push(queue, KEY, 1, 1) == [Pushed.QUEUED, Pushed.DUPLICATE]
    assert (queue.staged(KEY), queue.rejected) == (("1",), 1)


def test_the_same_id_under_another_key_is_another_block() -> None:
    queue = queue_of()
    assert push(queue, A, 1) + push(queue, B, 1) == [Pushed.QUEUED, Pushed.QUEUED]


def test_removing_staged_and_unknown_blocks() -> None:
    queue = queue_of()
    push(queue, KEY, 1, 2)
    assert queue.remove(KEY, "1")
    assert queue.remove(KEY, "2")
    queue.audit()
    assert batches(queue) == []
    assert queue.stats()[0]["keys"] == 0
    assert not queue.remove(KEY, "unknown")
    assert not queue.remove(("other", 9, 1), "1")
    assert not queue.remove(("other", 9, 7), "1")
    assert queue.missed == 3
    push(queue, KEY, 1, 2, 3)
    assert batches(queue) == [["1", "2", "3"]]


def test_batches_stay_linked_whatever_is_removed() -> None:
    queue = queue_of(at_once(levels=levels((2, 0))))
    push(queue, KEY, *range(1, 7))
    assert batches(queue) == [["1", "2"], ["3", "4"], ["5", "6"]]
    for _ in range(3):
        assert flushed_ids(queue) == ["1", "2", "3", "4", "5", "6"]
    push(queue, KEY, 7)
    queue.remove(KEY, "7")
    assert batches(queue) == [["1", "2"], ["3", "4"], ["5", "6"]]
    for block_id in ("3", "2", "4", "1", "6", "5"):
        assert queue.remove(KEY, block_id)
        queue.audit()
    assert (batches(queue), len(queue)) == ([], 0)


def test_emptying_many_keys_in_any_order() -> None:
    queue, rng = queue_of(), random.Random(5)
    keys = [(f"t{number}", number, 0) for number in range(50)]
    for key in keys:
        push(queue, key, *range(100))
    for key in keys:
        order = [str(number) for number in range(100)]
        rng.shuffle(order)
        for block_id in order:
            assert queue.remove(key, block_id)
        queue.audit()
    assert queue.stats() == [{"level": number, "blocks": 0, "keys": 0, "batches": 0} for number in range(3)]


def test_batches_of_two_keys_in_the_order_of_arrival() -> None:
    queue = queue_of()
    for number in range(20):
        push(queue, B if number % 2 else A, number)
    assert batches(queue) == [["0", "2", "4"], ["1", "3", "5"], ["6", "8", "10"], ["7", "9", "11"],
                              ["12", "14", "16"], ["13", "15", "17"]]
    assert (queue.staged(A), queue.staged(B)) == (("18",), ("19",))


def test_age_flushes_the_key_that_is_quiet_longest() -> None:
    queue = queue_of(at_once(levels=levels((3, 1), (5, 1))))
    for key, block_id, at in [(("A", 1, 1), 1, 5), (("A", 1, 1), 2, 15), (("A", 0, 1), 3, 30), (("A", 0, 1), 4, 35),
                              (("B", 0, 1), 5, 40)]:
        push(queue, key, block_id, at=at)
    assert flushed_ids(queue, 1) == ["1", "2", "3", "4"]
    assert queue.staged(("B", 0, 1)) == ("5",)
    keys = []
    for key, gone in [(("B", 0, 1), "5"), (("A", 0, 1), "4"), (("A", 0, 1), "3"), (("A", 1, 1), "1"),
                      (("A", 1, 1), "2")]:
        queue.remove(key, gone)
        queue.audit()
        keys.append(queue.stats()[1]["keys"])
    assert keys == [2, 2, 1, 1, 0]


def test_age_is_strict() -> None:
    queue = queue_of(at_once(levels=levels((5, 5))))
    push(queue, ("A", 1, 0), 1, at=10)
    push(queue, ("B", 0, 0), 2, at=15)
    assert batches(queue) == []
    push(queue, ("B", 0, 0), 3, at=16)
    assert batches(queue) == [["1"]]


def test_what_the_queue_counts() -> None:
    queue = queue_of()
    push(queue, ("A", 0, 0), 1, 2, 3)
    push(queue, ("A", 1, 0), 4)
    push(queue, ("B", 0, 1), 5, 6, 7)
    total = {name: sum(row[name] for row in queue.stats()) for name in ("blocks", "keys", "batches")}
    assert total == {"blocks": 7, "keys": 3, "batches": 2}


def test_a_level_that_is_not_compacted_is_accepted_and_does_nothing() -> None:
    queue = queue_of()
    assert push(queue, ("A", 0, 3), 1) == [Pushed.TERMINAL]
    assert len(queue) == 0


# -------------------------------------------------------------------------------------------------------------- ours


def test_a_tick_flushes_what_is_old_without_another_push() -> None:
    queue = queue_of(SchedulerConfig(levels=levels((5, 5), (5, 9))))
    push(queue, ("A", 1, 0), 1, at=10)
    push(queue, ("A", 1, 1), 2, at=10)
    assert queue.tick(15) == 0
    assert queue.tick(15.5) == 1
    # Later plans find it without looking at ages again.
    assert (len(queue.levels[0].waiting), len(queue.levels[0].arrival)) == (0, 1)
    assert (batches(queue), batches(queue, 1)) == ([["1"]], [])
    assert queue.tick(15.5) == 0
    assert queue.tick(100) == 1


def test_a_look_at_ages_goes_by_them_and_touches_no_younger_key() -> None:
    queue = queue_of(SchedulerConfig(levels=levels((5, 5))))
    for number, at in ((1, 10), (2, 11), (3, 12), (4, 13)):
        push(queue, ("A", number, 0), number, at=at)
    push(queue, ("A", 1, 0), 5, at=14)                         # the batch is as old as its first block
    assert [queue.has_old(at) for at in (15, 15.5)] == [False, True]
    for removed in ("2", "4"):
        assert queue.remove(("A", int(removed), 0), removed)
    queue.audit()
    assert queue.tick(16.5) == 1
    assert batches(queue) == [["1", "5"]]
    assert [queue.has_old(at) for at in (17, 17.5)] == [False, True]
    queue.cut(9.0)
    queue.audit()
    assert queue.has_old(14.5)
    again = queue_of(SchedulerConfig(levels=levels((5, 5))))
    for row in queue.dump():
        again.load(row)
    again.audit()
    assert (queue.tick(15), again.tick(15)) == (1, 1)
    assert list(queue.dump()) == list(again.dump())


def test_a_key_waits_as_its_oldest_batch_does() -> None:
    queue = queue_of(SchedulerConfig(levels=levels((5, 100))))
    push(queue, ("A", 1, 0), 1, at=10)
    queue.tick(111)
    push(queue, ("A", 1, 0), 2, at=200)
    queue.tick(301)
    assert [batch.created_at for batch in queue.batches(0)] == [10, 200]
    push(queue, ("A", 1, 0), 3, at=302)
    queue.remove(("A", 1, 0), "1")
    queue.audit()
    assert list(queue.levels[0].waiting) == [(200, 2)]


def test_bytes_flush_a_batch() -> None:
    queue = BlockQueue((LevelConfig(max_blocks=9, max_job_bytes=100),))
    for number, size in enumerate((60, 39, 1, 500)):
        queue.push(BlockEntry(index=1, appended_at=0, id=str(number), tenant="A", shard=1, level=0, size_bytes=size))
        queue.audit()
    assert batches(queue) == [["0", "1", "2"], ["3"]]


@pytest.mark.parametrize("changes", [
    {"id": ""}, {"id": "a\nb"}, {"id": "x" * 257}, {"tenant": "\x00"}, {"shard": -1}, {"level": -1}, {"size_bytes": -1},
])
def test_a_block_that_is_none_is_refused(changes: dict[str, object]) -> None:
    fields = {"index": 1, "appended_at": 0.0, "id": "a", "tenant": "t", "shard": 1, "level": 0, **changes}
    with pytest.raises(InvalidInput):
        BlockEntry(**fields)  # type: ignore[arg-type]


def test_the_stored_form_gives_the_same_queue() -> None:
    rng = random.Random(7)
    queue = queue_of(SchedulerConfig(levels=levels((3, 5), (2, 5))))
    for number in range(300):
        key = (rng.choice("AB"), rng.randrange(3), rng.randrange(2))
        push(queue, key, number, at=number / 3)
        if rng.random() < 0.3:
            queue.remove(key, str(rng.randrange(number + 1)))
        queue.audit()
    again = queue_of(SchedulerConfig(levels=levels((3, 5), (2, 5))))
    for row in queue.dump():
        again.load(row)
    again.audit()
    assert list(again.dump()) == list(queue.dump())
    assert planned(again, now=90.0) == planned(queue, now=90.0)


def test_levels_that_are_configured_no_more_are_left_out_of_what_is_loaded() -> None:
    queue = queue_of()
    push(queue, ("A", 1, 0), 1, 2, 3)
    push(queue, ("A", 1, 2), 4, 5, 6)
    again = BlockQueue(CFG3.levels[:2])
    for row in queue.dump():
        again.load(row)
    again.audit()
    assert len(again) == 3


def test_many_dead_batches_in_the_middle_do_not_pile_up() -> None:
    queue = queue_of()
    push(queue, KEY, *range(3000))
    for number in range(3, 2997):
        queue.remove(KEY, str(number))
    queue.audit()
    assert len(queue.levels[0].groups[KEY].flushed) < 30
    assert planned(queue) == [(planned(queue)[0][0], ["0", "1", "2"]), (planned(queue)[1][0], ["2997", "2998", "2999"])]


def test_a_key_whose_flushed_and_staged_blocks_are_taken_out_together_is_forgotten_whole() -> None:
    queue = queue_of(SchedulerConfig(levels=(LevelConfig(max_blocks=2),)))
    push(queue, KEY, "a", "b", "c")
    queue.remove_all(KEY, ("a",))
    queue.remove_all(KEY, ("b", "c"))
    queue.audit()
    assert not queue.has_flushed()
    assert len(queue) == 0
