# SPDX-License-Identifier: Apache-2.0
"""The explorer: finds planted bugs, passes sound protocols, reports so that a failure can be replayed."""

from __future__ import annotations

import json
import os
import pickle
import random
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from compactlib.errors import InvalidInput
from compactlib.files import Files, LocalFiles, write_durably
from compactlib.testing import explore, explore_recovery, record
from compactlib.testing.crash.harness import CrashFailure, CrashReport, replay
from compactlib.testing.crash.operations import Recording
from compactlib.testing.crash.recorder import RecordingFiles
from tests.testing.pictures import picture

# ------------------------------------------------------------------------- a value replaced as a whole, done wrongly


def replaced(folder: Path, files: RecordingFiles, *, sync_file: bool, sync_folder: bool) -> None:
    """Replace `value` twice and acknowledge each time; sound if both syncs are there."""
    for number in (1, 2):
        out = files.create(folder / "value.tmp")
        out.write_at(0, [json.dumps([number] * 400).encode()])
        if sync_file:
            out.sync()
        out.close()
        files.rename(folder / "value.tmp", folder / "value")
        if sync_folder:
            files.sync_folder(folder)
        files.acknowledge(number)


def value_is_there(folder: Path, acknowledged: Sequence[Any]) -> None:
    if (folder / "value").exists() or acknowledged:
        found = json.loads((folder / "value").read_bytes())
        assert len(found) == 400
        assert found[0] >= max(acknowledged, default=0)


def test_a_rename_before_the_sync_of_the_file_is_found(tmp_path: Path) -> None:
    recording = record(tmp_path, lambda folder, files: replaced(folder, files, sync_file=False, sync_folder=True))
    with pytest.raises(CrashFailure) as caught:
        explore(recording, value_is_there)
    # The first crash that shows it: the name is there, the bytes are not, and not even the folder was synced.
    assert caught.value.state == "3:-1"
    assert isinstance(caught.value.__cause__, json.JSONDecodeError)


def test_an_acknowledgement_before_the_sync_of_the_folder_is_found(tmp_path: Path) -> None:
    recording = record(tmp_path, lambda folder, files: replaced(folder, files, sync_file=True, sync_folder=False))
    with pytest.raises(CrashFailure) as caught:
        explore(recording, value_is_there)
    assert caught.value.state == "4:-3"
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_the_same_with_both_syncs_is_sound(tmp_path: Path) -> None:
    recording = record(tmp_path, lambda folder, files: replaced(folder, files, sync_file=True, sync_folder=True))
    report = explore(recording, value_is_there)
    assert report.points == report.complete_points == 11
    assert report.states_checked > report.distinct > 11


def test_write_durably_is_sound(tmp_path: Path) -> None:
    def work(folder: Path, files: RecordingFiles) -> None:
        for number in range(1, 6):
            write_durably(files, folder / "value", [json.dumps([number] * 400)[:500].encode(),
                                                    json.dumps([number] * 400)[500:].encode()])
            files.acknowledge(number)

    assert explore(record(tmp_path, work), value_is_there).points == 26


# --------------------------------------------------------------------------------- two names that need an order


def switched(folder: Path, files: RecordingFiles, *, ordered: bool) -> None:
    """Move the data to a new name, then the pointer that names it; the pointer must not get there first."""
    write_durably(files, folder / "data-1", [b"one"])
    write_durably(files, folder / "pointer", [b"data-1"])
    files.acknowledge("one")
    for name, content in (("data-2.new", b"two"), ("pointer.new", b"data-2")):
        out = files.create(folder / name)
        out.write_at(0, [content])
        out.sync()
        out.close()
    files.rename(folder / "data-2.new", folder / "data-2")
    if ordered:
        files.sync_folder(folder)
    files.rename(folder / "pointer.new", folder / "pointer")
    files.sync_folder(folder)
    files.acknowledge("two")
    files.unlink(folder / "data-1")


def pointer_leads_somewhere(folder: Path, acknowledged: Sequence[Any]) -> None:
    if acknowledged:
        found = (folder / (folder / "pointer").read_text()).read_text()
        assert found in ("one", "two")[len(acknowledged) - 1:]


