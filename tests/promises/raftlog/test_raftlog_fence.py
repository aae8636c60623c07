# SPDX-License-Identifier: Apache-2.0
"""A fence that fails after a change of a log takes nothing back, and the error's report has the change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from compactlib.errors import Busy, CompactionFailed, Conflict
from compactlib.raftlog import Entry, EveryNMinors, LogOptions, SeedPolicy, SegmentLimits, SegmentLog

OPTIONS = LogOptions(limits=SegmentLimits(max_entries=2))
ENTRIES = [Entry(index, 1, b"entry %d" % index) for index in range(1, 16)]
LIVE = [3, 5, 9, 11]


class FailsToLeave:
    """Admits every change, and fails when the change of this number has been made."""

    def __init__(self, number: int, error: Exception) -> None:
        self.entered = 0
        self._number = number
        self._error = error

    @contextmanager
    def guard(self) -> Iterator[None]:
        self.entered += 1
        yield
        if self.entered == self._number:
            raise self._error


@pytest.mark.parametrize("number", range(1, 5))
@pytest.mark.parametrize("error", [Conflict("the lease is lost"), RuntimeError("the lease is lost")], ids=repr)
def test_fence_that_fails_after_a_change_takes_nothing_back(number: int, error: Exception, tmp_path: Path) -> None:
    """The changes are the drop, the removal of the dropped files, and the commit of each of two groups."""
    kept = [entry for entry in ENTRIES if entry.index in LIVE or entry.index > 14]
    with SegmentLog(tmp_path, OPTIONS) as log:
        log.append(ENTRIES)
        log.snapshot(14, LIVE)
        before = {ref.number for ref in log.refs}
        fence = FailsToLeave(number, error)
        with pytest.raises((CompactionFailed, RuntimeError)) as raised:
            log.compact(policy=SeedPolicy(), fence=fence)
        assert fence.entered == number
        assert list(log.entries()) == kept
        found = raised.value
        assert isinstance(found, CompactionFailed) == isinstance(error, Conflict)
        if isinstance(found, CompactionFailed):
            assert error in found.failures.values()
            gone = {*found.report.dropped, *(each for group in found.report.done for each in group.members[1:])}
            assert {ref.number for ref in log.refs} == before - gone
        log.compact(policy=SeedPolicy())
        assert list(log.entries()) == kept
        assert log.verify().is_sound
    with SegmentLog(tmp_path, OPTIONS) as log:
        assert list(log.entries()) == kept
        assert log.verify().is_sound


class IsBusy:
    """Admits no change for now."""

    def guard(self) -> AbstractContextManager[None]:
        raise Busy("another node holds the lease")


def test_rewrite_whose_only_commit_a_busy_fence_refuses_is_still_due(tmp_path: Path) -> None:
    """Nothing was rewritten, so the next compaction tries again, and not after another count of minor ones."""
    options = LogOptions(limits=SegmentLimits(max_entries=2), trigger=EveryNMinors(1))
    with SegmentLog(tmp_path, options) as log:
        log.append(ENTRIES)
        log.snapshot(4, [1, 3])
        assert log.compact().is_empty
        assert len(log.plan().groups) == 1
        with pytest.raises(Busy, match="lease"):
            log.compact(fence=IsBusy())
        assert len(log.compact().done) == 1
        assert log.plan().drops_only
