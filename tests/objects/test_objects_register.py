# SPDX-License-Identifier: Apache-2.0
"""Compare-and-set over an object store: one of several writers succeeds, also if requests and answers are lost."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import CorruptData, Stale, StorageError, Unsupported
from compactlib.objects import BadKey, LocalObjects, MemoryObjects, ObjectStore, ObjectStoreFailed
from compactlib.objects.errors import AccessDenied
from compactlib.objects.register import ObjectRegister, Version
from tests.harness.failing_files import FailingFiles
from tests.harness.objects.unsure_objects import UnsureObjects


def register(store: ObjectStore, **given: Any) -> ObjectRegister:
    return ObjectRegister(store, "value", clock=ManualClock(0.0), **given)


def values(store: ObjectStore) -> list[bytes]:
    """Return the values of all stored versions, the newest first."""
    here = register(store)
    return [here._at(here._number(info.key)).value for info in store.list("value/")]  # noqa: SLF001


def test_a_value_is_replaced_by_a_writer_that_read_the_last_one() -> None:
    store = MemoryObjects()
    here = register(store)
    assert here.read() is None
    first = here.replace(b"one", None)
    second = here.replace(b"two", first)
    assert (first.number, second.number, second.follows) == (1, 2, first.id)
    assert here.read() == second
    for seen in (None, first):
        with pytest.raises(Stale, match="begin anew"):
            here.replace(b"late", seen)
    assert here.read() == second
    assert values(store) == [b"two", b"one"]


@pytest.mark.parametrize("make", [lambda folder: MemoryObjects(), LocalObjects])
def test_of_many_threads_each_step_has_one_winner(make: Any, tmp_path: Path) -> None:
    store = make(tmp_path)
    won: list[Version] = []

    def race() -> None:
        here = ObjectRegister(store, "value")
        for _ in range(5):
            while True:
                seen = here.read()
                try:
                    won.append(here.replace(b"%d" % (1 + int(seen.value if seen else b"0")), seen))
                    break
                except Stale:
                    continue

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(version.number for version in won) == list(range(1, 21))
    newest = register(store).read()
    assert newest is not None
    assert newest.value == b"20"


@pytest.mark.parametrize("carried_out", [False, True])
@pytest.mark.parametrize("fail_at", [1, 2, 3, 4])
def test_a_lost_answer_is_resolved_by_a_read(fail_at: int, carried_out: bool) -> None:
    """At each request; a request refused before the write has changed nothing."""
    store = UnsureObjects()
    first = register(store).replace(b"one", None)
    store.arm(fail_at, carried_out=carried_out)
    if fail_at == 1:
        with pytest.raises(ObjectStoreFailed, match="value"):
            register(store).replace(b"two", first)
        assert register(store).read() == first
        return
    second = register(store).replace(b"two", first)
    assert store.requests > fail_at
    assert register(store).read() == second


@pytest.mark.parametrize("carried_out", [False, True])
@pytest.mark.parametrize("fail_at", [2, 3, 4])
def test_a_store_that_stays_away_leaves_the_outcome_unknown(fail_at: int, carried_out: bool) -> None:
    store = UnsureObjects()
    first = register(store).replace(b"one", None)
    store.arm(fail_at, carried_out=carried_out, stays_away=True)
    with pytest.raises(ObjectStoreFailed) as unknown:
        register(store).replace(b"two", first)
    assert unknown.value.operation == "create"
    store.arm(0)
    seen = register(store).read()
    assert seen is not None
    assert seen.value == (b"one" if fail_at == 2 and not carried_out else b"two")
    # In each case the next write continues from the version read.
    assert register(store).replace(b"three", seen).number == seen.number + 1


@pytest.mark.parametrize("before", [1, 2, 3, 4])
def test_of_two_at_any_step_one_wins(before: int) -> None:
    store = UnsureObjects()
    first = register(store).replace(b"one", None)
    other: list[Version | Stale] = []

    def meanwhile(number: int) -> None:
        if number == before:
            store.meanwhile = lambda number: None
            try:
                other.append(register(store).replace(b"other", first))
            except Stale as error:
                other.append(error)

    store.arm(0)
    store.meanwhile = meanwhile
    try:
        ours: Version | Stale = register(store).replace(b"ours", first)
    except Stale as error:
        ours = error
    (theirs,) = other
    winners = [each for each in (ours, theirs) if isinstance(each, Version)]
    assert len(winners) == 1
    assert register(store).read() == winners[0]


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_writer_paused_before_the_answer_learns_its_fate(steps: int) -> None:
    """Between the write and the read others write further versions; it has succeeded."""
    store = UnsureObjects()
    first = register(store).replace(b"one", None)

    def meanwhile(number: int) -> None:
        if number == 3:
            store.meanwhile = lambda number: None
            for step in range(steps):
                register(store).replace(b"later %d" % step, register(store).read())

    store.arm(0)
    store.meanwhile = meanwhile
    assert register(store).replace(b"ours", first).number == 2
    assert values(store)[-2:] == [b"ours", b"one"]


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_writer_paused_before_the_write_is_stale(forgotten: bool) -> None:
    """Also if the name was forgotten in the meantime, and is free again."""
    clock = ManualClock(0.0)
    store = UnsureObjects(clock=clock)
    first = register(store).replace(b"one", None)

    def meanwhile(number: int) -> None:
        if number == 2:
            store.meanwhile = lambda number: None
            for step in range(4):
                register(store).replace(b"later %d" % step, register(store).read())
                clock.advance(100.0)
            if forgotten:
                register(store).forget(now=clock.now(), older_than_seconds=150.0)
                assert len(values(store)) < 5

    store.arm(0)
    store.meanwhile = meanwhile
    with pytest.raises((Stale, ObjectStoreFailed)):
        register(store).replace(b"ours", first)
    newest = register(store).read()
    assert newest is not None
    assert newest.value == b"later 3"


def test_versions_are_forgotten_by_the_age_of_their_successors() -> None:
    clock = ManualClock(1000.0)
    store = MemoryObjects(clock=clock)
    here = register(store)
    for number in range(6):
        here.replace(b"%d" % number, here.read())
        clock.advance(10.0)
    assert here.forget(now=clock.now(), older_than_seconds=25.0) == 3
    assert values(store) == [b"5", b"4", b"3"]
    assert here.forget(now=1e9, older_than_seconds=1.0) == 1
    assert values(store) == [b"5", b"4"]


def test_a_refused_permission_causes_no_further_read() -> None:
    class Refusing(MemoryObjects):
        def create(self, key: str, data: bytes | memoryview) -> Any:
            raise AccessDenied(operation="create", key=key, detail="told")

    with pytest.raises(AccessDenied):
        register(Refusing()).replace(b"one", None)


def test_a_refused_write_leaves_no_version_of_unknown_outcome(tmp_path: Path) -> None:
    """At each step: a version is returned, or is absent; a link before its sync counts as present."""

    def replaced(name: str, fail_at: int | None) -> tuple[FailingFiles, ObjectRegister, Version | None]:
        here = register(LocalObjects(tmp_path / name))
        first = here.replace(b"one", None)
        files = FailingFiles(fail_at=fail_at)
        mine = register(LocalObjects(tmp_path / name, files=files))
        try:
            return files, here, mine.replace(b"two", first)
        except StorageError:
            assert here.read() == first
            return files, here, None

    counted, here, _ = replaced("counted", None)
    opened = FailingFiles()
    LocalObjects(tmp_path / "counted", files=opened).close()
    told = []
    for number in range(opened.count + 1, counted.count + 1):
        _, here, version = replaced(str(number), number)
        told.append(version is not None)
        if version is not None:
            assert here.read() == version
    assert {True, False} == set(told)


def test_an_invalid_name_is_refused() -> None:
    with pytest.raises(BadKey):
        ObjectRegister(MemoryObjects(), "../up")


# -------------------------------------------------------------------------------------------------------- the format


PAGE = Path(__file__).parents[2] / "docs" / "formats" / "objects-register.md"
GOLDEN = Path(__file__).parents[1] / "promises" / "golden" / "objects" / "register-v1.bin"
KEY = f"value/{10 ** 20 - 1 - 7:020}"


def test_the_golden_version_is_read_and_written(monkeypatch: pytest.MonkeyPatch) -> None:
    data = GOLDEN.read_bytes()
    store = MemoryObjects()
    store.create(KEY, data)
    assert register(store).read() == Version(7, b"i" * 16, b"f" * 16, b"value")
    again = MemoryObjects()
    monkeypatch.setattr("os.urandom", lambda count: b"i" * count)
    register(again).replace(b"value", Version(6, b"f" * 16, b"e" * 16, b"before"))
    assert again.get(KEY) == data


def test_the_page_shows_the_golden_version() -> None:
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert bytes.fromhex(shown) == GOLDEN.read_bytes()


def test_every_flipped_bit_and_every_prefix_is_damage() -> None:
    data = GOLDEN.read_bytes()
    damaged = [data[:end] for end in range(len(data))]
    damaged += [data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1:] for at in range(len(data)) for bit in range(8)]
    for each in damaged:
        store = MemoryObjects()
        store.create(KEY, each)
        with pytest.raises((CorruptData, Unsupported)):
            register(store).read()


def test_a_version_under_another_name_is_damage() -> None:
    store = MemoryObjects()
    store.create(KEY.replace("92", "91"), GOLDEN.read_bytes())
    with pytest.raises(CorruptData, match="version 7"):
        register(store).read()
    foreign = MemoryObjects()
    foreign.create("value/README", b"")
    with pytest.raises(CorruptData, match="foreign"):
        register(foreign).read()
