# SPDX-License-Identifier: Apache-2.0
"""The toy store as one that nobody owns: any number of handles compact at once, one commits, the others are skipped."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compactlib.contract import CommitFence
from compactlib.executors import RewriteResult
from compactlib.files import Files
from compactlib.outcome import Done, Skipped
from tests.harness.toy_lines import LineFile, LinePlan
from tests.testing.contract.toy_factory import LineStores
from tests.testing.contract.toy_store import LineStore


class SharedLineStore(LineStore):
    """Commits with a condition: the file is still the one that was planned with."""

    def __init__(self, folder: Path, *, files: Files, commits: threading.Lock) -> None:
        self._commits = commits
        self._overtaken = 0
        self._planned: dict[str, LineFile] = {}
        super().__init__(folder, files=files)

    def locked(self) -> Any:
        return NoLock()

    def carry_out(self, *args: Any) -> Any:
        self._overtaken = 0
        outcome = super().carry_out(*args)
        if self._overtaken and outcome == Done(self._overtaken):
            return Skipped(f"{self._overtaken} files were compacted by somebody else meanwhile", is_busy=True)
        return outcome

    def is_outdated(self, plan: LinePlan) -> bool:
        self._planned = {str(self._path(file.number)): file for file in plan.chosen}
        return super().is_outdated(plan)

    def commit(self, result: RewriteResult, fence: CommitFence | None) -> None:
        with self.guard(fence), self._commits:
            if self.has_changed(result):
                self._overtaken += 1
            else:
                super().commit(result, None)

    def has_changed(self, result: RewriteResult) -> bool:
        path = Path(result.files[0].path.split(".lines")[0] + ".lines")
        return self._line_file(path) != self._planned[str(path)]

    def clean_up(self) -> int:
        # What others write is theirs.
        return 0


class NoLock:
    """For a folder that nobody owns."""

    def require_mine(self) -> None:
        """Everybody may."""

    def release(self) -> None:
        """There is nothing to release."""


class SharedLineStores(LineStores):
    """Makes handles of one store for each folder."""

    has_owner = False

    def __init__(self, kind: type[SharedLineStore] = SharedLineStore) -> None:
        super().__init__()
        self.shared = kind
        self.locks: dict[Path, threading.Lock] = {}

    def open(self, folder: Path, *, files: Files) -> SharedLineStore:
        return self.shared(folder, files=files, commits=self.locks.setdefault(folder, threading.Lock()))


class CommitsBlindly(SharedLineStore):
    """Whoever comes last has the last word."""

    def has_changed(self, result: RewriteResult) -> bool:
        return False


class CountsWhatIsLost(SharedLineStore):
    """Overtaken, it says that it has done what another one did."""

    def carry_out(self, *args: Any) -> Any:
        return LineStore.carry_out(self, *args)


class DeletesWhatItDoesNotKnow(SharedLineStore):
    """What came while it worked is taken for a leftover."""

    known: frozenset[Path] | None = None

    def is_outdated(self, plan: LinePlan) -> bool:
        self.known = frozenset(self._paths())
        return super().is_outdated(plan)

    def clean_up(self) -> int:
        strange = [path for path in self._paths() if self.known is not None and path not in self.known]
        for path in strange:
            self._files.unlink(path)
        self.known = None
        return len(strange)


class HoldsTheOthers(SharedLineStore):
    """Everybody waits for whoever runs, in whichever handle."""

    def carry_out(self, *args: Any) -> Any:
        with self._held():
            return super().carry_out(*args)

    @contextmanager
    def _held(self) -> Iterator[None]:
        with _RUNS:
            yield


_RUNS = threading.RLock()