def test_two_renames_without_an_order_are_found(tmp_path: Path) -> None:
    recording = record(tmp_path, lambda folder, files: switched(folder, files, ordered=False))
    with pytest.raises(CrashFailure) as caught:
        explore(recording, pointer_leads_somewhere)
    lost = recording.operations[int(caught.value.state.partition(":-")[2])]
    assert str(lost) == "rename data-2.new to data-2"


def test_two_renames_with_a_sync_between_are_sound(tmp_path: Path) -> None:
    explore(record(tmp_path, lambda folder, files: switched(folder, files, ordered=True)), pointer_leads_somewhere)


# --------------------------------------------------------------------------------------------------- an append log


def appended(folder: Path, files: RecordingFiles, *, checksum: bool) -> None:
    """Append four entries to a preallocated file: length, optionally CRC, payload; sync and acknowledge each."""
    out = files.create(folder / "log")
    out.truncate(4096)
    out.sync()
    files.sync_folder(folder)
    offset = 0
    for number in range(4):
        payload = bytes([65 + number]) * 20
        head = len(payload).to_bytes(2, "big") + (zlib.crc32(payload).to_bytes(4, "big") if checksum else b"")
        offset += out.write_at(offset, [head, payload])
        out.sync()
        files.acknowledge(payload)
    out.close()


def entries(data: bytes, *, checksum: bool) -> list[bytes]:
    """What a reader takes from the log: with no checksum it trusts the length."""
    found = []
    head = 6 if checksum else 2
    while len(data) >= head:
        length = int.from_bytes(data[:2], "big")
        payload = data[head:head + length]
        if length == 0 or len(payload) < length:
            break
        if checksum and zlib.crc32(payload) != int.from_bytes(data[2:6], "big"):
            break
        found.append(payload)
        data = data[head + length:]
    return found


@pytest.mark.parametrize("checksum", [False, True])
def test_a_log_that_trusts_a_torn_tail_is_found(tmp_path: Path, checksum: bool) -> None:
    def check(folder: Path, acknowledged: Sequence[Any]) -> None:
        found = entries((folder / "log").read_bytes() if (folder / "log").exists() else b"", checksum=checksum)
        assert found[:len(acknowledged)] == list(acknowledged)
        assert all(len(set(payload)) == 1 and payload[0] in b"ABCDE" for payload in found), "an entry never written"

    recording = record(tmp_path, lambda folder, files: appended(folder, files, checksum=checksum))
    if checksum:
        explore(recording, check)
        return
    with pytest.raises(CrashFailure, match="an entry never written") as caught:
        explore(recording, check)
    assert "~" in caught.value.state  # a torn write, in whose place the preallocated zeros were read


# ------------------------------------------------------------------------------------------------ what is reported


def failing(tmp_path: Path) -> tuple[Recording, CrashFailure]:
    (tmp_path / "work").mkdir()
    recording = record(tmp_path / "work",
                       lambda folder, files: replaced(folder, files, sync_file=False, sync_folder=True))
    with pytest.raises(CrashFailure) as caught:
        explore(recording, value_is_there)
    return recording, caught.value


def test_a_failure_tells_what_happened(tmp_path: Path) -> None:
    _, failure = failing(tmp_path)
    lines = [" ".join(line.split()) for line in str(failure).splitlines()]
    assert lines == [
        "after crash 3:-1 the folder is wrong: JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        "0 create value.tmp there",
        "1 write value.tmp at 0, 1200 bytes LOST",
        "2 rename value.tmp to value there",
        "-- crash --",
        "3 sync folder . not reached",
        "4 create value.tmp not reached",
        "5 write value.tmp at 0, 1200 bytes not reached",
        "acknowledged before the crash: 0; rebuild the folder with replay(recording, '3:-1', folder)",
    ]
    again = pickle.loads(pickle.dumps(failure))
    assert (str(again), again.state, again.trace) == (str(failure), failure.state, failure.trace)


def test_a_failure_can_be_replayed_from_a_new_recording(tmp_path: Path) -> None:
    _, failure = failing(tmp_path)
    (tmp_path / "again").mkdir()
    recording = record(tmp_path / "again",
                       lambda folder, files: replaced(folder, files, sync_file=False, sync_folder=True))
    acknowledged = replay(recording, failure.state, tmp_path / "crashed")
    assert picture(tmp_path / "crashed") == {"value": b""}
    with pytest.raises(json.JSONDecodeError):
        value_is_there(tmp_path / "crashed", acknowledged)


