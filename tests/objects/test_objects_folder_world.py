# SPDX-License-Identifier: Apache-2.0
"""Committers of one folder, on an object store that loses answers: the folder is what one of them has made of it."""

from __future__ import annotations

import contextlib
import math
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError, Stale
from compactlib.objects import MemoryObjects, ObjectInfo, ObjectRef, ObjectStoreFailed
from compactlib.objects.folder import WorkingCopy, contents_of
from compactlib.objects.register import ObjectRegister, Version
from tests.harness.effort import Effort
from tests.objects.test_objects_folder import folder_in, made, picture

AnswerT = TypeVar("AnswerT")
USED_SECONDS = 50.0
"""No working copy is older."""


class LosingObjects(MemoryObjects):
    """Answers get lost, of requests that were carried out or not, or are, later.

    Attributes:
        lost: how large a part of the answers.
        lasts: after so many requests all answers get lost.
        meanwhile: called once, before the request with its number.
    """

    def __init__(self, rng: random.Random, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self._rng = rng
        self.lost = 0.0
        self.lasts: float = math.inf
        self.meanwhile: tuple[int, Callable[[], object]] | None = None
        self._late: list[Callable[[], object]] = []

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Each request is answered in here."""
        before, (self.lost, self.lasts, self.meanwhile) = (self.lost, self.lasts, self.meanwhile), (0.0, math.inf, None)
        yield
        self.lost, self.lasts, self.meanwhile = before

    def _asked(self, operation: str, key: str, ask: Callable[[], AnswerT]) -> AnswerT:
        if self.meanwhile is not None:
            left, act = self.meanwhile
            self.meanwhile = (left - 1, act) if left else None
            if not left:
                with self.quiet():
                    act()
        self.lasts -= 1
        if self.lasts >= 0 and self._rng.random() >= self.lost:
            return ask()
        how = self._rng.random()
        if how < 0.4:
            with contextlib.suppress(CompactlibError):
                ask()
        elif how < 0.6:
            self._late.append(ask)
        raise ObjectStoreFailed(operation=operation, key=key, detail="no answer")

    def arrive(self) -> None:
        """What was on its way is carried out."""
        late, self._late = self._late, []
        for ask in late:
            with contextlib.suppress(CompactlibError):
                ask()

    def create(self, key: str, data: bytes | memoryview) -> ObjectRef:
        return self._asked("create", key, lambda: MemoryObjects.create(self, key, data))

    def get(self, key: str) -> bytes:
        return self._asked("get", key, lambda: MemoryObjects.get(self, key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._asked("get_range", key, lambda: MemoryObjects.get_range(self, key, start, length))

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ObjectInfo]:
        return self._asked("list", prefix, lambda: MemoryObjects.list(self, prefix, after=after))

    def delete(self, key: str) -> None:
        self._asked("delete", key, lambda: MemoryObjects.delete(self, key))


def change(folder: Path, rng: random.Random) -> None:
    """Do something to what is in a folder."""
    paths = sorted(folder.rglob("*"))
    ordinary = [path for path in paths if path.is_file() and not path.is_symlink()]
    folders = [folder, *(path for path in paths if path.is_dir() and not path.is_symlink())]
    place = rng.choice(folders) / rng.choice(("x", "y", "z.big", "w.big"))
    kind = rng.choice(("write", "rename", "change", "remove", "make", "link", "remove folder"))
    if kind == "write":
        place.unlink(missing_ok=True)
        place.write_bytes(rng.randbytes(rng.randrange(12)))
    elif kind == "rename" and ordinary:
        rng.choice(ordinary).rename(place)
    elif kind == "change" and ordinary:
        with rng.choice(ordinary).open("r+b") as file:
            file.write(rng.randbytes(2))
    elif kind == "remove" and ordinary:
        rng.choice(ordinary).unlink()
    elif kind == "make" and len(folders) < 5:
        (place.parent / "more").mkdir(exist_ok=True)
    elif kind == "link":
        place.unlink(missing_ok=True)
        place.symlink_to("a.big")
    elif kind == "remove folder" and len(folders) > 1:
        shutil.rmtree(rng.choice(folders[1:]))


def number_of(version: Version | None) -> int:
    return 0 if version is None else version.number


class Committers:
    """Some working copies of one folder.

    Args:
        scratch: where they are.
        rng: chooses everything.
    """

    def __init__(self, scratch: Path, rng: random.Random) -> None:
        self._scratch, self._rng, self._clock = scratch, rng, ManualClock(1000.0)
        self.objects = LosingObjects(rng, self._clock)
        self._copies: list[tuple[WorkingCopy, float]] = []
        self._made = 0
        folder_in(self.objects).put(made(scratch / "source"))

    def _fetched(self) -> WorkingCopy:
        self._made += 1
        return folder_in(self.objects).fetch(self._scratch / f"{self._made}")

    def found(self) -> tuple[Version | None, dict[str, object]]:
        """What the folder is."""
        with self.objects.quiet():
            copy = self._fetched()
        found = copy.version, picture(Path(copy.folder))
        shutil.rmtree(copy.folder)
        return found

    def step(self) -> None:
        """Do one thing on a store that loses some answers."""
        self._clock.advance(self._rng.choice((1.0, 1.0, 1.0, 30.0)))
        self._copies = [each for each in self._copies if each[1] > self._clock.now() - USED_SECONDS]
        before = self.found()
        self.objects.lost = self._rng.choice((0.0, 0.0, 0.05, 0.2, 0.5))
        act = self._rng.choice((self._fetch, self._fetch, self._commit, self._commit, self._commit, self._reclaim))
        try:
            act(before)
        except ObjectStoreFailed:
            assert act != self._commit
            assert self.found() == before
        self.objects.lost = 0.0
        self.objects.arrive()

    def _fetch(self, before: tuple[Version | None, dict[str, object]]) -> None:
        began = self._clock.now()
        copy = self._fetched()
        assert (copy.version, picture(Path(copy.folder))) == before
        self._copies.append((copy, began))

    def _reclaim(self, before: tuple[Version | None, dict[str, object]]) -> None:
        folder_in(self.objects).reclaim(now=self._clock.now(), older_than_seconds=USED_SECONDS)
        assert self.found() == before

    def _commit(self, before: tuple[Version | None, dict[str, object]]) -> None:
        if not self._copies:
            return
        (mine, _), (other, _) = (self._rng.choice(self._copies) for _ in range(2))
        change(Path(mine.folder), self._rng)
        wanted, based = picture(Path(mine.folder)), mine.version
        others: list[Version] = []
        if other is not mine:
            change(Path(other.folder), self._rng)

            def commit() -> None:
                with contextlib.suppress(Stale):
                    version = folder_in(self.objects).commit(other)
                    others.extend([version] if version.number > number_of(before[0]) else [])

            self.objects.meanwhile = self._rng.randrange(12), commit
        self.objects.lasts = self._rng.choice((math.inf, math.inf, self._rng.randrange(12)))
        told: CompactlibError | None = None
        try:
            folder_in(self.objects).commit(mine)
        except (ObjectStoreFailed, Stale) as error:
            told = error
        self.objects.lost, self.objects.lasts, self.objects.meanwhile = 0.0, math.inf, None
        self._judge(before, told, mine, wanted, based, (other, others))

    def _judge(self, before: tuple[Version | None, dict[str, object]], told: CompactlibError | None, mine: WorkingCopy,
               wanted: dict[str, object], based: Version | None, beside: tuple[WorkingCopy, list[Version]]) -> None:
        found, (other, others) = self.found(), beside
        if others:
            assert found == (others[0], picture(Path(other.folder)))
            assert number_of(mine.version) <= number_of(before[0]), "both have committed"
        elif told is None:
            self._require_there(before, mine, wanted)
        elif isinstance(told, Stale):
            assert based != before[0]
            assert found == before
        else:
            assert found == before or (mine.version == before[0] and found[1] == wanted)
            is_outdated = mine.version != before[0]
            # Asked again, it says what there is, also if that comes only now.
            self.objects.meanwhile = self._rng.randrange(8), self.objects.arrive
            try:
                assert folder_in(self.objects).commit(mine) == mine.version
            except Stale:
                assert is_outdated
                assert self.found() == found
            else:
                self.objects.meanwhile = None
                self._require_there(found, mine, wanted)

    def _require_there(self, before: tuple[Version | None, dict[str, object]], mine: WorkingCopy,
                       wanted: dict[str, object]) -> None:
        """What was committed is the folder, or it was before another has changed it."""
        found = self.found()
        assert found == (before if number_of(mine.version) < number_of(before[0]) else (mine.version, wanted))

    def end(self) -> None:
        """With nothing left that no version names."""
        last = self.found()
        for _ in range(2):
            self._clock.advance(1000.0)
            folder_in(self.objects).reclaim(now=self._clock.now(), older_than_seconds=USED_SECONDS)
        versions = ObjectRegister(self.objects, "stores/one/manifest").versions()
        assert len(versions) <= 2
        assert {info.key for info in self.objects.list("stores/one/files/")} == {
            part.key for version in versions for file in contents_of(version, "").files.values() for part in file.parts}
        assert self.found() == last


def test_committers_of_one_folder_lose_nothing_of_each_others(effort: Effort) -> None:
    for seed in range(effort(5, 1_500)):
        with tempfile.TemporaryDirectory() as scratch:
            world = Committers(Path(scratch), random.Random(seed))
            for _ in range(25):
                world.step()
            world.end()
            assert not [name for name in os.listdir(scratch) if name.startswith("compactlib")]
