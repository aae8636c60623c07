# SPDX-License-Identifier: Apache-2.0
"""A merge in parts refuses results that are not those of its parts, in their order, and publishes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from compactlib.errors import InvalidInput
from compactlib.objects import MemoryObjects
from compactlib.staging import CommittedRanges, MergeInParts, Record, SplitRule


class SharedObjects(MemoryObjects):
    """Every part has the same store, and none closes it."""

    def close(self) -> None:
        """See `ObjectStore.close`."""


CHANGES = [(b"%04d" % number, Record.of(b"%d" % number)) for number in range(400)]


def merge(arrange: Callable[[list[Any]], Iterable[Any]], objects: SharedObjects) -> tuple[CommittedRanges, str]:
    """Merge the changes into nothing, in four parts, with the results as they are arranged."""
    def run_parts(work: Callable[[Any], Any], parts: Sequence[Any]) -> Iterable[Any]:
        assert len(parts) == 4
        return arrange([work(part) for part in parts])

    layer = CommittedRanges(objects, rule=SplitRule(raggedness=20))
    return layer, MergeInParts(layer, lambda: objects, run_parts, partitions=4).apply(None, CHANGES).metarange_id


def test_parts_in_their_order_are_the_merge_in_one_part() -> None:
    layer, found = merge(list, SharedObjects())
    assert layer.apply(None, CHANGES).metarange_id == found


@pytest.mark.parametrize("arrange", [
    lambda results: results[::-1], lambda results: [results[1], results[0], *results[2:]], lambda results: results[1:],
    lambda results: results[:-1], lambda results: [*results, results[-1]], lambda results: [results[0]] * 4,
], ids=["reversed", "exchanged", "without the first", "without the last", "one twice", "the first alone"])
def test_other_results_are_refused(arrange: Callable[[list[Any]], Iterable[Any]]) -> None:
    objects = SharedObjects()
    with pytest.raises(InvalidInput, match="parts"):
        merge(arrange, objects)
    assert list(objects.list("metaranges/")) == []


@pytest.mark.parametrize("change", [b"data", "data", 5])
def test_a_change_that_is_no_record_is_refused(change: Any) -> None:
    with pytest.raises(InvalidInput, match="where a record with an identity was expected"):
        CommittedRanges(MemoryObjects()).apply(None, [(b"key", change)])