def test_replay_gives_what_was_acknowledged_and_wants_an_empty_folder(tmp_path: Path) -> None:
    recording, _ = failing(tmp_path)
    assert replay(recording, "4", tmp_path / "out") == (1,)
    with pytest.raises(InvalidInput, match="not empty"):
        replay(recording, "4", tmp_path / "out")
    with pytest.raises(InvalidInput, match="give the recovery too"):
        replay(recording, "4/0", tmp_path / "other")


@pytest.mark.parametrize(("worst", "state"), [(0, "3:-*"), (1, "3:-0,-2"), (2, "3:-0"), (3, "3")])
def test_a_state_is_told_the_short_way(tmp_path: Path, worst: int, state: str) -> None:
    def work(folder: Path, files: Files) -> None:
        for name in "abc":
            files.make_folder(folder / name)

    recording = record(tmp_path, work)

    def check(folder: Path, acknowledged: Sequence[Any]) -> None:
        wrong = {0: [], 1: ["b"], 2: ["b", "c"], 3: ["a", "b", "c"]}[worst]
        assert sorted(os.listdir(folder)) != wrong

    with pytest.raises(CrashFailure) as caught:
        explore(recording, check, points=[3])
    assert caught.value.state == state
    replay(recording, state, tmp_path / "again")


def test_the_failure_reported_is_the_one_with_least_lost(tmp_path: Path) -> None:
    def work(folder: Path, files: Files) -> None:
        for name in "abc":
            files.make_folder(folder / name)

    def check(folder: Path, acknowledged: Sequence[Any]) -> None:
        there = os.listdir(folder)
        assert "a" in there
        assert "b" in there or "c" in there

    with pytest.raises(CrashFailure) as caught:
        explore(record(tmp_path, work), check, points=[3])
    assert caught.value.state == "3:-0"


def test_pytest_failures_in_a_check_are_reported_with_their_state(tmp_path: Path) -> None:
    def check(folder: Path, acknowledged: Sequence[Any]) -> None:
        if (folder / "a").exists():
            pytest.fail("seen")

    recording = record(tmp_path, lambda folder, files: files.make_folder(folder / "a"))
    with pytest.raises(CrashFailure, match=r"after crash 1 .*Failed: seen"):
        explore(recording, check)


def test_an_interrupted_check_is_no_failure(tmp_path: Path) -> None:
    def check(folder: Path, acknowledged: Sequence[Any]) -> None:
        raise KeyboardInterrupt

    recording = record(tmp_path, lambda folder, files: None)
    with pytest.raises(KeyboardInterrupt):
        explore(recording, check)


def test_a_report_prints_and_converts() -> None:
    report = CrashReport(points=3, complete_points=2, states_checked=9, distinct=4)
    assert repr(report) == "CrashReport(points=3, complete_points=2, states_checked=9, distinct=4, recoveries=0)"
    assert report.to_dicts() == [{"points": 3, "complete_points": 2, "states_checked": 9, "distinct": 4,
                                  "recoveries": 0}]
    assert report._repr_html_().startswith("<table>")


# --------------------------------------------------------------------------------------------- how much is looked at


def states_of(recording: Recording, seed: int, limit: int) -> list[dict[str, object]]:
    seen: list[dict[str, object]] = []
    explore(recording, lambda folder, acknowledged: seen.append({**picture(folder), "#": len(acknowledged)}),
            rng=random.Random(seed), limit_per_point=limit)
    return seen


def busy(folder: Path, files: RecordingFiles) -> None:
    """Nine writes and a dozen names, none of them synced."""
    for number in range(3):
        out = files.create(folder / f"file-{number}")
        for place in range(3):
            out.write_at(place * 700, [bytes([65 + place]) * 700])
        out.close()
        files.rename(folder / f"file-{number}", folder / f"renamed-{number}")
        files.link(folder / f"renamed-{number}", folder / f"linked-{number}")
        files.acknowledge(number)


