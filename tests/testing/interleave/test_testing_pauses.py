# SPDX-License-Identifier: Apache-2.0
"""An owner that stands still while another takes over, and two writers: planted mistakes are found."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from compactlib.errors import InvalidInput
from compactlib.files import Files, write_durably
from compactlib.kv import Condition, Delete, KVStore, MemoryStore, PredicateFailed, Put
from compactlib.testing import explore_pauses
from compactlib.testing.interleave import Stage, SteppedStore
from compactlib.testing.interleave.failure import InterleavingFailed
from compactlib.testing.interleave.pauses import SteppedFiles

P = b"p"


def world(stage: Stage) -> SteppedStore:
    store = SteppedStore(MemoryStore(), stage)
    store.set(P, b"head", b"0")
    return store


def take_over(store: KVStore, name: bytes, *, fenced: bool) -> str:
    """Become the owner, write an entry, and remove those of former owners."""
    head = store.get(P, b"head")
    epoch = int(head.value) + 1
    try:
        store.set_if(P, b"head", b"%d" % epoch, head.predicate)
        mine = b"entry/%d" % epoch
        store.transact([Condition(P, b"head", store.get(P, b"head").predicate)], [Put(P, mine, name)])
        for entry in list(store.scan(P, prefix=b"entry/")):
            # The fenced one removes only what lies below its own epoch; the other one whatever is not its own.
            if int(entry.key[6:]) < epoch if fenced else entry.key != mine:
                store.transact((), (), [Delete(P, entry.key)])
    except PredicateFailed:
        return "lost"
    return "acknowledged"


def the_newest_is_there(store: KVStore, results: Mapping[str, Any]) -> None:
    epoch = int(store.get(P, b"head").value)
    if results["heir"] == "acknowledged":
        assert store.get(P, b"entry/%d" % epoch).value in (b"owner", b"heir")


@pytest.mark.parametrize("both", [False, True])
def test_a_former_owner_that_deletes_too_much_is_found(both: bool) -> None:
    def actors(*, fenced: bool) -> dict[str, Any]:
        return {name: lambda store, name=name: take_over(store, name.encode(), fenced=fenced)
                for name in ("owner", "heir")}

    report = explore_pauses(actors(fenced=True), world, the_newest_is_there, both=both)
    assert report.complete
    assert report.schedules > (30 if both else 6)
    with pytest.raises(InterleavingFailed):
        explore_pauses(actors(fenced=False), world, the_newest_is_there, both=both)


def test_every_step_of_the_first_is_a_pause() -> None:
    seen: set[tuple[str, ...]] = set()

    def check(store: tuple[Stage, KVStore], results: Mapping[str, Any]) -> None:
        seen.add(tuple(step.actor for step in store[0].steps))

    def three(store: tuple[Stage, KVStore]) -> None:
        for number in range(3):
            store[1].set(P, b"%d" % number, b"")

    def make(stage: Stage) -> tuple[Stage, KVStore]:
        return stage, SteppedStore(MemoryStore(), stage)

    explore_pauses({"a": three, "b": three}, make, check)
    assert seen == {("a",) * count + ("b",) * 3 + ("a",) * (3 - count) for count in range(4)}
    seen.clear()
    report = explore_pauses({"a": three, "b": three}, make, check, both=True, max_schedules=5)
    assert not report.complete
    assert report.schedules == 7


def test_two_writers_of_one_file_are_found(tmp_path: Path) -> None:
    numbers = iter(range(1000))

    def make(stage: Stage) -> tuple[Path, Files]:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        return folder, SteppedFiles(None, stage)

    def one_name(place: tuple[Path, Files], data: bytes) -> None:
        write_durably(place[1], place[0] / "value", [data])

    def own_name(place: tuple[Path, Files], data: bytes) -> None:
        write_durably(place[1], place[0] / "value", [data], temporary_suffix=f".{data[:1].decode()}")

    def check(place: tuple[Path, Files], results: Mapping[str, Any]) -> None:
        assert (place[0] / "value").read_bytes() in (b"a" * 10, b"b" * 10)
        assert not any(isinstance(result, Exception) for result in results.values())

    def writers(write: Any) -> dict[str, Any]:
        return {"left": lambda place: write(place, b"a" * 10), "right": lambda place: write(place, b"b" * 10)}

    assert explore_pauses(writers(own_name), make, check, both=True).schedules > 20
    with pytest.raises(InterleavingFailed):
        explore_pauses(writers(one_name), make, check, both=True)


def test_two_actors_are_asked_for() -> None:
    with pytest.raises(InvalidInput, match="the actors are one; give two"):
        explore_pauses({"one": lambda store: None}, world, lambda store, results: None)
