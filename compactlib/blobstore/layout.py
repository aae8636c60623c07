# SPDX-License-Identifier: Apache-2.0
"""Which of the segments in a folder are the log; the owner and every reader decide it by the same pure function.

The list says which segments count. Where the folder differs from it:

- a newer segment than all in the list was begun, and a crash came before it was listed: it counts;
- an output of a step that was not committed, in the place of one of its sources, and a source of the last step are
  leftovers;
- any other segment that is not listed was put back by somebody: it does not count, and is reported;
- of the last step an output is missing, and all its sources are there: the step is taken back;
- a listed segment is missing: it is lost. It stays in the list, so that every opening reports it until it is put back;
- one is missing, and a later generation is in its place: the list itself is older than the folder, or damaged. What is
  in the place of a missing one counts, and is reported.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from itertools import pairwise

import attrs

from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.segment_list import FILE_NAME, FoundList, SegmentList, names_of
from compactlib.errors import CorruptData


@attrs.frozen(kw_only=True)
class Layout:
    """What counts.

    Attributes:
        segments: the log, in order, without what is lost.
        lost: segments of the log that are not there.
        leftovers: segments that are there and may be removed.
        damage: what is wrong with the list, and each segment that is lost or was put back.
        list: the list as it follows.
    """

    segments: tuple[SegmentName, ...]
    lost: tuple[SegmentName, ...] = ()
    leftovers: tuple[SegmentName, ...] = ()
    damage: tuple[CorruptData, ...] = ()
    list: SegmentList


def lay_out(folder: str, found: FoundList, present: Collection[SegmentName]) -> Layout:
    """Decide which segments are the log.

    Args:
        folder: for errors.
        found: the list.
        present: the segments in the folder, without one that was cut off before it had a whole header.
    """
    path = os.path.join(folder, FILE_NAME)
    known = found.list
    if known is None:
        names = tuple(sorted(present))
        for first, second in pairwise(names):
            if first.position == second.position:
                raise CorruptData(
                    path=os.path.join(folder, second.log_file), offset=0, found=f"{first} beside {second}",
                    expected=f"one generation of each segment, as {FILE_NAME!r} is missing or damaged")
        damage = [CorruptData(path=path, offset=0, expected="the list of segments",
                              found="no such file" if found.is_missing else "other bytes")] if names else []
        return Layout(segments=names, damage=tuple(damage), list=SegmentList(segments=names))
    damage = []
    step = known.step
    if step is not None:
        gone = [name for name in names_of(step.outputs) if name not in present]
        if gone and set(step.sources).issubset(present):
            known = known.without_step()
            damage += [_no_file(folder, name, "a new segment, whose sources are there and count") for name in gone]
    listed = set(known.segments)
    newest = max((name.position for name in listed), default=-1)
    begun = {name for name in present if name.position > newest}
    there = listed.intersection(present)
    missing = sorted(listed.difference(present))
    strays = set(present) - listed - begun
    adopted = _adopted(strays, missing)
    if adopted:
        damage.append(CorruptData(path=path, offset=0, expected=f"a list with segment {min(adopted)}",
                                  found=f"an older or damaged one, with {missing[0]}"))
        missing = []
    damage += [_no_file(folder, name, "a segment of the log") for name in missing]
    held = {name.position: name.generation for name in there}
    sources = set() if known.step is None else set(known.step.sources)
    leftovers = {name for name in strays - adopted
                 if name in sources or name.generation > held.get(name.position, name.generation)}
    damage += [CorruptData(path=os.path.join(folder, name.log_file), offset=0, expected="segments of the list alone",
                           found="one that a compaction has removed, put back") for name in
               sorted(strays - adopted - leftovers)]
    counted = tuple(sorted(there | begun | adopted))
    return Layout(segments=counted, lost=tuple(missing), damage=tuple(damage), leftovers=tuple(sorted(leftovers)),
                  list=attrs.evolve(known, segments=tuple(sorted({*counted, *missing}))))


def _adopted(strays: Iterable[SegmentName], missing: Iterable[SegmentName]) -> set[SegmentName]:
    """Return those that take the place of a missing one: of each position the highest generation."""
    gone = {name.position: name.generation for name in missing}
    return set({name.position: name for name in sorted(strays)
                if name.generation > gone.get(name.position, name.generation)}.values())


def _no_file(folder: str, name: SegmentName, what: str) -> CorruptData:
    return CorruptData(path=os.path.join(folder, name.log_file), offset=0, expected=what, found="no such file")
