# SPDX-License-Identifier: Apache-2.0
"""The durable command log of one node: order, terms, replay, shared syncs, crashes, a disk that refuses."""

from __future__ import annotations

import contextlib
import errno
import random
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import Busy, Closed, CompactlibError, CorruptData, InvalidInput, StorageError, Unsupported
from compactlib.files import Files
from compactlib.hosting import LocalLog, LogBroken, NotStarted, SchedulerHost
from compactlib.hosting.errors import OutOfStep
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog import LogReader, SegmentLog
from compactlib.runtime import RecordingObserver
from compactlib.scheduler import Command
from compactlib.testing import RecordingFiles, explore_crashes, explore_recovery, record
from tests.hosting.local_logs import opened, options
from tests.hosting.machines import Journal
from tests.raftlog.wrapped_files import WatchedFiles
from tests.tools.faults.plan import FailingFiles


def test_commands_have_their_place_their_term_and_their_time(tmp_path: Path) -> None:
    clock = ManualClock(1000.25)
    log, machine = opened(tmp_path / "log", clock=clock)
    assert log.propose(b"one") == (2, b"one")
    clock.advance(0.5)
    assert log.propose(b"") == (3, b"")
    assert machine.commands == [(Command(2, 1, 1000.25), b"one"), (Command(3, 1, 1000.75), b"")]
    assert (log.first_index, log.last_index, log.durable_index, log.term) == (1, 3, 3, 1)
    log.close()


def test_a_replay_gives_the_very_same_commands_and_each_opening_a_new_term(tmp_path: Path) -> None:
    clock = ManualClock(1763724000.123456)
    before: list[tuple[Command, bytes]] = []
    for term in range(1, 5):
        log, machine = opened(tmp_path / "log", clock=clock)
        assert machine.commands == before
        assert log.term == term
        for number in range(3):
            clock.advance(0.1)
            log.propose(b"%d-%d" % (term, number))
        assert {command.term for command, _ in machine.commands[-3:]} == {term}
        before = list(machine.commands)
        log.close()
    # A machine that stands somewhere in between gets the rest.
    log, machine = opened(tmp_path / "log", Journal(before[:5]))
    assert machine.commands == before
    log.close()


