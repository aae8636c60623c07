# SPDX-License-Identifier: Apache-2.0
"""Folders as crashes leave them, each built by hand, and recovered.

Ra decides by a marker file and by the absence of `.compacting`; here one file is both: `1-2-3.compacting`, under
which the new segment lies until every member leads to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from compactlib.errors import CompactlibError, CorruptData, DiskFull, StorageError
from compactlib.files import LocalFiles
from compactlib.raftlog import LogReader, SegmentLog
from compactlib.raftlog.compaction.commit import leftovers, recover_folder
from compactlib.raftlog.errors import LiveIndexMissing, NotALog
from compactlib.raftlog.names import compacting_name, segment_name
from compactlib.raftlog.segment.reader import SegmentReader
from compactlib.raftlog.segment.writer import SegmentWriter
from compactlib.raftlog.values import SegmentRef
from tests.harness.failing_files import FailingFiles
from tests.raftlog.compaction_logs import (
    SMALL,
    Expected,
    done,
    entries_of,
    entry_of,
    failed,
    filled,
    flip_byte,
    links,
    options,
    payload_place,
    picture,
    rewritten,
    strays,
    vector_45,
)
from tests.raftlog.wrapped_files import WatchedFiles

LIVE = [1, 2, 20, 40]
FILES = LocalFiles()
ONE, TWO, THREE = segment_name(1), segment_name(2), segment_name(3)
GROUP = compacting_name([1, 2, 3])

Stage = Callable[[Path, bytes], None]


def output(folder: Path, members: list[int], live: list[int]) -> bytes:
    """The bytes of the finished output of a group; nothing else is left in the folder."""
    path = Path(rewritten(folder, members, live).path)
    data = path.read_bytes()
    path.unlink()
    return data


def held(folder: Path, number: int) -> list[object]:
    """Everything that one segment file holds, dead or not."""
    with SegmentReader(folder / segment_name(number), sealed=True) as reader:
        return list(reader.scan())


def replace_leader(folder: Path, name: str, leader: str) -> None:
    """Step 2 of the commit, by hand."""
    os.link(folder / name, folder / f"{leader}.swap")
    os.rename(folder / f"{leader}.swap", folder / leader)


def replace_member(folder: Path, member: str, leader: str) -> None:
    """Step 3 of the commit for one member, by hand."""
    os.symlink(leader, folder / f"{member}.link")
    os.rename(folder / f"{member}.link", folder / member)


def empty(folder: Path, new: bytes) -> None:
    (folder / GROUP).write_bytes(b"")


def half(folder: Path, new: bytes) -> None:
    (folder / GROUP).write_bytes(new[:len(new) // 2])


def full(folder: Path, new: bytes) -> None:
    (folder / GROUP).write_bytes(new)


def garbage(folder: Path, new: bytes) -> None:
    (folder / GROUP).write_bytes(b"\xff" * 5000)


def swap_only(folder: Path, new: bytes) -> None:
    full(folder, new)
    os.link(folder / GROUP, folder / f"{ONE}.swap")


def private_name_still_there(folder: Path, new: bytes) -> None:
    full(folder, new)
    os.link(folder / GROUP, folder / f"rewrite-x-{ONE}.try")


def two_more_names(folder: Path, new: bytes) -> None:
    swap_only(folder, new)
    os.link(folder / GROUP, folder / f"{TWO}.swap")


UNDONE: dict[str, Stage] = {
    "empty": empty, "half": half, "full": full, "garbage": garbage, "link count 2 by the swap name": swap_only,
    "link count 2 by the private name": private_name_still_there, "link count 3": two_more_names,
}


@pytest.mark.parametrize("stage", UNDONE.values(), ids=UNDONE.keys())
def test_before_the_commit_the_originals_stay(stage: Stage, tmp_path: Path) -> None:
    expected = vector_45(tmp_path)
    before = picture(tmp_path)
    assert leftovers(tmp_path) == []
    stage(tmp_path, output(tmp_path, [1, 2, 3], LIVE))
    assert GROUP in leftovers(tmp_path)
    with LogReader(tmp_path) as reader:
        expected.check(reader)
    with SegmentLog(tmp_path, options()) as log:
        assert GROUP in log.recovery.removed
        assert log.recovery.finished == ()
        assert leftovers(tmp_path) == []
        assert picture(tmp_path) == before
        # All of 1 to 48 can still be read, the dead ones too.
        assert [held(tmp_path, number) for number in (1, 2, 3)] == [entries_of(1, 16), entries_of(17, 32),
                                                                    entries_of(33, 48)]
        expected.check(log)
        done(log.compact(policy=log.policy))
        assert log.refs == (SegmentRef(1, 1, 40), SegmentRef(4, 49, 49))
        expected.check(log)


def no_link(folder: Path, new: bytes) -> None:
    full(folder, new)
    replace_leader(folder, GROUP, ONE)


def first_link_not_renamed(folder: Path, new: bytes) -> None:
    no_link(folder, new)
    os.symlink(ONE, folder / f"{TWO}.link")


def first_link(folder: Path, new: bytes) -> None:
    no_link(folder, new)
    replace_member(folder, TWO, ONE)


def second_link_not_renamed(folder: Path, new: bytes) -> None:
    first_link(folder, new)
    os.symlink(ONE, folder / f"{THREE}.link")


def second_link_alone(folder: Path, new: bytes) -> None:
    no_link(folder, new)
    replace_member(folder, THREE, ONE)


def all_links(folder: Path, new: bytes) -> None:
    first_link(folder, new)
    replace_member(folder, THREE, ONE)


def link_to_nowhere(folder: Path, new: bytes) -> None:
    no_link(folder, new)
    replace_member(folder, TWO, segment_name(99))


def member_gone(folder: Path, new: bytes) -> None:
    no_link(folder, new)
    os.unlink(folder / TWO)


FINISHED: dict[str, Stage] = {
    "no link": no_link, "first link not renamed": first_link_not_renamed, "first link": first_link,
    "second link not renamed": second_link_not_renamed, "second link alone": second_link_alone, "all links": all_links,
    "a link to nowhere": link_to_nowhere, "a member gone": member_gone,
}


@pytest.mark.parametrize("stage", FINISHED.values(), ids=FINISHED.keys())
def test_after_the_commit_the_links_are_completed(stage: Stage, tmp_path: Path) -> None:
    expected = vector_45(tmp_path)
    stage(tmp_path, output(tmp_path, [1, 2, 3], LIVE))
    with LogReader(tmp_path) as reader:
        expected.check(reader)
    with SegmentLog(tmp_path, options()) as log:
        assert log.recovery.finished == ((1, 2, 3),)
        assert GROUP not in log.recovery.removed
        assert log.refs == (SegmentRef(1, 1, 40), SegmentRef(4, 49, 49))
        assert links(tmp_path) == {2: ONE, 3: ONE}
        assert strays(tmp_path) == []
        expected.check(log)
    assert not recover_folder(FILES, tmp_path)


@pytest.mark.parametrize("refused", ["create", "write", "sync"])
def test_a_job_that_never_made_its_output_loses_nothing(refused: str, tmp_path: Path) -> None:
    """Ra's marker without `.compacting` is taken for a commit at the next start, and 20 and 40 are lost."""
    expected = vector_45(tmp_path)
    before = picture(tmp_path)

    def refuse(operation: str, path: str) -> None:
        if operation == refused and "rewrite-" in path:
            raise StorageError.from_os(OSError(24, "Too many open files"), operation, path)

    with SegmentLog(tmp_path, options(WatchedFiles(refuse))) as log:
        with pytest.raises(CompactlibError) as caught:
            log.compact(policy=log.policy)
        errors = getattr(caught.value, "failures", {"": caught.value}).values()
        assert set(map(type, errors)) == {StorageError}
        expected.check(log)
    with SegmentLog(tmp_path, options()) as log:
        assert picture(tmp_path) == before
        expected.check(log)
        assert len(log.refs) == 4


