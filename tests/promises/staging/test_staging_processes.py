# SPDX-License-Identifier: Apache-2.0
"""Eight processes on one branch: each reader sees at least the last acknowledged version; nothing is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from compactlib.staging import Repository
from tests.harness.branch_processes import KEYS, ROLES, Page, check_found, name_of, open_repository
from tests.harness.kv.postgres_server import postgres


def run_eight(folder: Path, store: str, rounds: int) -> None:
    page = Page.make(folder / "page")
    kv, repo = open_repository(folder, store)
    repo.create_branch("main").put(b"first", b"1")
    repo.branch("main").commit("first")
    command = [sys.executable, "-m", "tests.harness.branch_processes", str(folder), store]
    running = [subprocess.Popen([*command, role, str(number), str(rounds)], stderr=subprocess.PIPE)
               for role, number in ROLES]
    told = [process.communicate()[1].decode() for process in running]
    assert [process.returncode for process in running] == [0] * len(ROLES), "\n".join(told)
    check_end(repo, page)
    kv.close()


def check_end(repo: Repository, page: Page) -> None:
    """The last version of each key is staged and committed unchanged, and all dropped tokens are cleaned up."""
    main = repo.branch("main")
    repo.audit()
    held = {entry.key: entry.record.data for entry in main.entries() if entry.record is not None}
    for key in range(KEYS):
        assert page.acknowledged(key) == page.begun(key) > 0
        check_found(key, held.get(name_of(key)), page.acknowledged(key), page.begun(key))
    main.commit("at the end")
    assert {key: record.data for key, record in main.head().records()} == held
    assert not main.is_dirty()
    repo.reclaim()
    assert repo.dropped_tokens() == 0


def test_eight_processes_on_one_sqlite_file(tmp_path: Path) -> None:
    run_eight(tmp_path, "sqlite", 5)


@pytest.mark.cluster
def test_eight_processes_on_postgresql(tmp_path: Path) -> None:
    with postgres() as server:
        run_eight(tmp_path, server, 15)


@pytest.mark.soak
def test_eight_processes_on_one_sqlite_file_for_long(tmp_path: Path) -> None:
    run_eight(tmp_path, "sqlite", 2000)


@pytest.mark.soak
def test_eight_processes_on_postgresql_for_long(tmp_path: Path) -> None:
    with postgres() as server:
        run_eight(tmp_path, server, 600)


def test_check_found_fails_for_a_wrong_read() -> None:
    check_found(1, b"3", 3, 4)
    check_found(1, None, 4, 5)
    check_found(1, None, 0, 0)
    for found, acknowledged, begun in ((b"2", 3, 3), (b"4", 3, 3), (None, 3, 4)):
        with pytest.raises(AssertionError):
            check_found(1, found, acknowledged, begun)