def test_the_same_seed_looks_at_the_same_states(tmp_path: Path) -> None:
    recording = record(tmp_path, busy)
    first = states_of(recording, 1, 12)
    assert all(states_of(recording, 1, 12) == first for _ in range(9))
    assert states_of(recording, 2, 12) != first


@pytest.mark.parametrize("limit", [2, 3, 10, 100])
def test_a_limit_holds_at_each_point(tmp_path: Path, limit: int) -> None:
    recording = record(tmp_path, busy)
    seen: list[object] = []
    report = explore(recording, lambda folder, acknowledged: seen.append(None), limit_per_point=limit)
    assert report.points == len(recording.operations) + 1
    assert report.states_checked <= report.points * limit
    assert len(seen) == report.distinct <= report.states_checked
    assert 0 < report.complete_points < report.points


def test_a_sampled_point_has_the_plain_states(tmp_path: Path) -> None:
    recording = record(tmp_path, busy)
    last = len(recording.operations)
    found: list[dict[str, object]] = []
    report = explore(recording, lambda folder, acknowledged: found.append(picture(folder)), points=[last])
    assert report.complete_points == 0
    assert report.states_checked == 128
    everything = picture(tmp_path)
    assert found[0] == everything
    assert {} in found
    # One name lost.
    for number in range(3):
        one_less = {name: value for name, value in everything.items() if name != f"linked-{number}"}
        del one_less[f"nlink:linked-{number}"]
        assert one_less in found


def test_all_combinations_of_names_are_tried_where_bytes_alone_are_too_many(tmp_path: Path) -> None:
    def work(folder: Path, files: Files) -> None:
        outs = [files.create(folder / name) for name in "abcd"]
        for out in outs:
            out.write_at(0, [b"x" * 5000])
            out.close()

    recording = record(tmp_path, work)
    found: list[dict[str, object]] = []
    report = explore(recording, lambda folder, acknowledged: found.append(picture(folder)), points=[8])
    assert report.complete_points == 0
    whole = [frozenset(each) for each in found if all(value == b"x" * 5000 for value in each.values())]
    assert len(set(whole)) == 16


def test_equal_folders_are_checked_once_unless_more_was_acknowledged(tmp_path: Path) -> None:
    def work(folder: Path, files: RecordingFiles) -> None:
        files.sync_folder(folder)
        files.sync_folder(folder)
        files.acknowledge("something")
        files.sync_folder(folder)

    seen: list[int] = []
    report = explore(record(tmp_path, work), lambda folder, acknowledged: seen.append(len(acknowledged)))
    assert seen == [0, 1]
    assert report == CrashReport(points=4, complete_points=4, states_checked=4, distinct=2)


def test_only_the_points_asked_for_are_tried(tmp_path: Path) -> None:
    recording = record(tmp_path, busy)
    assert explore(recording, lambda folder, acknowledged: None, points=[3, 1, 1]).points == 2
    with pytest.raises(InvalidInput, match="cannot be cut after 99"):
        explore(recording, lambda folder, acknowledged: None, points=[99])
    with pytest.raises(InvalidInput, match="the limit 1"):
        explore(recording, lambda folder, acknowledged: None, limit_per_point=1)


def test_a_check_may_do_what_it_likes_with_its_folder(tmp_path: Path) -> None:
    def check(folder: Path, acknowledged: Sequence[Any]) -> None:
        assert not (folder / "seen").exists()
        (folder / "seen").write_bytes(b"")
        for path in folder.glob("a*"):
            path.unlink()

    def work(folder: Path, files: Files) -> None:
        for name in "abc":
            write_durably(files, folder / name, [b"x"])

    explore(record(tmp_path, work), check)


def test_folders_are_built_where_asked_and_removed(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "scratch").mkdir()
    recording = record(tmp_path / "work", lambda folder, files: files.make_folder(folder / "a"))
    places: set[Path] = set()
    explore(recording, lambda folder, acknowledged: places.add(folder.parent.parent), scratch=tmp_path / "scratch")
    assert places == {tmp_path / "scratch"}
    assert os.listdir(tmp_path / "scratch") == []


# ---------------------------------------------------------------------------------- recovery that crashes as well