def test_garbage_names_and_stray_temporary_files_are_removed(tmp_path: Path) -> None:
    expected = vector_45(tmp_path)
    before = picture(tmp_path)
    strangers = ["nonsense.compacting", compacting_name([3, 1]), f"{ONE}.tmp", "SNAPSHOT.tmp", f"{TWO}.link",
                 f"{segment_name(77)}.swap", f"rewrite-dead-{ONE}.part"]
    for name in strangers:
        (tmp_path / name).write_bytes(b"\x83garbage")
    os.symlink(ONE, tmp_path / f"{THREE}.link")
    with LogReader(tmp_path) as reader:
        expected.check(reader)
    with SegmentLog(tmp_path, options()) as log:
        assert set(log.recovery.removed) == {*strangers, f"{THREE}.link"}
        assert picture(tmp_path) == before
        expected.check(log)


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    vector_45(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "rewrite-notes.txt").write_text("mine")
    (tmp_path / "rewrite-ideas" / "drafts").mkdir(parents=True)
    (tmp_path / "0000000000000001.compaction_group").write_bytes(b"Ra's own")
    SegmentLog(tmp_path, options()).close()
    for name in ("notes.txt", "rewrite-notes.txt", "0000000000000001.compaction_group",
                 "rewrite-ideas/drafts"):
        assert (tmp_path / name).exists(), name


