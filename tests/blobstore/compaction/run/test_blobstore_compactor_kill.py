# SPDX-License-Identifier: Apache-2.0
"""A process that writes, compacts and erases is killed with signal 9 at random moments; nothing promised is missing."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from compactlib.blobstore import Blob, Deleted, Missing
from compactlib.outcome import Failed
from compactlib.runtime import Budget
from tests.blobstore.compaction.run.killed_compactor import content_of, open_killed, questions
from tests.blobstore.compaction_stores import plan_of, strays

ROOT = Path(__file__).parents[4]


@attrs.define
class Promised:
    """What the processes told, one after the other."""

    live: set[int] = attrs.field(factory=set)
    deleted: set[int] = attrs.field(factory=set)
    unsure: set[int] = attrs.field(factory=set)
    newest: int = 0
    compactions: int = 0

    def note(self, line: str) -> None:
        assert "Failed(" not in line, line
        word, _, number_text = line.partition(" ")
        if not number_text.isdigit():
            self.compactions += word == "compacting"
            return
        number = int(number_text)
        self.newest = max(self.newest, number)
        if word.endswith("?"):
            self.unsure.add(number)
        else:
            self.unsure.discard(number)
            self.live.add(number) if word == "put" else self.live.discard(number)
            if word == "delete":
                self.deleted.add(number)

    def judge(self, folder: Path, *, purge: bool, finish: bool) -> None:
        with open_killed(str(folder), purge=purge) as store:
            assert not store.recovery.damage, store.recovery.damage
            report = store.verify()
            assert report.is_sound, str(report)
            if finish:
                store.questions = questions()
                outcome = store.resume(budget=Budget())
                assert not isinstance(outcome, Failed), outcome
                chosen = store.snapshot().eligible()
                if chosen:
                    outcome = store.compact(plan_of(store, chosen, reference=store.clock.now()), budget=Budget())
                    assert not isinstance(outcome, Failed), outcome
                store.audit()
                assert strays(folder) == []
            for number in range(1, self.newest + 1):
                answer = store.get(f"b{number}")
                if number in self.unsure:
                    # Told before, not after: either is right, and holds from here on.
                    assert isinstance(answer, Blob | Deleted | Missing)
                    self._settle(number, answer)
                elif number in self.live:
                    assert isinstance(answer, Blob), (number, answer)
                    assert answer.content == content_of(number)
                elif number in self.deleted:
                    # Tombstones may have gone, too.
                    assert isinstance(answer, Deleted | Missing if purge else Deleted), (number, answer)
            self.unsure.clear()
            store.audit()

    def _settle(self, number: int, answer: object) -> None:
        self.live.discard(number)
        if isinstance(answer, Blob):
            assert answer.content == content_of(number)
            self.live.add(number)
        elif isinstance(answer, Deleted):
            self.deleted.add(number)


def campaign(folder: Path, kills: int, seed: int) -> Promised:
    rng = random.Random(seed)
    purge = seed % 2 == 1
    promised = Promised()
    open_killed(str(folder), purge=purge).close()
    for _ in range(kills):
        command = [sys.executable, "-m", "tests.blobstore.compaction.run.killed_compactor", str(folder),
                   str(2 * rng.randrange(1 << 30) + purge), str(promised.newest)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            told = [process.stdout.readline()]
            for _ in range(rng.randint(1, 3)):
                # Killed while it compacts, or soon after.
                while told[-1] and not told[-1].startswith(b"compacting") and b"Failed(" not in told[-1]:
                    told.append(process.stdout.readline())
                told += [process.stdout.readline() for _ in range(rng.randint(1, rng.choice((40, 400))))]
            process.send_signal(signal.SIGKILL)
            told.extend(process.stdout.readlines())
        assert process.returncode == -signal.SIGKILL, told[-3:]
        for line in told:
            if line.endswith(b"\n"):
                promised.note(line.decode().strip())
        promised.judge(folder, purge=purge, finish=rng.random() < 0.4)
    return promised


@pytest.mark.parametrize("seed", [0, 1])
def test_a_store_survives_kills_under_load_with_compaction(seed: int, tmp_path: Path) -> None:
    assert campaign(tmp_path / "store", 2, seed).compactions >= 2


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(4))
def test_soak_a_hundred_kills(seed: int, tmp_path: Path) -> None:
    campaign(tmp_path / "store", 25, 100 + seed)