def journaled(folder: Path, files: RecordingFiles) -> None:
    """Announce a change in a journal, make it in place, drop the journal."""
    write_durably(files, folder / "journal", [b"B" * 600])
    files.acknowledge(b"B")
    applied(folder, files, sync=True)


def applied(folder: Path, files: Files, *, sync: bool) -> None:
    if (folder / "journal").exists():
        out = files.open(folder / "data")
        out.write_at(0, [(folder / "journal").read_bytes()])
        if sync:
            out.sync()
        out.close()
        files.unlink(folder / "journal")
        files.sync_folder(folder)


def careful_recovery(folder: Path, files: Files) -> None:
    applied(folder, files, sync=True)


def hasty_recovery(folder: Path, files: Files) -> None:
    """Right as long as it is not interrupted: the journal goes before the bytes are durable."""
    applied(folder, files, sync=False)


def data_is_whole(folder: Path, acknowledged: Sequence[Any]) -> None:
    found = set((folder / "data").read_bytes())
    assert found == set(b"B") if acknowledged else found in (set(b"A"), set(b"B"))


def journal_recording(tmp_path: Path) -> Recording:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/data").write_bytes(b"A" * 600)
    return record(tmp_path / "work", journaled)


def recovered_first(recover: Callable[[Path, Files], object]) -> Callable[[Path, Sequence[Any]], None]:
    def check(folder: Path, acknowledged: Sequence[Any]) -> None:
        recover(folder, LocalFiles())
        data_is_whole(folder, acknowledged)

    return check


def test_a_recovery_that_may_be_interrupted_passes(tmp_path: Path) -> None:
    recording = journal_recording(tmp_path)
    explore(recording, recovered_first(careful_recovery))
    report = explore_recovery(recording, careful_recovery, data_is_whole, recoveries=None)
    assert report.recoveries > 10
    assert report.distinct > report.recoveries


def test_a_recovery_that_may_not_be_interrupted_is_found_only_by_interrupting_it(tmp_path: Path) -> None:
    recording = journal_recording(tmp_path)
    explore(recording, recovered_first(hasty_recovery))
    with pytest.raises(CrashFailure, match="== recovery ==") as caught:
        explore_recovery(recording, hasty_recovery, data_is_whole, recoveries=None)
    assert "/" in caught.value.state
    acknowledged = replay(recording, caught.value.state, tmp_path / "out", recover=hasty_recovery)
    hasty_recovery(tmp_path / "out", LocalFiles())
    with pytest.raises(AssertionError):
        data_is_whole(tmp_path / "out", acknowledged)


def test_a_recovery_that_fails_at_once_names_the_first_crash(tmp_path: Path) -> None:
    recording = journal_recording(tmp_path)

    def recover(folder: Path, files: Files) -> None:
        if (folder / "journal").exists():
            raise RuntimeError("not today")

    with pytest.raises(CrashFailure, match="not today") as caught:
        explore_recovery(recording, recover, data_is_whole)
    assert "/" not in caught.value.state
    replay(recording, caught.value.state, tmp_path / "out")
    assert (tmp_path / "out/journal").exists()


def test_first_crashes_are_sampled_by_the_seed(tmp_path: Path) -> None:
    recording = journal_recording(tmp_path)

    def run(seed: int) -> tuple[CrashReport, list[object]]:
        seen: list[object] = []
        report = explore_recovery(recording, careful_recovery,
                                  lambda folder, acknowledged: seen.append((folder.name, len(acknowledged))),
                                  rng=random.Random(seed), recoveries=7, limit_per_point=10)
        return report, seen

    first = run(1)
    assert first[0].recoveries == 7
    assert all(run(1) == first for _ in range(9))


# ------------------------------------------------------------------------------------------------------------ size


def test_a_long_recording_with_much_pending_stays_within_its_limit(tmp_path: Path) -> None:
    def work(folder: Path, files: Files) -> None:
        out = files.create(folder / "log")
        for number in range(300):
            out.write_at(number * 100, [bytes([number % 256]) * 100])
        out.close()

    report = explore(record(tmp_path, work), lambda folder, acknowledged: None, limit_per_point=4)
    assert report.points == 302
    assert report.states_checked <= 302 * 4
