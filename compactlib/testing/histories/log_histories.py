# SPDX-License-Identifier: Apache-2.0
"""What a host does to a Raft log, as values: random histories for Hypothesis, and one call that lives through them.

>>> history = (Append(3), Snapshot(back=0, live=IndexSet.range(2, 2)), Compact("policy"))
>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     with LogHistory(folder) as log:
...         for step in history:
...             log.step(step)
...     sorted(log.entries), log.snapshot
([2], 3)
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeAlias

import attrs

from compactlib.errors import MissingDependency
from compactlib.files.disk import StrPath
from compactlib.indexset.index_set import IndexSet
from compactlib.outcome import Failed
from compactlib.raftlog.compaction.plan.policies.drop import DropDead
from compactlib.raftlog.compaction.plan.policies.seed import SeedPolicy
from compactlib.raftlog.compaction.plan.policy import LogPolicy
from compactlib.raftlog.log.segment_log import SegmentLog
from compactlib.raftlog.model.values import DeadEntry, Entry, MissingEntry, SegmentLimits
from compactlib.raftlog.options import LogOptions
from compactlib.testing.histories.index_strategies import live_sets
from compactlib.testing.kit.examples import histories_of

try:
    from hypothesis import strategies as st
except ImportError:
    raise MissingDependency(package="hypothesis", extra="testing", purpose="random histories of a log") from None

_LAST = 80
"""Live sets are drawn from the indexes up to here; histories seldom come further."""
_MOST_ROUNDS = 64


@attrs.frozen
class Append:
    """Append entries.

    Attributes:
        count: how many.
        payload_bytes: how large each is.
        gap: how many indexes are left out before the first.
    """

    count: int
    payload_bytes: int = 8
    gap: int = 0


@attrs.frozen
class Overwrite:
    """Take back the newest entries, as a new leader does, and append one in their place.

    Attributes:
        count: how many are taken back; never one at or below the snapshot.
    """

    count: int


@attrs.frozen
class Snapshot:
    """Record a snapshot.

    Attributes:
        back: how many indexes below the newest entry it lies.
        live: which of the entries below stay live, of those that still are.
    """

    back: int
    live: IndexSet


@attrs.frozen
class Compact:
    """Compact.

    Attributes:
        by: whom: the log's own rule, `DropDead`, or the log's policy.
    """

    by: Literal["rule", "drop", "policy"]


@attrs.frozen
class Reopen:
    """Close the log and open it again."""


LogStep: TypeAlias = Append | Overwrite | Snapshot | Compact | Reopen
"""One thing that a host does to a log."""


def log_steps() -> st.SearchStrategy[LogStep]:
    """Single steps. Shrinks to one appended entry."""
    return st.one_of(
        st.builds(Append, st.integers(1, 9), st.sampled_from([8, 0, 70]), st.sampled_from([0, 0, 0, 5])),
        st.builds(Snapshot, st.integers(0, 6), live_sets(0, _LAST)),
        st.builds(Compact, st.sampled_from(["policy", "drop", "rule"])),
        st.builds(Overwrite, st.integers(1, 3)), st.just(Reopen()))


def log_histories(*, max_steps: int = 20) -> st.SearchStrategy[tuple[LogStep, ...]]:
    """Histories of a log: entries come, some stay live, most die, compactions come in between.

    Shrinks to the fewest steps, and each step to little: one entry, nothing live.

    Args:
        max_steps: the most steps.
    """
    return histories_of(log_steps(), max_steps)


class LogHistory:
    """A real log in small segments that lives through steps, beside a plain dictionary. Single-threaded.

    Args:
        folder: the log's; new.
        policy: decides what major compactions rewrite.
        limits: how large a segment may become; a few entries, so that a short history has many segments.

    Attributes:
        entries: what must be there: every entry above the snapshot and the live ones below, with its payload.
        snapshot: the snapshot's index, -1 without one.
    """

    def __init__(self, folder: StrPath, policy: LogPolicy | None = None,
                 limits: SegmentLimits | None = None) -> None:
        self.entries: dict[int, bytes] = {}
        self.snapshot: int = -1
        self._last = 0
        self._writes = 0
        self._folder = Path(folder)
        self._options = LogOptions(limits=limits or SegmentLimits(max_entries=4, max_bytes=200),
                                   policy=policy or SeedPolicy())
        self._log = SegmentLog(self._folder, self._options)

    def step(self, step: LogStep) -> None:
        """Carry out one step, and check everything.

        Raises:
            AssertionError: an entry is lost, damaged, or back from the dead; the message names it.
        """
        match step:
            case Append():
                for number in range(step.count):
                    self._write(self._last + 1 + (step.gap if not number else 0), step.payload_bytes)
            case Overwrite():
                self._write(max(self._last + 1 - step.count, self.snapshot + 1), 8)
            case Snapshot():
                index = max(self._last - step.back, self.snapshot, 0)
                live = [each for each in sorted(self.entries) if each <= index and each in step.live]
                self._log.record_snapshot(index, live)
                self.entries = {each: payload for each, payload in self.entries.items()
                                if each > index or each in step.live}
                self.snapshot = index
            case Compact():
                self._compact(step)
            case Reopen():
                self._log.close()
                self._log = SegmentLog(self._folder, self._options)
        self.check(step)

    def check(self, after: object = "") -> None:
        """Read everything and compare; `after` is for the message.

        Raises:
            AssertionError: as for `step`.
        """
        self._log.audit()
        for index in range(self._last + 2):
            answer = self._log.read(index)
            wanted = self.entries.get(index)
            if wanted is not None:
                assert isinstance(answer, Entry), (
                    f"after {after} the live entry {index} is gone: the log answers {answer!r}. What is live, or above "
                    f"the snapshot, has to stay readable, whatever is compacted")
                assert answer.payload == wanted, (
                    f"after {after} entry {index} holds {answer.payload!r}, and {wanted!r} was written last")
            else:
                assert isinstance(answer, DeadEntry | MissingEntry), (
                    f"after {after} the log answers {answer!r} for index {index}, which is "
                    f"{'dead' if index <= self.snapshot else 'not there'}")

    def _write(self, index: int, payload_bytes: int) -> None:
        self._writes += 1
        payload = b"%08d" % self._writes * (payload_bytes // 8 + 1)
        self._log.append(index, 1, payload[:payload_bytes])
        self.entries = {each: kept for each, kept in self.entries.items() if each < index}
        self.entries[index] = payload[:payload_bytes]
        self._last = index

    def _compact(self, step: Compact) -> None:
        policies: dict[str, LogPolicy] = {"drop": DropDead(), "policy": self._options.policy}
        outcome = self._log.compact(policy=policies.get(step.by))
        if isinstance(outcome, Failed):
            raise AssertionError(
                f"{self._options.policy.name}: a compaction by {step.by} of a sound log failed: {outcome.error}. The "
                f"policy's choice could not be carried out as it stands") from outcome.error
        if step.by == "policy":
            self._come_to_rest()

    def _come_to_rest(self) -> None:
        """Compactions in a row must find nothing to do before long."""
        for _ in range(_MOST_ROUNDS):
            if self._log.plan(self._options.policy).is_empty:
                return
            self._log.compact(policy=self._options.policy)
        raise AssertionError(
            f"{self._options.policy.name}: {_MOST_ROUNDS} compactions in a row each found something to do, "
            f"though nothing was written between them: {self._log.plan(self._options.policy)!r}. A group is worth its "
            f"copies only if it joins segments or frees something (is_worthwhile)")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._log.close()
