# SPDX-License-Identifier: Apache-2.0
"""The toy store as one that nobody owns: any number of handles compact at once, and one commits each file."""

from __future__ import annotations

import threading
from pathlib import Path

from compactlib.clock import Clock
from compactlib.contract import CommitFence
from compactlib.executors import RewriteResult
from compactlib.files import Files
from compactlib.testing import World
from tests.harness.toy_lines import LineFile, LinePlan
from tests.testing.contract.toy_store import LineDriver, LineReport, LineStore


class SharedLineStore(LineStore):
    """Commits with a condition: the file is still the one that was planned with."""

    def __init__(self, folder: Path, *, files: Files, clock: Clock, commits: threading.Lock) -> None:
        self._commits = commits
        self._planned: dict[str, LineFile] = {}
        super().__init__(folder, files=files, clock=clock)

    def lock_folder(self) -> None:
        """Nobody owns it."""

    def is_outdated(self, plan: LinePlan) -> bool:
        self._planned = {str(self._path(file.number)): file for file in plan.chosen}
        return super().is_outdated(plan)

    def whole(self, committed: int) -> LineReport:
        return LineReport(committed, "" if committed else f"all {len(self._planned)} files were compacted meanwhile")

    def commit(self, result: RewriteResult, fence: CommitFence | None) -> int:
        with self.guarded(fence), self._commits:
            return 0 if self.has_changed(result) else super().commit(result, None)

    def has_changed(self, result: RewriteResult) -> bool:
        path = Path(result.files[0].path.split(".lines")[0] + ".lines")
        return self._line_file(path) != self._planned[str(path)]

    def clean_up(self) -> int:
        # What others write is theirs.
        return 0


class SharedLineDriver(LineDriver):
    """Opens handles of one store for each world."""

    has_peers = True

    def __init__(self, kind: type[SharedLineStore] = SharedLineStore) -> None:
        super().__init__(kind)
        self._shared = kind

    def open(self, world: World, settings: None) -> SharedLineStore:
        return self._shared(world.folder, files=world.files, clock=world.clock,
                            commits=world.kept.setdefault("commits", threading.Lock()))

    def contents(self, world: World, store: LineStore) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in world.folder.iterdir() if path.suffix == ".lines"}