def test_what_is_decided_is_carried_out_at_the_place_where_it_was_decided(tmp_path: Path) -> None:
    log, machine = opened(tmp_path / "log")
    log.propose(b"first")

    def make(command: Command) -> bytes | None:
        assert command.index == machine.applied_index + 1
        return b"%d commands before" % len(machine.commands)

    assert log.decide(make) == (3, b"1 commands before")
    assert log.decide(lambda command: None) is None
    assert log.last_index == 3, "no command, no place"
    with pytest.raises(ZeroDivisionError):
        log.decide(lambda command: b"%d" % (1 // 0))
    assert log.propose(b"last") == (4, b"last")
    log.close()


def test_threads_get_places_without_gaps_and_share_syncs(tmp_path: Path) -> None:
    gate, holding = threading.Event(), threading.Event()

    def hold(operation: str, path: str) -> None:
        if operation == "sync" and holding.is_set():
            assert gate.wait(60)

    observer = RecordingObserver()
    log, machine = opened(tmp_path / "log", files=WatchedFiles(hold), observer=observer)
    holding.set()
    answers: list[tuple[int, bytes]] = []
    threads = [threading.Thread(target=lambda number=number: answers.append(log.propose(b"%d" % number)))
               for number in range(20)]
    for thread in threads:
        thread.start()
    while len(machine.commands) < 20:
        threading.Event().wait(0.001)
    assert answers == [], "nothing is durable yet"
    gate.set()
    for thread in threads:
        thread.join(60)
    assert sorted(answers) == [(command.index, payload) for command, payload in machine.commands]
    assert [index for index, _ in sorted(answers)] == list(range(2, 22))
    counted = {name: value for (name, _), value in observer.counters.items()}
    assert counted["command_log_commands"] == 20
    assert counted["command_log_syncs"] <= 3, "each thread had a sync of its own"
    log.close()


def test_a_snapshot_lets_the_log_forget(tmp_path: Path) -> None:
    log, machine = opened(tmp_path / "log")
    for number in range(20):
        log.propose(b"%d" % number)
    outcome = log.compact(15)
    assert isinstance(outcome, Done)
    assert log.first_index == 16
    kept = list(machine.commands)
    log.close()
    with LogReader(tmp_path / "log") as reader:
        assert len(reader.refs) == 3, "segments of three entries: 13-15 for the last term, 16-18, 19-21"
    log, machine = opened(tmp_path / "log", Journal(kept[:14]))
    assert machine.commands == kept
    assert isinstance(log.compact(15), Skipped)
    with pytest.raises(InvalidInput, match="durable are those up to 22"):
        log.compact(23)
    log.close()


def test_terms_grow_even_when_everything_was_forgotten(tmp_path: Path) -> None:
    known: list[tuple[Command, bytes]] = []
    for term in range(1, 6):
        log, machine = opened(tmp_path / "log", Journal(known))
        assert log.term == term
        log.propose(b"x")
        known = list(machine.commands)
        log.compact(log.last_index)
        assert log.first_index == log.last_index + 1
        log.close()


def test_a_machine_that_the_log_does_not_continue_is_refused(tmp_path: Path) -> None:
    log, machine = opened(tmp_path / "log")
    for number in range(10):
        log.propose(b"%d" % number)
    log.compact(5)
    commands = list(machine.commands)
    log.close()
    for known in (0, 3):
        with pytest.raises(OutOfStep, match=r"the log holds 6 to 1\d") as refused:
            opened(tmp_path / "log", Journal(commands[:known]))
        assert (refused.value.applied_index, refused.value.first_index) == (known and known + 1, 6)
    with pytest.raises(OutOfStep):
        opened(tmp_path / "log", Journal([(Command(99, 1, 0.0), b"from another log")]))
    log, machine = opened(tmp_path / "log", Journal(commands[:4]))
    assert machine.commands == commands
    log.close()


def test_wrong_use_is_named(tmp_path: Path) -> None:
    log = LocalLog(tmp_path / "log", options())
    with pytest.raises(NotStarted):
        log.propose(b"x")
    with pytest.raises(Busy):
        LocalLog(tmp_path / "log", options())
    log.start(Journal())
    with pytest.raises(InvalidInput, match="started before"):
        log.start(Journal())
    with pytest.raises(InvalidInput, match="at most 67108864"):
        log.propose(bytes((64 << 20) + 1))
    assert log.propose(b"fine") == (2, b"fine")
    assert repr(log) == f"LocalLog({str(tmp_path / 'log')!r}, 1 to 2, term 1)"
    log.close()
    log.close()
    for call in (lambda: log.propose(b"x"), lambda: log.compact(1), lambda: log.start(Journal())):
        with pytest.raises(Closed):
            call()


def test_a_machine_that_raises_breaks_the_log_and_a_restored_one_goes_on(tmp_path: Path) -> None:
    class Moody(Journal):
        def apply(self, command: Command, payload: bytes) -> tuple[int, bytes]:
            if payload == b"bad":
                raise ZeroDivisionError
            return super().apply(command, payload)

    log, _ = opened(tmp_path / "log", Moody())
    log.propose(b"good")
    with pytest.raises(LogBroken, match=r"raised ZeroDivisionError\(\) at command 3") as broken:
        log.propose(b"bad")
    assert broken.value.durable_index == 2
    with pytest.raises(LogBroken):
        log.propose(b"good")
    log.close()
    log, machine = opened(tmp_path / "log")
    assert machine.payloads == [b"good"]
    log.close()


# -- damage

def written(folder: Path, entries: Sequence[tuple[int, int, bytes]]) -> None:
    with SegmentLog(folder) as log:
        log.extend(entries)
        log.sync()


@pytest.mark.parametrize(("entries", "error", "told"), [
    ([(1, 1, b"\x02" + bytes(8)), (2, 1, b"\x07" + bytes(8))], Unsupported, "of kind 7"),
    ([(1, 1, b"\x02" + bytes(8)), (2, 1, b"\x01")], CorruptData, "at least 9 bytes, found 1 bytes"),
    ([(1, 1, b"\x02" + bytes(8)), (4, 1, b"\x01" + bytes(8))], CorruptData, "expected entry 2, found entry 4"),
])
def test_entries_that_cannot_be(tmp_path: Path, entries: list[tuple[int, int, bytes]], error: type[CompactlibError],
                                told: str) -> None:
    written(tmp_path / "log", entries)
    with pytest.raises(error, match=told):
        opened(tmp_path / "log")


def test_the_stored_bytes_are_as_documented(tmp_path: Path) -> None:
    log, _ = opened(tmp_path / "log", clock=ManualClock(1.5))
    log.propose(b"payload")
    log.close()
    with LogReader(tmp_path / "log") as reader:
        stored = [(entry.index, entry.term, entry.payload) for entry in reader.entries()]
    time_ns = bytes.fromhex("0000000059682f00")
    assert stored == [(1, 1, b"\x02" + time_ns), (2, 1, b"\x01" + time_ns + b"payload")]


def test_a_damaged_byte_is_never_a_wrong_command(memory_path: Path) -> None:
    log, machine = opened(memory_path / "log")
    for number in range(5):
        log.propose(b"command %d" % number)
    wanted = machine.payloads
    log.close()
    paths = sorted((memory_path / "log").glob("*.segment"))
    rng = random.Random(5)
    for _ in range(150):
        path = rng.choice(paths)
        sound = path.read_bytes()
        damaged = bytearray(sound)
        damaged[rng.randrange(len(sound))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        machine = Journal()
        try:
            with LocalLog(memory_path / "log", options()) as log:
                log.start(machine)
        except CompactlibError:
            pass
        # Of the newest segment the end may be taken for a torn write, and cut; all that is left is right.
        assert machine.payloads == wanted[:len(machine.payloads)]
        for left in (memory_path / "log").glob("*"):
            if left not in paths:
                left.unlink()
        path.write_bytes(sound)
        for other in paths:
            assert other.exists()


# -- crashes and failing disks

def life(folder: Path, files: Files, known: list[tuple[Command, bytes]] | None = None) -> Iterator[bytes]:
    """Two openings with commands and a compaction in between; yields each payload once it is acknowledged."""
    machine = Journal(known)
    snapshot: list[tuple[Command, bytes]] = []
    for opening in range(2):
        log, machine = opened(folder, Journal(snapshot or known), files=files)
        try:
            for number in range(4):
                payload = b"%d-%d" % (opening, number)
                log.propose(payload)
                yield payload
            snapshot = list(machine.commands)
            log.compact(machine.applied_index)
        finally:
            log.close()


def everything(folder: Path) -> list[bytes]:
    """All payloads, those that were compacted away included, as a machine with the right snapshot would have them."""
    all_of_them = [(index, b"%d-%d" % (opening, number))
                   for opening, first in ((0, 2), (1, 7)) for number, index in enumerate(range(first, first + 4))]
    log = LocalLog(folder, options())
    try:
        known = [(Command(index, 1, 0.0), payload) for index, payload in all_of_them if index < log.first_index]
        machine = Journal(known)
        log.start(machine)
        assert log.propose(b"goes on") == (log.last_index, b"goes on")
    finally:
        log.close()
    return machine.payloads


def check(folder: Path, acknowledged: Sequence[bytes]) -> None:
    *found, last = everything(folder)
    assert last == b"goes on"
    wanted = [b"%d-%d" % (opening, number) for opening in range(2) for number in range(4)]
    assert found == wanted[:len(found)]
    assert len(found) >= len(acknowledged)


def recorded(folder: Path) -> Any:
    def work(place: Path, files: RecordingFiles) -> None:
        for payload in life(place / "log", files):
            files.acknowledge(payload)

    folder.mkdir()
    return record(folder, work)


def test_crash_at_every_step(memory_path: Path) -> None:
    recording = recorded(memory_path / "work")
    checked = explore_crashes(recording, lambda folder, told: check(folder / "log", told), limit_per_point=16)
    assert checked > 50


def test_no_term_comes_twice_whatever_crashes(memory_path: Path) -> None:
    def work(place: Path, files: RecordingFiles) -> None:
        for _ in range(2):
            log, _ = opened(place / "log", files=files)
            files.acknowledge(log.term)
            log.close()

    def check_terms(folder: Path, told: Sequence[int]) -> None:
        log, _ = opened(folder / "log")
        log.close()
        assert log.term > max(told, default=0)

    (memory_path / "work").mkdir()
    explore_crashes(record(memory_path / "work", work), check_terms, limit_per_point=16)


def test_crash_at_every_step_of_the_recovery_from_a_crash(memory_path: Path) -> None:
    def recover(folder: Path, files: Files) -> None:
        with LocalLog(folder / "log", options(files=files)) as log:
            log.start(Journal([(Command(index, 1, 0.0), b"") for index in range(2, log.first_index)]))

    checked = explore_recovery(recorded(memory_path / "work"), recover, lambda folder, told: check_mixed(folder, told),
                              limit_per_point=3)
    assert checked > 50


def check_mixed(folder: Path, acknowledged: Sequence[bytes]) -> None:
    """As `check`; the openings of the recovery shift the places of what follows, so only the order is compared."""
    log = LocalLog(folder / "log", options())
    try:
        machine = Journal([(Command(log.first_index - 1, 1, 0.0), b"snapshot")] if log.first_index > 1 else [])
        covered = log.first_index - 1
        log.start(machine)
    finally:
        log.close()
    found = [payload for payload in machine.payloads if payload != b"snapshot"]
    wanted = [b"%d-%d" % (opening, number) for opening in range(2) for number in range(4)]
    first = wanted.index(found[0]) if found else len(wanted)
    assert found == wanted[first:first + len(found)]
    if not covered:
        assert found[:len(acknowledged)] == list(acknowledged)[:len(found)]
        assert len(found) >= len(acknowledged)


@pytest.mark.parametrize(("number", "sticky"), [(errno.ENOSPC, True), (errno.ENOSPC, False), (errno.EIO, False)])
def test_a_disk_that_refuses_at_every_step(memory_path: Path, number: int, sticky: bool) -> None:
    counting = FailingFiles()
    for _ in life(memory_path / "undisturbed", counting):
        pass
    for fail_at in range(1, counting.count + 1):
        folder = memory_path / f"fail-{fail_at}"
        told: list[bytes] = []
        with contextlib.suppress(StorageError, LogBroken):
            told.extend(life(folder, FailingFiles(fail_at=fail_at, errno=number, sticky=sticky)))
        if folder.exists():
            check(folder, told)


def test_after_a_failed_sync_nothing_is_acknowledged_and_reopening_mends_it(tmp_path: Path) -> None:
    failing = threading.Event()

    def refuse(operation: str, path: str) -> None:
        if operation == "sync" and failing.is_set():
            raise StorageError(operation="sync", path=path, errno=errno.EIO)

    log, machine = opened(tmp_path / "log", files=WatchedFiles(refuse))
    log.propose(b"good")
    failing.set()
    for payload in (b"lost", b"refused"):
        with pytest.raises(LogBroken, match="open the log again"):
            log.propose(payload)
    assert machine.payloads == [b"good", b"lost"], "the second one was not even carried out"
    failing.clear()
    log.close()
    log, machine = opened(tmp_path / "log")
    assert machine.payloads[0] == b"good"
    log.close()


def test_a_log_that_cannot_be_opened_keeps_no_lock(tmp_path: Path) -> None:
    """From the second time on it was told to be open in this very process."""
    log, _ = opened(tmp_path / "log")
    for number in range(5):
        log.propose(b"command %d" % number)
    log.compact(4)
    log.close()
    for path in (tmp_path / "log").glob("*.segment"):
        path.write_bytes(path.read_bytes().replace(b"command 2", b"command X"))
    for _ in range(2):
        with pytest.raises(CorruptData, match="index 4"):
            LocalLog(tmp_path / "log", options())


def test_a_start_that_the_disk_refused_breaks_the_log_and_is_no_damage(tmp_path: Path) -> None:
    refused: list[bool] = []

    def refuse(operation: str, path: str) -> None:
        if operation == "sync" and refused and path.endswith(".segment"):
            raise StorageError(operation="sync", path=path, errno=errno.EIO)

    opened(tmp_path / "log")[0].close()
    with LocalLog(tmp_path / "log", options(files=WatchedFiles(refuse))) as log:
        refused.append(True)
        with pytest.raises(StorageError):
            log.start(Journal())
        refused.clear()
        with pytest.raises(LogBroken, match="open the log again"):
            log.start(Journal())
    opened(tmp_path / "log")[0].close()


def test_a_host_that_cannot_be_made_closes_its_log(tmp_path: Path) -> None:
    syncs: list[str] = []

    def refuse(operation: str, path: str) -> None:
        if operation == "sync" and path.endswith(".segment"):
            syncs.append(path)
            # The first one is that of the opening, the next one that of the settings.
            if len(syncs) == 2:
                raise StorageError(operation="sync", path=path, errno=errno.EIO)

    with pytest.raises(LogBroken):
        SchedulerHost(LocalLog(tmp_path / "log", options(files=WatchedFiles(refuse))))
    SchedulerHost(LocalLog(tmp_path / "log", options())).close()


def test_threads_that_let_a_log_forget_do_it_one_after_the_other(tmp_path: Path) -> None:
    log, _ = opened(tmp_path / "log")
    for number in range(8):
        log.propose(b"%d" % number)
    segments = log._log  # noqa: SLF001
    recorded, found = segments.record_snapshot, []
    other = threading.Thread(target=lambda: found.append(log.compact(7)))

    def record_snapshot(index: int, live: list[int]) -> None:
        recorded(index, live=live)
        if index == 4:
            other.start()
            other.join(0.1)

    with mock.patch.object(segments, "record_snapshot", record_snapshot):
        assert isinstance(log.compact(4), Done | Skipped)
        other.join()
    assert isinstance(found[0], Done | Skipped)
    assert log.first_index == 8
    log.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_compaction_that_the_disk_refuses_is_an_outcome_and_no_command_is_lost(number: int, tmp_path: Path) -> None:
    """Between the write and the sync of a command it syncs what is not its own."""
    files, refusing = FailingFiles(), FailingFiles(fail_at=1, errno=number)
    log, _ = opened(tmp_path / "log", files=files)
    told, found = [b"one"], []
    log.propose(b"one")
    segments = log._log  # noqa: SLF001
    extend, step = segments.extend, files.step
    other = threading.Thread(target=lambda: found.append(log.compact(2)))

    def write(entries: Iterable[tuple[int, int, bytes]]) -> None:
        extend(entries)
        other.start()
        other.join(0.1)

    def meet(*given: Any, **more: Any) -> Any:
        return (refusing.step if threading.current_thread() is other else step)(*given, **more)

    with mock.patch.object(segments, "extend", write), mock.patch.object(files, "step", meet):
        with contextlib.suppress(LogBroken):
            log.propose(b"two")
            told.append(b"two")
        other.join()
    assert isinstance(found[0], Failed)
    assert isinstance(found[0].error, StorageError)
    log.close()
    log, machine = opened(tmp_path / "log")
    assert machine.payloads == told
    log.close()
