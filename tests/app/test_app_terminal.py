# SPDX-License-Identifier: Apache-2.0
"""What a person sees: progress bars and tables that fit on a terminal, and neither where there is none."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path

import pytest

from compactlib.app.terminal import megabytes, show_table
from compactlib.report import Table
from tests.app.log_folders import ROOT, compactlib_process, make_log

NO_TQDM = "sys.modules['tqdm'] = sys.modules['tqdm.auto'] = None"


def on_terminal(*arguments: str | Path, columns: int = 80, before: str = "") -> str:
    """What a terminal of so many columns is sent by the console script, stdout and stderr together."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    with subprocess.Popen(compactlib_process(*arguments, before=before), cwd=ROOT, stdin=theirs, stdout=theirs,
                          stderr=theirs) as process:
        os.close(theirs)
        said = b""
        # Linux answers with an error when nobody holds the other end any more.
        try:
            while piece := os.read(ours, 65536):
                said += piece
        except OSError:
            pass
    os.close(ours)
    assert process.returncode == 0, said.decode()
    return said.decode().replace("\r\n", "\n")


def test_a_compaction_shows_its_progress_and_then_its_table(tmp_path: Path) -> None:
    said = on_terminal("compact", "--policy", "seed", make_log(tmp_path / "log"))
    assert re.search(r"compact\s+0% \|\s+\| 0 of 1 groups", said)
    assert re.search(r"compact\s+100% \|█+\| 1 of 1 groups, \d\d:\d\d\n", said)
    assert said.index("100%") < said.index("dropped    5")


def test_without_tqdm_there_is_no_bar_and_everything_else(tmp_path: Path) -> None:
    said = on_terminal("compact", "--policy", "seed", make_log(tmp_path / "log"), before=NO_TQDM)
    assert "% |" not in said
    assert "dropped    5" in said


def test_waiting_is_shown_and_taken_back(tmp_path: Path) -> None:
    said = on_terminal("verify", make_log(tmp_path / "log"))
    assert "verifying ...\r\x1b[K" in said


@pytest.mark.parametrize("columns", [100, 120, 160])
def test_tables_fit_the_terminal_and_say_where_they_were_cut(tmp_path: Path, columns: int) -> None:
    lines = on_terminal("plan", make_log(tmp_path / "log"), columns=columns).splitlines()
    assert max(map(len, lines)) <= columns
    assert any(line.startswith("keep    8 ") for line in lines)
    assert any(line.endswith("…") for line in lines) is (columns < 160)


def test_a_terminal_of_unknown_width_gets_a_table_too(tmp_path: Path) -> None:
    lines = on_terminal("plan", make_log(tmp_path / "log"), columns=0).splitlines()
    assert len(lines[0]) > 60
    assert any(line.startswith("keep    8 ") for line in lines)


def test_where_there_is_no_terminal_nothing_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(("number", "reason"), tuple((number, "long " * 50) for number in range(500)), "title")
    show_table(table)
    out = capsys.readouterr().out
    assert out.startswith("title\nnumber  reason\n")
    assert out.count("long " * 49 + "long\n") == 500


def test_sizes_in_megabytes() -> None:
    assert megabytes(1_234_567_890) == "1,234.6 MB"
