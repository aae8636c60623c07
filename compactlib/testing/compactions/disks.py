"""The part of the kit of `contract.Compaction` about disks: no room, one that refuses, a kill, a power failure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compactlib.errors import CompactlibError, StorageError
from compactlib.files.disk import Files
from compactlib.outcome import Done, Failed
from compactlib.testing.compactions.edges import truthful
from compactlib.testing.compactions.kit import CompactionPart, Opened, attempt, closing, done, failed, skipped
from compactlib.testing.crash.kills import LifeFiles, explore_kills
from compactlib.testing.faults.plan import Crash, Fault
from compactlib.testing.kit.conformance import Mismatch, same
from compactlib.testing.kit.contract_actors import CheckedFiles, FenceBy

_MOST_REFUSALS = 60
_MOST_STATES = 100


class DiskPromises(CompactionPart):
    """Nothing that a disk does loses what was acknowledged."""

    def test_without_room_nothing_begins(self, tmp_path: Path) -> None:
        """It is `Skipped`, and names what is needed and what there is.

        To do: ask files.available_bytes(folder) before the first change, and compare with plan.bytes_needed.
        """
        with self.opened(tmp_path, fills=1) as opened:
            plan = opened.plan()
            if not plan.bytes_needed or plan.bytes_available is None:
                return
            room = opened.files.room = plan.bytes_needed - 1
            before, fence = opened.contents(), FenceBy()
            for outcome in (opened.compact(fence=fence), opened.compact(plan, fence=fence)):
                reason = skipped(outcome, f"compact() of {plan.bytes_needed} bytes with room for {room}").reason
                plainly = reason.replace(",", "")
                if str(plan.bytes_needed) not in plainly or str(room) not in plainly:
                    raise Mismatch(f"the reason {reason!r}", f"one with both numbers, {plan.bytes_needed} and {room}")
            same(opened.contents(), before)
            same(fence.entered, 0)
            opened.files.room = plan.bytes_needed * 2
            opened.finish("a compaction that had no room")

    def test_a_disk_that_refuses_any_step(self, tmp_path: Path) -> None:
        """`Failed(StorageError)` that says what has changed; the store goes on or can be opened again, nothing is lost.

        To do: let StorageError end the work as Failed; say changed="unknown" from the first change of a commit until
        its folder is synced, and only what was seen otherwise.
        """
        if not self.make_factory().has_owner:
            return
        with self.opened(tmp_path, fills=2, name="counting") as opened:
            opened.files.arm(None)
            done(opened.compact(), "compact()")
            steps = opened.files.since
        refused = 0
        for fault in (Fault.REFUSED, Fault.UNKNOWN_DONE):
            for number in self.some(steps, _MOST_REFUSALS):
                when = f"a disk that fails at change {number} of {steps} ({fault.value})"
                with self.opened(tmp_path, fills=2, name=f"store {fault.value} {number}") as opened:
                    refused += self._refuse(opened, fault, number, when)
        assert refused, f"the disk refused each of {steps} changes, and every compaction was Done all the same"

    def _refuse(self, opened: Opened, fault: Fault, number: int, when: str) -> bool:
        """Whether a compaction whose n-th change fails was given up; and nothing is lost."""
        before = opened.state()
        opened.files.arm(lambda change: fault if change == number else None)
        outcome: Any = opened.compact()
        opened.files.arm(None)
        if not isinstance(outcome, Done):
            failed(outcome, StorageError, when)
            # It may want to be opened again before it says anything more.
            if not isinstance(attempt(opened.state), CompactlibError):
                truthful(opened, outcome, before, when)
            opened.idle(when)
        if number % 2:
            finished = attempt(lambda: opened.finish(f"{when}, on the same object"))
            if finished is None:
                return isinstance(outcome, Failed)
        opened.store.close()
        opened.factory.release(opened.store)
        with self.reopened(opened) as again:
            if isinstance(outcome, Failed) and not number % 2:
                truthful(again, outcome, before, f"{when}, opened again")
            again.finish(f"{when}, opened again")
            again.store.audit()
        return isinstance(outcome, Failed)

    def test_killed_at_any_step_then_a_successor_then_a_power_failure(self, tmp_path: Path) -> None:
        """Whatever a killed compaction left, its successor builds on; what either acknowledged survives the power.

        To do: make durable what an opening finds (compactlib.files.sync_names) before anything is acknowledged on top.
        """
        factory = self.make_factory()
        if not factory.has_owner:
            return
        prepared: list[Any] = []

        def live(folder: Path, files: Files, acknowledged: list[Any]) -> Opened:
            checked = files if isinstance(files, CheckedFiles) else CheckedFiles(files)
            return Opened(factory.open(folder, files=checked), folder, checked, acknowledged, factory)

        def prepare(folder: Path) -> None:
            opened = live(folder, CheckedFiles(), [])
            with closing(opened):
                opened.fill(0)
            prepared[:] = opened.acknowledged

        def compact(folder: Path, files: LifeFiles) -> None:
            opened = live(folder, files, [])
            try:
                opened.compact()
            except Crash:
                # Its locks go with it; what it would still write does not reach the disk.
                let_go(opened)
                raise
            opened.store.close()
            factory.release(opened.store)

        def write(folder: Path, files: LifeFiles) -> None:
            opened = live(folder, files, [])
            with closing(opened):
                opened.fill(1)
                files.acknowledge(opened.acknowledged[-1])

        def look(folder: Path, acknowledged: Sequence[Any]) -> None:
            opened = live(folder, CheckedFiles(), [*prepared, *acknowledged])
            with closing(opened):
                opened.check("a kill, a successor and a power failure")
                opened.finish("a kill, a successor and a power failure")

        explore_kills(compact, write, look, prepare=prepare,
                      max_states=max(10, _MOST_STATES * self.effort_percent // 100))


def let_go(opened: Opened) -> None:
    """Close a store whose disk has ended with its process."""
    for call in (opened.store.close, lambda: opened.factory.release(opened.store)):
        try:
            call()
        except (Crash, CompactlibError):
            continue
