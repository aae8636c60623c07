# SPDX-License-Identifier: Apache-2.0
"""The object store dies, or answers with an error, at every step; and work in the background changes no result."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from compactlib.files import Files
from compactlib.objects import LocalObjects, MemoryObjects, ObjectExists, ObjectStoreFailed
from compactlib.runtime import RecordingObserver
from compactlib.staging import CommittedRanges, Record, SplitRule
from compactlib.staging.committed.formats.rows import RangeFormat
from compactlib.staging.committed.ranges import range_writer
from compactlib.staging.committed.ranges.range_writer import MAX_IN_FLIGHT
from compactlib.staging.model.values import Change, LiveMetaRanges, MetaRangeId
from compactlib.testing import RecordingFiles, explore_crashes, record
from tests.staging.committed.plain_sets import RecordSet, changed, committed, written
from tests.staging.committed.range_formats import FORMATS
from tests.staging.hooked_objects import HookedObjects

RULE = SplitRule(raggedness=4)
BASE: RecordSet = {b"key%02d" % number: Record.of(b"%d" % number) for number in range(30)}
CHANGES: dict[bytes, Change] = {b"key03": None, b"key10": Record.of(b"new"), b"key25+": Record.of(b"new")}


def stores(*, happened: bool) -> Iterator[tuple[MemoryObjects, HookedObjects, MetaRangeId]]:
    """For each step of an apply, a store that fails there, before or after it did what it was asked."""
    for step in itertools.count():
        inner = MemoryObjects()
        base = written(CommittedRanges(inner, rule=RULE), BASE)
        steps = itertools.count()
        waiting = what_is_created(base, inner)

        def fail(operation: str, key: str, inner: MemoryObjects = inner, steps: Iterator[int] = steps,
                 step: int = step, waiting: dict[str, bytes] = waiting) -> None:
            if next(steps) == step:
                if happened and operation == "create":
                    with contextlib.suppress(ObjectExists):
                        inner.create(key, waiting[key])
                raise ObjectStoreFailed(operation=operation, key=key, detail="on purpose")

        yield inner, HookedObjects(inner, fail), base
        if next(steps) <= step:
            return


def what_is_created(base: MetaRangeId, inner: MemoryObjects) -> dict[str, bytes]:
    copy = MemoryObjects()
    for info in inner.list():
        copy.create(info.key, inner.get(info.key))
    CommittedRanges(copy, rule=RULE).apply(base, sorted(CHANGES.items()))
    return {info.key: copy.get(info.key) for info in copy.list()}


@pytest.mark.parametrize("happened", [False, True])
def test_an_apply_that_fails_at_any_step_has_changed_nothing_and_can_be_repeated(happened: bool) -> None:
    expected = written(committed(rule=RULE), changed(BASE, CHANGES))
    failures = 0
    for inner, failing, base in stores(happened=happened):
        try:
            CommittedRanges(failing, rule=RULE, cache_bytes=0).apply(base, sorted(CHANGES.items()))
        except ObjectStoreFailed:
            failures += 1
        layer = CommittedRanges(inner, rule=RULE, cache_bytes=0)
        assert dict(layer.scan(base)) == BASE
        # Whoever finds a metarange finds all of it: its ranges were durable before.
        for file in layer.list_metaranges():
            assert dict(layer.scan(MetaRangeId(file.id))) in (BASE, changed(BASE, CHANGES))
        assert layer.apply(base, sorted(CHANGES.items())).metarange_id == expected
        assert dict(layer.scan(expected)) == changed(BASE, CHANGES)
    assert failures > 5


@pytest.mark.parametrize("range_format", FORMATS, ids=lambda each: each.name)
def test_the_background_changes_no_result(range_format: RangeFormat) -> None:
    content = {b"key%04d" % number: Record.of(b"%d" % number) for number in range(2000)}
    changes: dict[bytes, Change] = {key: None if place % 2 else Record.of(b"new")
                                    for place, key in enumerate(content) if place % 7 == 0}
    with ThreadPoolExecutor(3) as pool:
        one, two = (CommittedRanges(MemoryObjects(), rule=SplitRule(raggedness=50), range_format=range_format,
                                    background=background) for background in (pool, None))
        assert written(one, content) == written(two, content)
        base = written(one, content)
        left, right = (each.apply(base, sorted(changes.items())) for each in (one, two))
        assert left == right
        assert left.ranges_written > 10


class WhenAsked(Executor):
    """Does what it is given once somebody waits for it, and counts what waits."""

    def __init__(self) -> None:
        self.most = 0
        self._given: list[Future[Any]] = []

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        class Asked(Future[Any]):
            def result(self, timeout: float | None = None) -> Any:
                if not self.done():
                    self.set_result(work(*arguments, **named))
                return super().result(timeout)

        self._given.append(Asked())
        self.most = max(self.most, sum(not each.done() for each in self._given))
        return self._given[-1]


@pytest.mark.parametrize(("most_bytes", "in_flight"), [(1 << 20, MAX_IN_FLIGHT), (1, 1)])
def test_the_ranges_that_are_written_in_the_background_are_bounded_in_number_and_bytes(
        most_bytes: int, in_flight: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_writer, "MAX_IN_FLIGHT_BYTES", most_bytes)
    content = {b"key%04d" % number: Record.of(b"%d" % number) for number in range(2000)}
    background = WhenAsked()
    layer = CommittedRanges(MemoryObjects(), rule=SplitRule(raggedness=50), background=background, cache_bytes=0)
    assert dict(layer.scan(written(layer, content))) == content
    assert background.most == in_flight


@pytest.mark.parametrize(("changed_keys", "waiting"), [(2000, 2 + 1), (1, 1)])
def test_two_ranges_that_will_be_changed_are_read_ahead(
        changed_keys: int, waiting: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_writer, "MAX_IN_FLIGHT_BYTES", 1)
    objects, background = MemoryObjects(), WhenAsked()
    content = {b"key%04d" % number: Record.of(b"%d" % number) for number in range(2000)}
    changes = [(key, Record.of(b"new")) for key in sorted(content)[:changed_keys]]
    alone = CommittedRanges(objects, rule=SplitRule(raggedness=50))
    base = written(alone, content)
    layer = CommittedRanges(objects, rule=SplitRule(raggedness=50), background=background, cache_bytes=0)
    assert layer.apply(base, changes).metarange_id == alone.apply(base, changes).metarange_id
    assert background.most == waiting


@pytest.mark.parametrize("operation", ["get", "create"])
def test_an_error_in_the_background_comes_to_the_caller(operation: str) -> None:
    def fail(found: str, key: str) -> None:
        if found == operation and key.startswith("ranges/"):
            raise ObjectStoreFailed(operation=operation, key=key, detail="on purpose")

    objects = HookedObjects(MemoryObjects())
    content = {b"key%04d" % number: Record.of(b"%d" % number) for number in range(2000)}
    with ThreadPoolExecutor(3) as pool:
        layer = CommittedRanges(objects, rule=SplitRule(raggedness=50), background=pool, cache_bytes=0)
        base = written(layer, content)
        before = {file.id for file in layer.list_metaranges()}
        objects.hook = fail
        with pytest.raises(ObjectStoreFailed):
            layer.apply(base, [(key, Record.of(b"new")) for key in content])
        assert {file.id for file in layer.list_metaranges()} == before


def test_progress_ends_where_it_should() -> None:
    observer = RecordingObserver()
    layer = CommittedRanges(MemoryObjects(), rule=RULE)
    base = written(layer, BASE)
    layer.apply(base, sorted(CHANGES.items()), observer=observer)
    total = len(layer.ranges_of(base)) + 1
    assert [(each.done, each.total, each.unit) for each in observer.progresses] == [
        (done, total, "ranges") for done in range(1, total + 1)]


def test_after_a_crash_of_the_disk_every_metarange_is_whole(tmp_path: Path) -> None:
    """What was acknowledged is there; what is there at all is complete; and the work can be done again."""
    base: RecordSet = {key: record for key, record in BASE.items() if key < b"key12"}
    changes: dict[bytes, Change] = {b"key03": None, b"key10": Record.of(b"new")}
    contents = {written(committed(rule=RULE), content): content for content in (base, changed(base, changes))}
    names = itertools.count()

    def layer_in(folder: Path, files: Files | None = None) -> CommittedRanges:
        objects = LocalObjects(folder / "store", files=files, new_name=lambda: f"private-{next(names)}")
        return CommittedRanges(objects, rule=RULE, cache_bytes=0)

    def work(folder: Path, files: RecordingFiles) -> None:
        layer = layer_in(folder, files)
        files.acknowledge(first := written(layer, base))
        files.acknowledge(layer.apply(first, sorted(changes.items())).metarange_id)

    def check(folder: Path, acknowledged: Sequence[object]) -> None:
        layer = layer_in(folder)
        there = {MetaRangeId(file.id) for file in layer.list_metaranges()}
        assert there >= set(acknowledged)
        for metarange_id in there:
            assert dict(layer.scan(metarange_id)) == contents[metarange_id]
            assert layer.verify(LiveMetaRanges(needed=frozenset({metarange_id}))).is_sound
        again = layer.apply(written(layer, base), sorted(changes.items()))
        assert dict(layer.scan(again.metarange_id)) == changed(base, changes)

    checked = explore_crashes(record(tmp_path, work), check)
    assert checked > 20


@pytest.mark.parametrize("threads", [0, 2])
def test_changes_that_end_in_an_error_publish_nothing(threads: int) -> None:
    def broken() -> Iterator[tuple[bytes, Change]]:
        yield from ((b"key%04d" % number, Record.of(b"new")) for number in range(3000))
        raise ObjectStoreFailed(operation="scan", key="token", detail="on purpose")

    with ThreadPoolExecutor(threads or 1) as pool:
        layer = CommittedRanges(MemoryObjects(), rule=SplitRule(raggedness=50), background=pool if threads else None)
        base = written(layer, BASE)
        with pytest.raises(ObjectStoreFailed):
            layer.apply(base, broken())
        assert [file.id for file in layer.list_metaranges()] == [base]


@pytest.mark.parametrize("kept", [0.0, 0.5])
@pytest.mark.parametrize("folder", ["ranges/", "metaranges/"])
@pytest.mark.parametrize("range_format", FORMATS)
def test_a_file_that_was_copied_in_part_is_not_taken_for_what_was_to_be_written(range_format: RangeFormat, folder: str,
                                                                                kept: float) -> None:
    objects = MemoryObjects()
    ranges = CommittedRanges(objects, range_format=range_format, rule=RULE)
    written(ranges, BASE)
    cut = next(iter(objects.list(folder))).key
    data = objects.get(cut)
    objects.delete(cut)
    objects.create(cut, data[:int(len(data) * kept)])
    again = CommittedRanges(objects, range_format=range_format, rule=RULE)
    assert dict(again.scan(written(again, BASE))) == BASE
    assert objects.get(cut) == data


def test_a_file_of_another_format_is_taken_for_what_was_to_be_written() -> None:
    for first, second in itertools.permutations(FORMATS, 2):
        objects = MemoryObjects()
        metarange_id = written(CommittedRanges(objects, range_format=first, rule=RULE), BASE)
        assert written(CommittedRanges(objects, range_format=second, rule=RULE), BASE) == metarange_id
