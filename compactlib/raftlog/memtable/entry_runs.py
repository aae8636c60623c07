"""Entries as a host gives them, cut into runs that are written with a few calls each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from compactlib.errors import InvalidInput
from compactlib.raftlog.arguments import listed
from compactlib.raftlog.model.values import Entry

if TYPE_CHECKING:
    from typing_extensions import Buffer


def runs_of(entries: Iterable[Entry | tuple[int, int, Buffer]]) -> Iterator[tuple[int, int, list[Buffer]]]:
    """Cut entries into runs of consecutive indexes and one term: first index, term, payloads.

    Raises:
        InvalidInput: the indexes are not consecutive, or something is no entry.
    """
    rows = listed("the entries", entries)
    if not rows:
        return
    try:
        indexes, terms, payloads = zip(*rows, strict=True)
        range(rows[0][0])
    except (TypeError, ValueError):
        raise InvalidInput("an entry is an Entry, or a tuple of index (int), term (int) and payload (bytes); the first "
                           f"that was given is a {type(rows[0]).__name__}") from None
    first = indexes[0]
    if list(indexes) != list(range(first, first + len(rows))):
        place = next(place for place, index in enumerate(indexes) if index != first + place)
        raise InvalidInput(f"index {indexes[place]} follows {indexes[place - 1]} in one call; give consecutive "
                           f"indexes, or use append_sparse")
    start = 0
    while start < len(rows):
        term = terms[start]
        stop = len(rows) if terms.count(term) == len(rows) else start + 1
        while stop < len(rows) and terms[stop] == term:
            stop += 1
        yield first + start, term, list(payloads[start:stop])
        start = stop
