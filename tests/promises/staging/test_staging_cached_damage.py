# SPDX-License-Identifier: Apache-2.0
"""A damaged range that was put back is read, and stays, although a cache has its damaged bytes."""

from __future__ import annotations

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import CorruptData
from compactlib.objects import CachedObjects, MemoryObjects
from compactlib.staging import CommittedRanges, Record

CONTENT = [(b"key-%02d" % number, Record.of(b"%d" % number)) for number in range(20)]


@pytest.mark.parametrize("folder", ["ranges/", "metaranges/"])
def test_range_put_back_behind_a_cache_is_read_and_stays(folder: str) -> None:
    clock = ManualClock(1000.0)
    far = MemoryObjects(clock=clock)
    made = CommittedRanges(far).apply(None, CONTENT).metarange_id
    (info,) = far.list(folder)
    sound = far.get(info.key)
    far.delete([info.key])
    far.create(info.key, sound[:-3] + b"bad")
    near = MemoryObjects()
    with pytest.raises(CorruptData):
        list(CommittedRanges(CachedObjects(far, near)).scan(made))
    far.delete([info.key])
    far.create(info.key, sound)
    assert list(CommittedRanges(CachedObjects(far, near)).scan(made)) == CONTENT


@pytest.mark.parametrize("folder", ["ranges/", "metaranges/"])
def test_write_of_a_range_deletes_no_sound_file_for_a_cached_copy(folder: str) -> None:
    clock = ManualClock(1000.0)
    far, near = MemoryObjects(clock=clock), MemoryObjects()
    CommittedRanges(far).apply(None, CONTENT)
    (info,) = far.list(folder)
    sound = far.get(info.key)
    far.delete([info.key])
    far.create(info.key, sound[:-3] + b"bad")
    CachedObjects(far, near).get(info.key)
    far.delete([info.key])
    far.create(info.key, sound)
    clock.advance(60.0)
    CommittedRanges(CachedObjects(far, near)).apply(None, CONTENT)
    assert far.info(info.key).modified_at == info.modified_at
