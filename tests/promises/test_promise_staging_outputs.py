# SPDX-License-Identifier: Apache-2.0
"""Compactions and commits of a branch let go of staged entries only when the files in their place have been read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs
import pytest

from compactlib.budget import Budget
from compactlib.errors import CorruptData
from compactlib.executors import LocalExecutor, RewriteFailure, RewriteResult, RewriteTask
from compactlib.kv import MemoryStore
from compactlib.objects import LocalObjects, MemoryObjects, ObjectRef
from compactlib.observer import Observer
from compactlib.staging import AlwaysPolicy, Branch, CommittedRanges, Repository
from tests.promises.damage import Damage, damage_file, every_damage

POLICY = AlwaysPolicy(window_seconds=0)


@attrs.frozen
class DamagingExecutor:
    """Runs the task, and damages a file that it made: a range, or the metarange."""

    folder: Path
    kind: str
    damage: Damage

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteResult | RewriteFailure]:
        """See `Executor.run`."""
        before = set(self.folder.rglob("*"))
        for outcome in LocalExecutor().run(tasks, budget=budget, observer=observer):
            made = [path for path in sorted(set(self.folder.rglob("*")) - before)
                    if path.is_file() and f"/{self.kind}/" in str(path)]
            assert made
            damage_file(made[0], self.damage)
            yield outcome


def staged(folder: Path) -> tuple[Repository, Branch, dict[bytes, bytes]]:
    """A branch with a commit, and entries above it that are not committed."""
    repository = Repository(MemoryStore(), CommittedRanges(LocalObjects(folder)))
    branch = repository.create_branch("main")
    live: dict[bytes, bytes] = {}
    for number in range(200):
        if number == 100:
            branch.commit("half of them")
        key, data = b"key-%04d" % number, b"%d" % number * 30
        branch.put(key, data)
        live[key] = data
    branch.delete(b"key-0007")
    del live[b"key-0007"]
    return repository, branch, live


def assert_all_live(repository: Repository, live: dict[bytes, bytes]) -> None:
    branch = repository.branch("main")
    assert {each.key: each.record.data for each in branch.entries() if each.record is not None} == live


@pytest.mark.parametrize("kind", ["ranges", "metaranges"])
@every_damage
def test_staging_compaction_fails_by_name_when_outputs_are_damaged(tmp_path: Path, damage: Damage, kind: str) -> None:
    repository, _, live = staged(tmp_path)
    with pytest.raises(CorruptData) as found:
        repository.compact(policy=POLICY, executor=DamagingExecutor(tmp_path, kind, damage))
    assert kind in found.value.path
    assert_all_live(repository, live)
    assert not repository.compact(policy=POLICY).is_empty
    assert_all_live(repository, live)
    assert repository.verify().is_sound


@pytest.mark.parametrize("kind", ["ranges/", "metaranges/"])
@every_damage
def test_commit_fails_by_name_when_the_files_it_made_are_damaged(damage: Damage, kind: str) -> None:
    objects = DamagingObjects(kind, damage)
    repository = Repository(MemoryStore(), CommittedRanges(objects))
    branch = repository.create_branch("main")
    branch.put(b"key", b"data" * 100)
    objects.is_damaging = True
    with pytest.raises(CorruptData, match=kind):
        branch.commit("damaged")
    objects.is_damaging = False
    assert branch.get(b"key").data == b"data" * 100
    assert not branch.commit("again").is_empty
    assert branch.get(b"key").data == b"data" * 100
    assert repository.verify().is_sound


class DamagingObjects(MemoryObjects):
    """Damages chosen outputs."""

    def __init__(self, kind: str, damage: Damage) -> None:
        super().__init__()
        self.is_damaging = False
        self._kind = kind
        self._damage = damage

    def create(self, key: str, data: bytes | memoryview) -> ObjectRef:
        """See `ObjectStore.create`."""
        is_hit = self.is_damaging and key.startswith(self._kind)
        return super().create(key, self._damage(bytes(data)) if is_hit else data)