@pytest.mark.parametrize("name", ["rewrite-my-project", "old.compacting", "a.segment"])
def test_a_folder_named_like_leftovers_is_not_emptied(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis.txt").write_text("do not delete")
    with pytest.raises(NotALog):
        SegmentLog(tmp_path, options())
    assert (tmp_path / name / "thesis.txt").read_text() == "do not delete"


def two_groups(folder: Path) -> tuple[Expected, bytes, bytes]:
    """Segments 1 to 4 in two pairs and a newest one, and the output of each pair."""
    live = [1, 20, 40, 60]
    expected = filled(folder, last=65, snapshot=64, live=live)
    return expected, output(folder, [1, 2], live), output(folder, [3, 4], live)


@pytest.mark.parametrize("second", ["undone", "finished", "half linked"])
@pytest.mark.parametrize("first", ["undone", "finished", "half linked"])
def test_two_interrupted_groups_are_both_resolved(first: str, second: str, tmp_path: Path) -> None:
    """Ra cannot start with two markers."""
    expected, low, high = two_groups(tmp_path)
    for state, members, new in ((first, [1, 2], low), (second, [3, 4], high)):
        name = compacting_name(members)
        (tmp_path / name).write_bytes(new)
        if state == "undone":
            os.link(tmp_path / name, tmp_path / f"{segment_name(members[0])}.swap")
        else:
            replace_leader(tmp_path, name, segment_name(members[0]))
        if state == "half linked":
            os.symlink(segment_name(members[0]), tmp_path / f"{segment_name(members[1])}.link")
    with LogReader(tmp_path) as reader:
        expected.check(reader)
    with SegmentLog(tmp_path, options()) as log:
        undone = [name for name in log.recovery.removed if name.endswith(".compacting")]
        assert len(undone) == (first == "undone") + (second == "undone")
        assert len(log.recovery.finished) == 2 - len(undone)
        assert strays(tmp_path) == []
        expected.check(log)
        done(log.compact(policy=log.policy))
        assert [ref.number for ref in log.refs] == [1, 5]
        expected.check(log)


def test_a_failed_job_does_not_block_the_next(tmp_path: Path) -> None:
    """Ra keeps the half-written file, appends to it, and answers `full` until restart."""
    expected = vector_45(tmp_path, live=[1, 2, 21, 41])
    before = picture(tmp_path)
    place = payload_place(tmp_path, 3, 41)
    with SegmentLog(tmp_path, options()) as log:
        flip_byte(tmp_path / THREE, place)
        for _ in range(2):
            _, (error,) = failed(log)
            assert isinstance(error, CorruptData)
            assert (error.path, error.offset, error.index) == (str(tmp_path / THREE), place, 41)
            assert strays(tmp_path) == []
        flip_byte(tmp_path / THREE, place)
        assert picture(tmp_path) == before
        done(log.compact(policy=log.policy))
        expected.check(log)
        assert log.refs == (SegmentRef(1, 1, 41), SegmentRef(4, 49, 49))


def test_a_live_index_without_a_file_is_an_error(tmp_path: Path) -> None:
    vector_45(tmp_path)
    whole = (tmp_path / TWO).read_bytes()
    os.unlink(tmp_path / TWO)
    with SegmentWriter.create(FILES, tmp_path, 2, SMALL) as writer:
        for entry in [*entries_of(17, 19), *entries_of(21, 32)]:
            writer.append(entry.index, entry.term, entry.payload)
        writer.seal()
    before = picture(tmp_path)
    with SegmentLog(tmp_path, options()) as log:
        # The other segment is compacted; the one with the gap, and the neighbour it would be merged with, stay.
        first, second = failed(log), failed(log)
        assert [group.members for group in first[0].done] == [(1,)]
        assert [group.members for group in first[0].failed] == [(2,)]
        for error in (*first[1], *second[1]):
            assert isinstance(error, LiveIndexMissing)
            assert (error.first, error.missing) == (20, 1)
        after = picture(tmp_path)
        assert [name for name in before if after[name] != before[name]] == [ONE]
        with pytest.raises(CorruptData, match="index 20"):
            log.read(20)
        assert log.read(40) == entry_of(40)
    (tmp_path / TWO).write_bytes(whole)
    with SegmentLog(tmp_path, options()) as log:
        done(log.compact(policy=log.policy))
        Expected.of(entries_of(1, 49), 48, LIVE).check(log)


@pytest.mark.parametrize("state", ["name only", "whole file", "committed"])
def test_an_interrupted_rewrite_of_a_single_segment_is_recovered(state: str, tmp_path: Path) -> None:
    expected = filled(tmp_path, last=17, snapshot=16, live=[3, 4])
    old = (tmp_path / ONE).read_bytes()
    new = output(tmp_path, [1], [3, 4])
    name = compacting_name([1])
    (tmp_path / name).write_bytes(b"" if state == "name only" else new)
    if state == "committed":
        replace_leader(tmp_path, name, ONE)
    with LogReader(tmp_path) as reader:
        expected.check(reader)
    with SegmentLog(tmp_path, options()) as log:
        assert strays(tmp_path) == []
        assert (tmp_path / ONE).read_bytes() == (new if state == "committed" else old)
        expected.check(log)


def test_an_unreadable_leader_keeps_its_members_files(tmp_path: Path) -> None:
    """The members that still have files of their own keep them."""
    vector_45(tmp_path)
    own = (tmp_path / THREE).read_bytes()
    first_link(tmp_path, output(tmp_path, [1, 2, 3], LIVE))
    flip_byte(tmp_path / ONE, 104 + 10)
    before = picture(tmp_path)
    with pytest.raises(CorruptData, match=ONE):
        SegmentLog(tmp_path, options())
    assert picture(tmp_path) == before
    assert (tmp_path / THREE).read_bytes() == own


def test_a_recovery_that_the_disk_refuses_is_tried_again(tmp_path: Path) -> None:
    expected = vector_45(tmp_path)
    first_link_not_renamed(tmp_path, output(tmp_path, [1, 2, 3], LIVE))
    (tmp_path / f"{segment_name(9)}.tmp").write_bytes(b"")
    refused = 0
    for fail_at in range(1, 30):
        files = FailingFiles(fail_at=fail_at, errno=5)
        try:
            recover_folder(files, tmp_path)
        except StorageError:
            refused += 1
            with LogReader(tmp_path) as reader:
                expected.check(reader)
        else:
            break
    assert refused > 3
    with SegmentLog(tmp_path, options()) as log:
        assert not log.recovery
        expected.check(log)


def test_the_log_opens_on_a_disk_without_room_for_links(tmp_path: Path) -> None:
    expected = vector_45(tmp_path)
    first_link(tmp_path, output(tmp_path, [1, 2, 3], LIVE))

    def refuse(operation: str, path: str) -> None:
        if operation in ("symlink", "link", "create", "make folder"):
            raise DiskFull(operation=operation, path=path, errno=28)

    with SegmentLog(tmp_path, options(WatchedFiles(refuse))) as log:
        expected.check(log)
        assert strays(tmp_path) == []
        assert links(tmp_path) == {2: ONE}


def test_recovery_is_reported(tmp_path: Path) -> None:
    vector_45(tmp_path)
    no_link(tmp_path, output(tmp_path, [1, 2, 3], LIVE))
    (tmp_path / "SNAPSHOT.tmp").write_bytes(b"")
    with SegmentLog(tmp_path, options()) as log:
        report = log.recovery
        assert (report.finished, report.removed) == (((1, 2, 3),), ("SNAPSHOT.tmp",))
        assert bool(report)
    with SegmentLog(tmp_path, options()) as log:
        assert not log.recovery
