# SPDX-License-Identifier: Apache-2.0
"""Term and vote of a member: durable before they are answered, moving forward only, and never taken for none."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest

from compactlib.errors import (
    Closed,
    CompactlibError,
    Conflict,
    CorruptData,
    InvalidInput,
    Stale,
    StorageError,
    Unsupported,
)
from compactlib.files import LocalFiles, OutFile
from compactlib.files.checksum import crc32
from compactlib.files.disk import StrPath
from compactlib.raftlog import LogReader, RaftLogStore, open_log
from compactlib.raftlog.hard_state import HardState, read_hard_state
from compactlib.testing import RecordingFiles, explore_crashes, record
from tests.harness.effort import Effort
from tests.harness.failing_files import FailingFiles
from tests.harness.raft_world import store_options
from tests.raftlog.raft_host import SMALL, reopened, rows
from tests.raftlog.wrapped_files import WatchedFiles

GOLDEN = Path(__file__).parents[2] / "promises" / "golden" / "raftlog" / "HARD_STATE"
PAGE = Path(__file__).parents[3] / "docs" / "formats" / "raftlog-snapshot.md"


def test_term_and_vote_are_there_again_after_opening(tmp_path: Path) -> None:
    log = open_log(tmp_path, SMALL)
    assert log.hard_state == HardState(0, None)
    assert log.record_hard_state(3) == HardState(3)
    for name in ("b", "b", None):
        assert log.record_hard_state(3, name) == HardState(3, "b")
    log = reopened(log)
    assert log.hard_state == HardState(3, "b")
    log.append_entries(0, 0, rows(1, 20, 3))
    log.snapshot(15, ())
    assert log.record_hard_state(9) == HardState(9)
    log.flush()
    log.compact(policy=log.policy)
    log = reopened(log)
    assert log.hard_state == HardState(9)
    assert log.verify().is_sound
    log.close()
    with pytest.raises(Closed):
        log.record_hard_state(10)


def test_neither_goes_back(tmp_path: Path) -> None:
    with open_log(tmp_path, SMALL) as log:
        log.record_hard_state(5, "a")
        with pytest.raises(Conflict, match="has voted for 'a' in term 5, and cannot vote for 'b' too"):
            log.record_hard_state(5, "b")
        with pytest.raises(Stale, match="term 4 is over: this member knows term 5"):
            log.record_hard_state(4, "b")
        for term, name in ((-1, None), (2**64, None), (6, ""), (6, "x" * 256), (6, b"a"), (6, "\udc80")):
            with pytest.raises(InvalidInput):
                log.record_hard_state(term, name)  # type: ignore[arg-type]  # as a host may pass
        with pytest.raises(InvalidInput, match="'six'"):
            log.record_hard_state("six")  # type: ignore[arg-type]
        assert log.hard_state == HardState(5, "a")
        assert log.record_hard_state(6, "ü" * 127).voted_for == "ü" * 127


def test_closing_waits_for_a_vote_that_is_being_recorded(tmp_path: Path) -> None:
    """Else the next owner votes for another, and then the first vote takes the place of the second."""
    done: list[str] = []

    class Closing(LocalFiles):
        def create(self, path: StrPath) -> OutFile:
            if os.path.basename(path).startswith("HARD_STATE"):
                closer.start()
                # As far as it gets while this waits.
                closer.join(0.2)
                done.append("closed" if not closer.is_alive() else "waits")
            return super().create(path)

    log = open_log(tmp_path, attrs.evolve(SMALL, log=attrs.evolve(SMALL.log, files=Closing())))
    closer = threading.Thread(target=log.close)
    assert log.record_hard_state(5, "a") == HardState(5, "a")
    closer.join()
    assert done == ["waits"]
    with open_log(tmp_path, SMALL) as again, pytest.raises(Conflict):
        again.record_hard_state(5, "b")


def test_each_log_has_its_own_vote_which_is_removed_with_it(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, SMALL) as store:
        store.log("one").record_hard_state(4, "a")
        store.log("two").record_hard_state(7)
        store.log("one").close()
        assert store.log("one").hard_state == HardState(4, "a")
    with RaftLogStore(tmp_path, SMALL) as store:
        assert [store.log(name).hard_state for name in ("one", "two", "three")] == [
            HardState(4, "a"), HardState(7), HardState()]
        store.remove("one")
        assert store.log("one").hard_state == HardState()


def test_of_many_candidates_at_once_one_gets_the_vote(tmp_path: Path) -> None:
    with open_log(tmp_path, SMALL) as log:
        begin, given = threading.Barrier(4), []

        def ask(name: str) -> None:
            begin.wait()
            try:
                log.record_hard_state(1, name)
                given.append(name)
            except Conflict:
                pass

        threads = [threading.Thread(target=ask, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert given == [log.hard_state.voted_for]


def test_the_bytes_are_those_of_the_page_and_of_every_release(tmp_path: Path) -> None:
    with open_log(tmp_path, SMALL) as log:
        log.record_hard_state(7, "node-b")
    assert (tmp_path / "logs/log/HARD_STATE").read_bytes() == GOLDEN.read_bytes()
    after = PAGE.read_text().partition("test_raftlog_hard_state.py reads this block -->\n```hex\n")[2]
    block = after.partition("```")[0]
    assert bytes.fromhex("".join(line[4:] for line in block.splitlines())) == GOLDEN.read_bytes()
    assert read_hard_state(GOLDEN.parent) == HardState(7, "node-b")


def test_damage_anywhere_is_refused_by_name_for_one_log_alone(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path / "store", SMALL) as store:
        store.log("a").append_entries(0, 0, rows(1, 5))
        store.log("a").record_hard_state(7, "node-b")
        store.log("b").append_entries(0, 0, rows(1, 5))
    path = tmp_path / "store/logs/a/HARD_STATE"
    whole = path.read_bytes()
    damaged = [bytes(byte ^ (1 << bit if number == place else 0) for number, byte in enumerate(whole))
               for place in range(len(whole)) for bit in range(8)]
    damaged += [whole[:size] for size in range(len(whole))]
    # Whole, by its checksum, and yet no name.
    for text in (b'{"term":-1}', b'{"term":7,"voted_for":"%s"}' % (b"x" * 256), b'{"term":7,"vote":"b"}'):
        body = whole[:10] + text
        damaged.append(body + crc32(body).to_bytes(4, "little"))
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(CorruptData, match="HARD_STATE"):
            read_hard_state(path.parent)
    with LogReader(path.parent) as reader:
        assert [finding.kind for finding in reader.verify().findings] == ["damage"]
    for _ in range(2):
        with RaftLogStore(tmp_path / "store", SMALL) as store:
            with pytest.raises(CorruptData, match="HARD_STATE"):
                store.log("a")
            assert store.status().damaged == ("a",)
            assert "HARD_STATE" in str(store.verify().findings[0])
            store.log("b").append(rows(store.log("b").last_index + 1, store.log("b").last_index + 1))
            store.flush()
    later = whole[:8] + b"\x03" + whole[9:-4]
    path.write_bytes(later + crc32(later).to_bytes(4, "little"))
    with RaftLogStore(tmp_path / "store", SMALL) as store, \
            pytest.raises(Unsupported, match="hard state version 3; this release reads 1: upgrade"):
        store.log("a")
    path.write_bytes(whole)
    with RaftLogStore(tmp_path / "store", SMALL) as store:
        assert store.log("a").hard_state == HardState(7, "node-b")
        assert len(list(store.log("a").entries())) == 5


LIFE: list[tuple[int, str | None]] = [(1, "a"), (2, None), (2, "b"), (5, None), (6, "c")]


def test_a_crash_at_every_step_keeps_the_answered_vote_or_the_next(tmp_path: Path, effort: Effort) -> None:
    def run(inside: Path, files: RecordingFiles) -> None:
        with open_log(inside / "store", store_options(files)) as log:
            for place, (term, name) in enumerate(LIFE):
                log.append(rows(place * 3, place * 3 + 2, term))
                log.record_hard_state(term, name)
                files.acknowledge(place)

    def check(found: Path, acknowledged: Sequence[object]) -> None:
        if not (found / "store").exists():
            assert not acknowledged
            return
        answered = int(str(acknowledged[-1])) if acknowledged else -1
        states = [HardState(), *(HardState(*each) for each in LIFE)]
        with open_log(found / "store", store_options()) as log:
            assert log.hard_state in states[answered + 1:answered + 3]
            assert not list((found / "store/logs/log").glob("*.tmp"))
            assert log.record_hard_state(9, "d") == HardState(9, "d")

    explore_crashes(record(tmp_path, run), check, seed=1, limit_per_point=effort(3, 40))


def test_a_disk_that_refuses_any_step_gives_no_vote_that_is_forgotten(tmp_path: Path) -> None:
    def live(folder: Path, files: FailingFiles) -> HardState:
        """The last that was answered."""
        answered = HardState()
        try:
            with open_log(folder, store_options(files)) as log:
                for term, name in LIFE:
                    answered = log.record_hard_state(term, name)
                    assert log.hard_state == answered
        except CompactlibError as error:
            assert isinstance(error, StorageError)
        return answered

    counting = FailingFiles()
    live(tmp_path / "count", counting)
    for fail_at in range(1, counting.count + 1):
        for sticky in (False, True):
            folder = tmp_path / f"{fail_at}-{sticky}"
            answered = live(folder, FailingFiles(fail_at=fail_at, errno=errno.EIO, sticky=sticky, short_write=True))
            with open_log(folder, store_options()) as log:
                found = log.hard_state
                assert found.term >= answered.term
                assert found.term > answered.term or answered.voted_for in (None, found.voted_for)


def test_a_compaction_that_removes_leftovers_keeps_the_vote(tmp_path: Path) -> None:
    """It removed the file that was about to take its place, and the member's vote failed."""
    cleared: list[str] = []

    def meanwhile(operation: str, path: str) -> None:
        if operation == "rename" and path.endswith("HARD_STATE"):
            cleared.append(type(log.reclaim()).__name__)

    options = attrs.evolve(SMALL, log=attrs.evolve(SMALL.log, files=WatchedFiles(meanwhile)))
    with open_log(tmp_path, options) as log:
        log.append_entries(0, 0, rows(1, 40))
        log.flush()
        log.snapshot(38, ())
        for term in range(1, 4):
            log.record_hard_state(term, "a")
            log.compact(policy=log.policy)
    assert len(cleared) == 3
    with open_log(tmp_path, SMALL) as log:
        assert log.hard_state == HardState(3, "a")


def test_leftovers_of_a_vote_are_removed_at_opening(tmp_path: Path) -> None:
    with open_log(tmp_path, SMALL) as log:
        log.record_hard_state(3, "a")
    left = tmp_path / "logs/log/HARD_STATE.tmp"
    left.write_bytes(GOLDEN.read_bytes()[:10])
    with open_log(tmp_path, SMALL) as log:
        assert not left.exists()
        assert log.hard_state == HardState(3, "a")
