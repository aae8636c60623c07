# SPDX-License-Identifier: Apache-2.0
"""Typical mistakes of hosts in object stores, fences and range formats: each is found, and told as a lesson."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from compactlib.errors import CorruptData, InvalidInput
from compactlib.objects import MemoryObjects, ObjectExists, ObjectInfo, ObjectRef, ObjectStore
from compactlib.scheduler import MemoryFence
from compactlib.scheduler.fences.fence import Admission, Fence
from compactlib.staging import PlainFormat, Record
from compactlib.staging.committed.formats.plain_format import PlainRows
from compactlib.staging.committed.formats.rows import RangeFormat, Rows
from compactlib.staging.model.values import RangeId
from compactlib.testing import PromiseBroken, check_fence, check_object_store, check_range_format
from compactlib.testing.promises import ConformanceKit, Mismatch, expect, run_kit, same
from tests.harness.lessons import check_lesson

# ---------------------------------------------------------------------------------------------------- object stores


class Overwrites(MemoryObjects):
    def create(self, key: str, data: bytes | memoryview) -> ObjectRef:
        try:
            return super().create(key, data)
        except ObjectExists:
            self.delete(key)
            return super().create(key, data)


class SameContentIsFine(MemoryObjects):
    """Takes a second creation of equal content for a repetition."""

    def create(self, key: str, data: bytes | memoryview) -> ObjectRef:
        try:
            return super().create(key, data)
        except ObjectExists:
            if self.get(key) != bytes(data):
                raise
            self.delete(key)
            return super().create(key, data)


class FolderByFolder(MemoryObjects):
    """Lists as a walk over folders would."""

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ObjectInfo]:
        return iter(sorted(super().list(prefix, after=after), key=lambda info: info.key.split("/")))


class IncludesAfter(MemoryObjects):
    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ObjectInfo]:
        same_key = [info for info in super().list(prefix) if info.key == after]
        return iter([*same_key, *super().list(prefix, after=after)])


class EmptyIsAbsent(MemoryObjects):
    def create(self, key: str, data: bytes | memoryview) -> ObjectRef:
        ref = super().create(key, data)
        if not data:
            self.delete(key)
        return ref


class RefusesLongRanges(MemoryObjects):
    def get_range(self, key: str, start: int, length: int) -> bytes:
        if start + length > self.info(key).size_bytes:
            raise InvalidInput("beyond the end")
        return super().get_range(key, start, length)


class CountsFromTheEnd(MemoryObjects):
    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.get(key)[start:start + length]


class TakesAnyKey(MemoryObjects):
    def _check(self, key: str) -> None:
        self._require_open()


class OwesRoom(MemoryObjects):
    def available_bytes(self) -> int | None:
        return -1


@pytest.mark.parametrize(("store", "test"), [
    (OwesRoom, "room_is_a_number_of_bytes_or_unknown"),
    (Overwrites, "what_is_there_is_never_overwritten"),
    (SameContentIsFine, "what_is_there_is_never_overwritten"),
    (FolderByFolder, "listings_ascend_and_begin_where_they_are_asked_to"),
    (IncludesAfter, "listings_ascend_and_begin_where_they_are_asked_to"),
    (EmptyIsAbsent, "an_empty_object_is_an_object"),
    (RefusesLongRanges, "what_was_created_is_read_back_whole_and_in_ranges"),
    (CountsFromTheEnd, "ranges_are_of_any_size_and_negative_ones_are_refused"),
    (TakesAnyKey, "keys_that_not_every_store_can_hold_are_refused"),
])
def test_a_broken_object_store_is_told_what_is_wrong(store: type[MemoryObjects], test: str, tmp_path: Path) -> None:
    def make(folder: Path) -> ObjectStore:
        return store()

    with pytest.raises(PromiseBroken) as caught:
        check_object_store(make, tmp_path)
    if store not in (Overwrites, SameContentIsFine):
        check_lesson(caught.value, f"test_{test}")


# ----------------------------------------------------------------------------------------------------------- fences


class ForgetsTheHighest(MemoryFence):
    """Admits whatever comes."""

    def admit(self, resource: str, token: int) -> Admission:
        self._records.pop(resource, None)
        return super().admit(resource, token)


class CommitsLate(MemoryFence):
    """Looks at the token when a worker comes, and not again when it commits."""

    def commit(self, resource: str, token: int, value: bytes) -> Admission:
        record = self._records.get(resource)
        if record is not None and record.token > token:
            return record
        return super().commit(resource, token, value)


class ForgetsWhatWasDone(MemoryFence):
    def admit(self, resource: str, token: int) -> Admission:
        record = super().admit(resource, token)
        if record.committed is not None and record.committed.token < token:
            self._records[resource] = record = Admission(resource, token, None)
        return record


class CommitsTwice(MemoryFence):
    """The last one wins."""

    def commit(self, resource: str, token: int, value: bytes) -> Admission:
        record = self._records.get(resource)
        if record is not None and record.token == token:
            self._records[resource] = Admission(resource, token, None)
        return super().commit(resource, token, value)


class CommitsWithoutAdmission(MemoryFence):
    def commit(self, resource: str, token: int, value: bytes) -> Admission:
        self.admit(resource, token)
        return super().commit(resource, token, value)


class FloorForOldOnes(MemoryFence):
    """Drops records below the floor, and forgets the floor."""

    def raise_floor(self, token: int) -> int:
        dropped = super().raise_floor(token)
        self._floor = 0
        return dropped


@pytest.mark.parametrize(("fence", "test"), [
    (ForgetsTheHighest, "tokens_ascend"),
    (CommitsLate, "a_late_worker_cannot_commit"),
    (ForgetsWhatWasDone, "who_comes_later_sees_what_was_committed"),
    (CommitsTwice, "a_commit_may_be_repeated_but_not_changed"),
    (CommitsWithoutAdmission, "a_commit_needs_an_admission"),
    (FloorForOldOnes, "below_the_floor_nothing_is_admitted_and_nothing_kept"),
])
def test_a_broken_fence_is_told_what_is_wrong(fence: type[MemoryFence], test: str, tmp_path: Path) -> None:
    def make(folder: Path) -> Fence:
        return fence()

    with pytest.raises(PromiseBroken) as caught:
        check_fence(make, tmp_path)
    check_lesson(caught.value, f"test_{test}")


# ---------------------------------------------------------------------------------------------------- range formats


class LosesTheLastRow(PlainFormat):
    def rows(self, pairs: Iterable[tuple[bytes, Record]]) -> PlainRows:
        return super().rows(list(pairs)[:-1])


class TrustsTheFile(PlainFormat):
    """Does not look at the checksum."""

    def decode(self, data: bytes, range_id: RangeId, path: str) -> Rows:
        try:
            return super().decode(data, range_id, path)
        except CorruptData:
            return self.empty


class LetsTheParserFall(PlainFormat):
    def decode(self, data: bytes, range_id: RangeId, path: str) -> Rows:
        try:
            return super().decode(data, range_id, path)
        except CorruptData as error:
            raise IndexError("list index out of range") from error


class NamesNoPath(PlainFormat):
    def decode(self, data: bytes, range_id: RangeId, path: str) -> Rows:
        return super().decode(data, range_id, "")


class EncodesItsOwnAlone(PlainFormat):
    def encode(self, rows: Rows, range_id: RangeId) -> bytes:
        return super().encode(rows, range_id)[:-1]


class RecognizesNothing(PlainFormat):
    def recognizes(self, data: bytes) -> bool:
        return False


@pytest.mark.parametrize(("range_format", "test"), [
    (LosesTheLastRow, "rows_say_what_they_hold"),
    (TrustsTheFile, "a_file_of_another_range_is_found_out"),
    (LetsTheParserFall, "a_file_of_another_range_is_found_out"),
    (NamesNoPath, "a_file_of_another_range_is_found_out"),
    (EncodesItsOwnAlone, "a_file_gives_back_its_rows"),
    (RecognizesNothing, "a_file_gives_back_its_rows"),
])
def test_a_broken_range_format_is_told_what_is_wrong(range_format: type[PlainFormat], test: str) -> None:
    made: RangeFormat = range_format()
    with pytest.raises(PromiseBroken) as caught:
        check_range_format(made)
    check_lesson(caught.value, f"test_{test}")


# ------------------------------------------------------------------------------------------------ how they are told


class Kit(ConformanceKit):
    """Three tests, for the tests of the lessons themselves."""

    def test_numbers(self, found: int) -> None:
        """Seven is seven.

        To do: count again.
        """
        for number in (7,):
            same(found, number, case="a week")

    def test_refusals(self, error: Exception | None) -> None:
        """What is odd is refused."""
        with expect(InvalidInput):
            if error is not None:
                raise error

    def test_own_errors(self) -> None:
        int("seven")


def test_lesson_has_promise_both_values_and_advice() -> None:
    with pytest.raises(PromiseBroken) as caught:
        Kit().test_numbers(6)
    assert str(caught.value) == "\n".join([
        "numbers: Seven is seven.",
        "  expected: 7 (for 'a week')",
        "  found:    6",
        "  to do:    count again."])
    assert isinstance(caught.value.__cause__, Mismatch)


@pytest.mark.parametrize(("error", "found"), [
    (None, "nothing was raised"), (KeyError("k"), "KeyError was raised: 'k'")])
def test_an_error_that_does_not_come_is_a_mismatch(error: Exception | None, found: str) -> None:
    with pytest.raises(PromiseBroken) as caught:
        Kit().test_refusals(error)
    assert (caught.value.expected, caught.value.found) == ("InvalidInput", found)


def test_an_error_of_the_host_is_told_with_its_place() -> None:
    with pytest.raises(PromiseBroken, match=r"ValueError: invalid literal.*\n +raised in test_own_errors, test_"):
        Kit().test_own_errors()


def test_long_values_are_cut_where_they_differ() -> None:
    with pytest.raises(Mismatch) as caught:
        same(bytes(1000), bytes(999) + b"x")
    assert "which differs from place 999 on" in str(caught.value)
    assert len(str(caught.value)) < 800


def test_the_plainest_tests_run_first(tmp_path: Path) -> None:
    seen: list[str] = []

    class First(ConformanceKit):
        def test_z(self, folder: Path) -> None:
            seen.append("z")
            assert os.listdir(folder) == []

    class Second(First):
        def test_a(self, folder: Path) -> None:
            seen.append("a")

    assert run_kit(Second(), tmp_path) == ["test_a", "test_z"]
    assert seen == ["z", "a"]
