# SPDX-License-Identifier: Apache-2.0
"""The fault model: what a crash may leave of each kind of change, and what it may not."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from compactlib.errors import InvalidInput, StorageError, Unsupported
from compactlib.files import Files, write_durably
from compactlib.testing import explore, record
from compactlib.testing.crash.harness import explain, replay
from compactlib.testing.crash.recorder import RecordingFiles
from compactlib.testing.crash.state import CrashState
from tests.testing.pictures import Picture, after_crash, after_last, picture, same_pictures


def put(files: Files, path: Path, data: bytes, *, sync: bool = True) -> None:
    """Create a file with `data`; its name is not made durable."""
    out = files.create(path)
    out.write_at(0, [data])
    if sync:
        out.sync()
    out.close()


def contents(pictures: list[Picture], name: str) -> set[object]:
    return {each.get(name) for each in pictures}


# ------------------------------------------------------------------------------------------------------------ bytes


def test_synced_file_may_be_gone_when_its_name_was_not_synced(tmp_path: Path) -> None:
    left = after_last(tmp_path, lambda folder, files: put(files, folder / "a", b"data"))
    assert same_pictures(left, [{}, {"a": b"data"}])


def test_synced_folder_leaves_the_bytes_of_an_unsynced_file_open(tmp_path: Path) -> None:
    def work(folder: Path, files: Files) -> None:
        put(files, folder / "a", b"0123456789", sync=False)
        files.sync_folder(folder)

    # Nothing, prefixes of 1 byte, half, all but one; everything; and grown without its only block.
    whole = b"0123456789"
    assert contents(after_last(tmp_path, work), "a") == {b"", b"0", b"01234", b"012345678", whole, bytes(10)}


def test_synced_file_in_a_synced_folder_is_there_whole(tmp_path: Path) -> None:
    def work(folder: Path, files: Files) -> None:
        put(files, folder / "a", b"data")
        files.sync_folder(folder)

    assert after_last(tmp_path, work) == [{"a": b"data"}]


def test_a_sync_covers_what_was_written_before_it_and_nothing_after(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")

    def work(folder: Path, files: Files) -> None:
        out = files.open(folder / "a")
        out.write_at(0, [b"x"])
        out.sync()
        out.write_at(1, [b"y"])
        out.close()

    assert contents(after_last(tmp_path, work), "a") == {b"x", b"xy", b"x\0"}


def test_a_sync_covers_all_that_was_written_before_it_under_any_name(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1234")
    os.link(tmp_path / "a", tmp_path / "b")

    def work(folder: Path, files: Files) -> None:
        out, other = files.open(folder / "a"), files.open(folder / "b")
        out.write_at(0, [b"x"])
        other.write_at(1, [b"y"])
        out.truncate(3)
        other.write_at(3, [b"z"])
        out.sync()
        out.close()
        other.close()

    assert contents(after_last(tmp_path, work), "a") == {b"xy3z"}


def test_writes_are_lost_independently_and_holes_read_as_zeros(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")

    def work(folder: Path, files: Files) -> None:
        out = files.open(folder / "a")
        for place, byte in enumerate((b"x", b"y", b"z")):
            out.write_at(place, [byte])
        out.close()

    found = contents(after_last(tmp_path, work), "a")
    assert {b"", b"x", b"\0y", b"\0\0z", b"xy", b"x\0z", b"\0yz", b"xyz"} <= found


def test_a_torn_write_is_cut_at_sectors_of_the_file_or_lacks_a_block(tmp_path: Path) -> None:
    data = bytes(1 + place % 255 for place in range(10_000))
    (tmp_path / "a").write_bytes(b"\xff" * 100)

    def work(folder: Path, files: Files) -> None:
        out = files.open(folder / "a")
        out.write_at(100, [data])
        out.close()

    found = contents(after_last(tmp_path, work), "a")
    head = b"\xff" * 100
    assert {head, head + data, head + data[:1], head + data[:-1], head + data[:5000]} <= found
    assert head + data[:412] in found  # up to the first multiple of 512 in the file
    assert head + data[:10_100 // 512 * 512 - 100] in found
    assert head + bytes(4096 - 100) + data[4096 - 100:] in found  # block 0
    assert head + data[:4096 - 100] + bytes(4096) + data[2 * 4096 - 100:] in found
    assert head + data[:2 * 4096 - 100] + bytes(10_100 - 2 * 4096) in found  # the last block: grown, never written
    assert all(isinstance(each, bytes) and each.startswith(head) for each in found)


def test_a_lost_block_of_an_overwrite_holds_the_old_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"o" * 8192)

    def work(folder: Path, files: Files) -> None:
        out = files.open(folder / "a")
        out.write_at(0, [b"n" * 8192])
        out.close()

    assert {b"o" * 4096 + b"n" * 4096, b"n" * 4096 + b"o" * 4096} <= contents(after_last(tmp_path, work), "a")


def test_a_change_of_length_is_there_or_not(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")

    def work(folder: Path, files: Files) -> None:
        out = files.open(folder / "a")
        out.truncate(2)
        out.truncate(4)
        out.close()

    assert contents(after_last(tmp_path, work), "a") == {b"12345", b"12", b"1234", b"12\0\0"}


def test_a_copy_is_a_write_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"0123456789")

    def work(folder: Path, files: Files) -> None:
        out = files.create(folder / "a")
        source = os.open(folder / "source", os.O_RDONLY)
        out.copy_from(source, 2, 3, 1)
        os.close(source)
        out.close()
        files.sync_folder(folder)

    assert {b"", b"\x00234", b"\x002", b"\0\0\0\0"} <= contents(after_last(tmp_path, work), "a")


def test_bytes_go_to_the_file_whatever_it_is_called_by_then(tmp_path: Path) -> None:
    def work(folder: Path, files: Files) -> None:
        out = files.create(folder / "a")
        files.rename(folder / "a", folder / "b")
        files.link(folder / "b", folder / "c")
        out.write_at(0, [b"x"])
        files.open(folder / "c").sync()
        files.sync_folder(folder)
        out.close()

    assert after_last(tmp_path, work) == [{"b": b"x", "c": b"x", "nlink:b": ("b", "c")}]


# ------------------------------------------------------------------------------------------------------------ names


def test_names_are_lost_independently(tmp_path: Path) -> None:
    def work(folder: Path, files: Files) -> None:
        for name in ("a", "b", "c"):
            files.create(folder / name).close()

    assert len(after_last(tmp_path, work)) == 8


def test_a_rename_within_a_folder_is_one_change(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"new")
    (tmp_path / "b").write_bytes(b"old")
    left = after_last(tmp_path, lambda folder, files: files.rename(folder / "a", folder / "b"))
    assert same_pictures(left, [{"a": b"new", "b": b"old"}, {"b": b"new"}])


def test_a_rename_keeps_the_file_even_if_the_name_it_had_was_lost(tmp_path: Path) -> None:
    def work(folder: Path, files: Files) -> None:
        put(files, folder / "a", b"1")
        files.rename(folder / "a", folder / "b")

    assert same_pictures(after_last(tmp_path, work), [{}, {"a": b"1"}, {"b": b"1"}])


def test_a_rename_between_folders_is_two_changes(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    (tmp_path / "from/a").write_bytes(b"x")

    def work(folder: Path, files: Files) -> None:
        files.rename(folder / "from/a", folder / "to/b")
        files.sync_folder(folder / "to")
        files.sync_folder(folder / "from")

    recording = record(tmp_path, work)
    empty: Picture = {"from": None, "to": None}
    old, new = {**empty, "from/a": b"x"}, {**empty, "to/b": b"x"}
    both = {**old, **new, "nlink:from/a": ("from/a", "to/b")}
    assert same_pictures(after_crash(recording, 0), [old])
    assert same_pictures(after_crash(recording, 1), [old, new, both, empty])
    assert same_pictures(after_crash(recording, 2), [new, both])
    assert same_pictures(after_crash(recording, 3), [new])


def test_the_source_folder_synced_alone_leaves_the_file_without_a_name(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from/a").write_bytes(b"x")

    def work(folder: Path, files: Files) -> None:
        files.rename(folder / "from/a", folder / "b")
        files.sync_folder(folder / "from")

    assert same_pictures(after_last(tmp_path, work), [{"from": None}, {"from": None, "b": b"x"}])


def test_hard_links_are_rebuilt_as_links_with_their_count(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")

    def work(folder: Path, files: Files) -> None:
        files.link(folder / "a", folder / "b")
        files.sync_folder(folder)
        files.link(folder / "b", folder / "c")

    recording = record(tmp_path, work)
    for state, names in (("3:-2", ["a", "b"]), ("3", ["a", "b", "c"]), ("1:-0", ["a"])):
        target = tmp_path.parent / f"{tmp_path.name}-{state}"
        replay(recording, state, target)
        assert sorted(os.listdir(target)) == names
        assert {(target / name).stat().st_nlink for name in names} == {len(names)}
        assert len({(target / name).stat().st_ino for name in names}) == 1


def test_hard_links_from_before_are_known(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    os.link(tmp_path / "a", tmp_path / "b")

    def work(folder: Path, files: Files) -> None:
        out = files.open(folder / "a")
        out.write_at(0, [b"y"])
        out.sync()
        out.close()

    assert after_last(tmp_path, work) == [{"a": b"y", "b": b"y", "nlink:a": ("a", "b")}]


def test_symbolic_links_are_there_or_not(tmp_path: Path) -> None:
    def work(folder: Path, files: Files) -> None:
        files.symlink("nowhere/at all", folder / "s")

    assert same_pictures(after_last(tmp_path, work), [{}, {"s": "nowhere/at all"}])


def test_what_no_name_can_lead_to_any_more_does_not_count(tmp_path: Path) -> None:
    """Else a dozen lost writes to a removed file would make thousands of states, all alike."""
    def work(folder: Path, files: Files) -> None:
        files.make_folder(folder / "private")
        out = files.create(folder / "private/a")
        other = files.create(folder / "private/b")
        for place in range(12):
            out.write_at(place, [b"x"])
            other.write_at(place, [b"x"])
        files.rename(folder / "private/b", folder / "b")
        other.sync()
        files.unlink(folder / "private/a")
        files.remove_folder(folder / "private")
        files.sync_folder(folder)
        out.write_at(0, [b"y"])
        out.truncate(1)
        out.close()
        other.close()

    recording = record(tmp_path, work)
    last = len(recording.operations)
    states: list[Picture] = []
    report = explore(recording, lambda folder, acknowledged: states.append(picture(folder)), points=[last])
    assert (report.states_checked, states) == (1, [{"b": b"x" * 12}])
    assert explain(recording, str(last)).count("gone for good") >= 5


def test_a_symbolic_link_can_be_linked_itself(tmp_path: Path) -> None:
    (tmp_path / "s").symlink_to("text")

    def work(folder: Path, files: Files) -> None:
        files.link(folder / "s", folder / "t")

    assert same_pictures(after_last(tmp_path, work), [{"s": "text"}, {"s": "text", "t": "text"}])


def test_an_unlink_is_there_or_not(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")

    def work(folder: Path, files: Files) -> None:
        files.unlink(folder / "a")
        files.sync_folder(folder)

    recording = record(tmp_path, work)
    assert same_pictures(after_crash(recording, 1), [{"a": b"x"}, {}])
    assert same_pictures(after_crash(recording, 2), [{}])


def test_a_name_used_again_leads_to_either_file_or_none(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")

    def work(folder: Path, files: Files) -> None:
        files.unlink(folder / "a")
        put(files, folder / "a", b"new")

    assert same_pictures(after_last(tmp_path, work), [{"a": b"old"}, {"a": b"new"}, {}])


def test_a_lost_folder_takes_what_was_synced_in_it(tmp_path: Path) -> None:
    def work(folder: Path, files: Files) -> None:
        files.make_folder(folder / "sub")
        put(files, folder / "sub/a", b"x")
        files.sync_folder(folder / "sub")

    assert same_pictures(after_last(tmp_path, work), [{}, {"sub": None, "sub/a": b"x"}])


def test_removing_a_folder_and_what_was_in_it_may_survive_apart(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a").write_bytes(b"x")

    def work(folder: Path, files: Files) -> None:
        files.unlink(folder / "sub/a")
        files.remove_folder(folder / "sub")

    assert same_pictures(after_last(tmp_path, work), [{"sub": None, "sub/a": b"x"}, {"sub": None}, {}])


def test_a_folder_renamed_within_its_parent_keeps_its_content(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a").write_bytes(b"x")
    left = after_last(tmp_path, lambda folder, files: files.rename(folder / "sub", folder / "bus"))
    assert same_pictures(left, [{"sub": None, "sub/a": b"x"}, {"bus": None, "bus/a": b"x"}])


def test_syncing_a_folder_makes_neither_its_own_name_nor_those_below_durable(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()

    def work(folder: Path, files: Files) -> None:
        put(files, folder / "sub/a", b"x")
        files.sync_folder(folder)

    assert same_pictures(after_last(tmp_path, work), [{"sub": None}, {"sub": None, "sub/a": b"x"}])


def test_what_was_there_before_is_durable(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a").write_bytes(b"x" * 5000)
    (tmp_path / "s").symlink_to("sub/a")
    before = picture(tmp_path)
    assert after_last(tmp_path, lambda folder, files: files.sync_folder(folder)) == [before]


# ------------------------------------------------------------------------------------ the model against a real disk

NAMES = st.sampled_from(["a", "b", "c", "sub/a", "sub/b", "sub"])
CHANGES = st.one_of(
    st.tuples(st.just("create"), NAMES),
    st.tuples(st.just("write"), NAMES, st.integers(0, 12), st.binary(min_size=1, max_size=8)),
    st.tuples(st.just("truncate"), NAMES, st.integers(0, 12)),
    st.tuples(st.just("sync"), NAMES),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.just("link"), NAMES, NAMES),
    st.tuples(st.just("symlink"), st.sampled_from(["a", "sub/a"]), st.sampled_from(["b", "c", "sub/b"])),
    st.tuples(st.just("unlink"), NAMES),
    st.tuples(st.just("make_folder"), st.just("sub")),
    st.tuples(st.just("remove_folder"), st.just("sub")),
    st.tuples(st.just("sync_folder"), st.sampled_from([".", "sub"])),
)


def furnish(folder: Path) -> None:
    """Something to change: two files, one of them with two names, in two folders."""
    (folder / "sub").mkdir(parents=True)
    (folder / "a").write_bytes(b"aaaa")
    (folder / "sub/a").write_bytes(b"bbbb")
    os.link(folder / "sub/a", folder / "b")


def carry_out(folder: Path, files: Files, change: tuple[object, ...]) -> None:
    """One change; what the disk or the recorder refuses is refused."""
    kind, *arguments = change
    paths = [folder / each if isinstance(each, str) else each for each in arguments]
    if kind == "create":
        files.create(paths[0]).close()  # type: ignore[arg-type]
    elif kind in ("write", "truncate", "sync"):
        out = files.open(paths[0])  # type: ignore[arg-type]
        try:
            if kind == "write":
                out.write_at(paths[1], [paths[2]])  # type: ignore[arg-type,list-item]
            elif kind == "truncate":
                out.truncate(paths[1])  # type: ignore[arg-type]
            else:
                out.sync()
        finally:
            out.close()
    elif kind == "symlink":
        files.symlink(str(arguments[0]), paths[1])  # type: ignore[arg-type]
    else:
        getattr(files, str(kind))(*paths)


@settings(max_examples=60, deadline=None)
@given(st.lists(CHANGES, max_size=25))
def test_with_nothing_lost_the_model_is_the_real_disk(tmp_path_factory: pytest.TempPathFactory,
                                                      changes: list[tuple[object, ...]]) -> None:
    base = tmp_path_factory.mktemp("model")
    furnish(base / "real")
    stood = {0: picture(base / "real")}

    def work(folder: Path, files: RecordingFiles) -> None:
        for change in changes:
            with contextlib.suppress(StorageError, Unsupported):
                carry_out(folder, files, change)
                stood[len(files.recording().operations)] = picture(folder)

    recording = record(base / "real", work)
    for point, expected in stood.items():
        replay(recording, CrashState(point), base / f"point-{point}")
        assert picture(base / f"point-{point}") == expected


@settings(max_examples=40, deadline=None)
@given(st.lists(CHANGES, max_size=25))
def test_with_everything_synced_nothing_can_be_lost(tmp_path_factory: pytest.TempPathFactory,
                                                    changes: list[tuple[object, ...]]) -> None:
    folder = tmp_path_factory.mktemp("synced") / "real"
    furnish(folder)

    def work(folder: Path, files: Files) -> None:
        for change in changes:
            with contextlib.suppress(StorageError, Unsupported):
                carry_out(folder, files, change)
        for base, _, names in os.walk(folder):
            for name in names:
                if not os.path.islink(os.path.join(base, name)):
                    out = files.open(os.path.join(base, name))
                    out.sync()
                    out.close()
            files.sync_folder(base)

    assert after_last(folder, work) == [picture(folder)]


# ------------------------------------------------------------------------------------------------- states as text

@pytest.mark.parametrize("text", ["0", "31", "31:-28,-30,~17@512", "31:-*", "31:-*,+5,~17!3", "8:-2.new,-2.old"])
def test_a_state_prints_as_it_was_parsed(text: str) -> None:
    assert str(CrashState.parse(text)) == text
    assert CrashState.parse(str(CrashState.parse(text))) == CrashState.parse(text)


@pytest.mark.parametrize("text", ["", "x", "-3", "31:28", "31:+5", "31:-*,-5", "31:-5,,-6", "31:~5", "31:~5@",
                                  "31:-5.mid", "31:-5\n-6"])
def test_a_text_that_is_no_state_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"crash state"):
        CrashState.parse(text)


@pytest.mark.parametrize(("state", "why"), [
    ("9", "it has 5"),
    ("5:-0", "cannot be lost"),  # durable
    ("2:-3", "cannot be lost"),  # not yet done
    ("4:-2", "cannot be lost"),  # a sync
    ("1:~0@1", "cannot be torn"),  # a name
    ("2:~1@2", "cannot be torn"),  # the whole write
    ("2:~1!1", "cannot be torn"),  # elsewhere
])
def test_a_state_that_does_not_fit_the_recording_is_refused(tmp_path: Path, state: str, why: str) -> None:
    (tmp_path / "work").mkdir()
    recording = record(tmp_path / "work", lambda folder, files: write_durably(files, folder / "a", [b"xy"]))
    assert [str(operation).split()[0] for operation in recording.operations] == [
        "create", "write", "sync", "rename", "sync"]
    with pytest.raises(InvalidInput, match=why):
        replay(recording, state, tmp_path / "out")
