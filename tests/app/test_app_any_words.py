# SPDX-License-Identifier: Apache-2.0
"""Any words on the command line, over each kind of store and over what is none: a code, and a line that says why."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path

import pytest

from compactlib.app.cli import main
from compactlib.app.kinds import KINDS
from compactlib.kv import SqliteStore
from tests.app.test_app_kinds import MAKERS
from tests.harness.effort import Effort

NO_TEXT = os.fsdecode(b"\xff\xfe")
WORDS = ("main", "x", "", NO_TEXT, "a" * 1000, "staging/main", "staging/" + NO_TEXT, "é", "scheduler", "\n")
NUMBERS = ("0", "1", "2", "-1", "1e300", "nan", "inf", "9" * 120, "1__0", "1." + "9" * 400, "64MB", "5000")
OPTIONS = {"--partition": WORDS, "--branch": WORDS, "--retention": NUMBERS, "--max-bytes": NUMBERS,
           "--rate": ("0", "-1", "nan", "9" * 120, "64MB"),
           "--workers": ("0", "1", "-1", "x"), "--executor": ("local", "x"),
           "--policy": (*(policy for kind in KINDS for policy in kind.policies), "x")}
OF_A_PLAN = ("--partition", "--branch", "--retention", "--policy")
OF_A_COMMAND = {"inspect": OF_A_PLAN[:1], "verify": OF_A_PLAN[:1], "plan": OF_A_PLAN,
                "why": OF_A_PLAN, "compact": (*OPTIONS,)}


def places(folder: Path) -> list[str]:
    """Every kind of store under a name with a space, and what is no store at all."""
    found = []
    for number, make in enumerate(MAKERS.values()):
        (folder / f"{number} ü").mkdir()
        found.append(str(make(folder / f"{number} ü")))
    os.mkfifo(folder / "pipe")
    os.symlink("loop", folder / "loop")
    (folder / "empty").mkdir()
    (folder / "damaged").write_bytes(b"SQLite format 3\0" + bytes(100))
    strange = os.fspath(folder) + "/" + NO_TEXT
    with contextlib.closing(SqliteStore(strange)) as store:
        for partition in (b"staging/\xff", b"\xff", b"staging/"):
            store.set(partition, b"key", b"value")
    return [*found, *found, *(str(folder / name) for name in ("pipe", "loop", "empty", "damaged", "nowhere")), strange,
            str(folder), "/dev/null", "s3://bucket/key", "x" * 5000]


def test_any_words_end_in_an_exit_code_and_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                  effort: Effort) -> None:
    rng, paths, codes = random.Random(1), places(tmp_path), set()
    for _ in range(effort(400, 40_000)):
        command = rng.choice(list(OF_A_COMMAND))
        words = [command, rng.choice(paths), *(["--json"] if rng.random() < 0.4 else [])]
        known = OF_A_COMMAND[command]
        for option in rng.sample(known, rng.randint(0, min(2, len(known)))):
            words += [option, rng.choice(OPTIONS[option])]
        try:
            code: object = main(words)
        except SystemExit as exit_code:
            code = exit_code.code
        said = capsys.readouterr().err
        codes.add(code)
        assert code in (0, 1, 2), words
        if code == 2:
            assert said.startswith("usage: ") or (said.startswith("compactlib: ") and said.count("\n") == 1), words
    assert {0, 2} <= codes
