# SPDX-License-Identifier: Apache-2.0
"""The fault model: the possible and the impossible results of a crash for each kind of change."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from compactlib.errors import InvalidInput, StorageError, Unsupported
from compactlib.files import Files
from compactlib.testing import Choices, RecordingFiles, explore_crashes, record, repeat_crash
from compactlib.testing.disk_model import CrashModel, distinct_crashes
from tests.harness.pictures import Picture, after_crash, after_last, picture, same_pictures


def carry_out(folder: Path, files: Files, change: tuple[object, ...]) -> None:
    """Make one change; a refusal of the disk or the recorder is a refusal here."""
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


def contents(pictures: list[Picture], name: str) -> set[object]:
    return {each.get(name) for each in pictures}


SUB: Picture = {"sub": None}
SUB_A: Picture = {"sub": None, "sub/a": b"x"}
WHOLE = b"0123456789"
PUT = [("create", "a"), ("write", "a", 0, b"x"), ("sync", "a")]
PUT_BELOW = [("create", "sub/a"), ("write", "sub/a", 0, b"x"), ("sync", "sub/a")]
LEFT: dict[str, tuple[Picture, Sequence[tuple[object, ...]], list[Picture]]] = {
    "a synced file has no synced name": ({}, PUT, [{}, {"a": b"x"}]),
    "a synced file in a synced folder is there": ({}, [*PUT, ("sync_folder", ".")], [{"a": b"x"}]),
    # Nothing, prefixes of one byte, half, all but one; everything; and grown without its only block.
    "a synced name leaves the bytes open": (
        {}, [("create", "a"), ("write", "a", 0, WHOLE), ("sync_folder", ".")],
        [{"a": each} for each in (b"", b"0", b"01234", b"012345678", WHOLE, bytes(10))]),
    "a sync covers what was written before it": (
        {"a": b""}, [("write", "a", 0, b"x"), ("sync", "a"), ("write", "a", 1, b"y")],
        [{"a": b"x"}, {"a": b"xy"}, {"a": b"x\0"}]),
    "a change of length is there or not": (
        {"a": b"12345"}, [("truncate", "a", 2), ("truncate", "a", 4)],
        [{"a": each} for each in (b"12345", b"12", b"1234", b"12\0\0")]),
    "names are lost independently": (
        {}, [("make_folder", "a"), ("make_folder", "b")], [{}, {"a": None}, {"b": None}, {"a": None, "b": None}]),
    "a rename within a folder is one change": (
        {"a": b"new", "b": b"old"}, [("rename", "a", "b")], [{"a": b"new", "b": b"old"}, {"b": b"new"}]),
    "a rename keeps the file if its name was lost": (
        {}, [*PUT, ("rename", "a", "b")], [{}, {"a": b"x"}, {"b": b"x"}]),
    "the source folder synced alone": (
        SUB_A, [("rename", "sub/a", "b"), ("sync_folder", "sub")], [SUB, {**SUB, "b": b"x"}]),
    "a symbolic link": ({}, [("symlink", "nowhere", "s")], [{}, {"s": "nowhere"}]),
    "a link to a symbolic link": ({"s": "text"}, [("link", "s", "t")], [{"s": "text"}, {"s": "text", "t": "text"}]),
    "an unlink": ({"a": b"x"}, [("unlink", "a")], [{"a": b"x"}, {}]),
    "a synced unlink": ({"a": b"x"}, [("unlink", "a"), ("sync_folder", ".")], [{}]),
    "a name used again": ({"a": b"old"}, [("unlink", "a"), *PUT], [{"a": b"old"}, {"a": b"x"}, {}]),
    "a lost folder takes what was synced in it": (
        {}, [("make_folder", "sub"), *PUT_BELOW, ("sync_folder", "sub")], [{}, SUB_A]),
    "a removed folder and its file": (
        SUB_A, [("unlink", "sub/a"), ("remove_folder", "sub")], [SUB_A, SUB, {}]),
    "a folder renamed within its parent": (
        SUB_A, [("rename", "sub", "bus")], [SUB_A, {"bus": None, "bus/a": b"x"}]),
    "a folder synced above a new name": (SUB, [*PUT_BELOW, ("sync_folder", ".")], [SUB, SUB_A]),
    "what was there before": (
        {**SUB_A, "s": "sub/a"}, [("sync_folder", ".")], [{**SUB_A, "s": "sub/a"}]),
}


@pytest.mark.parametrize("name", LEFT)
def test_crash_leaves(name: str, tmp_path: Path) -> None:
    before, changes, left = LEFT[name]
    for path, content in before.items():
        if content is None:
            (tmp_path / path).mkdir()
        elif isinstance(content, str):
            (tmp_path / path).symlink_to(content)
        else:
            (tmp_path / path).write_bytes(content)  # type: ignore[arg-type]

    def work(folder: Path, files: Files) -> None:
        for change in changes:
            carry_out(folder, files, change)

    assert same_pictures(after_last(tmp_path, work), left)


# ------------------------------------------------------------------------------------------------------------ bytes


def test_a_sync_covers_earlier_writes_under_any_name(tmp_path: Path) -> None:
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


DATA, HEAD = bytes(1 + place % 255 for place in range(10_000)), b"\xff" * 100
AMONG: dict[str, tuple[bytes, Sequence[tuple[object, ...]], set[bytes]]] = {
    "writes are lost independently, and holes read as zeros": (
        b"", [("write", "a", 0, b"x"), ("write", "a", 1, b"y"), ("write", "a", 2, b"z")],
        {b"", b"x", b"\0y", b"\0\0z", b"xy", b"x\0z", b"\0yz", b"xyz"}),
    # At multiples of 512 in the file; without block 0, 1, or the last block: grown, never written.
    "a torn write is cut at sectors or lacks a block": (HEAD, [("write", "a", 100, DATA)], {
        HEAD, HEAD + DATA, HEAD + DATA[:1], HEAD + DATA[:-1], HEAD + DATA[:5000], HEAD + DATA[:412],
        HEAD + DATA[:10_100 // 512 * 512 - 100], HEAD + bytes(3996) + DATA[3996:],
        HEAD + DATA[:3996] + bytes(4096) + DATA[8092:], HEAD + DATA[:8092] + bytes(10_100 - 8192)}),
    "a lost block of an overwrite holds the old bytes": (
        b"o" * 8192, [("write", "a", 0, b"n" * 8192)], {b"o" * 4096 + b"n" * 4096, b"n" * 4096 + b"o" * 4096}),
}


@pytest.mark.parametrize("name", AMONG)
def test_crash_leaves_among_others(name: str, tmp_path: Path) -> None:
    before, changes, some = AMONG[name]
    (tmp_path / "a").write_bytes(before)

    def work(folder: Path, files: Files) -> None:
        for change in changes:
            carry_out(folder, files, change)

    found = contents(after_last(tmp_path, work), "a")
    assert some <= found
    if before == HEAD:
        assert all(isinstance(each, bytes) and each.startswith(HEAD) for each in found)


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


def test_bytes_are_written_to_a_renamed_file(tmp_path: Path) -> None:
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


def test_a_file_without_a_name_does_not_count(tmp_path: Path) -> None:
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
    explore_crashes(recording, lambda folder, acknowledged: states.append(picture(folder)), points=[last])
    assert states == [{"b": b"x" * 12}]


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
        repeat_crash(recording, {0: point}, base / f"point-{point}")
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


# ------------------------------------------------------------------------------------------------ crashes are picks

def busy(folder: Path, files: RecordingFiles) -> None:
    """Nine writes and nine names, none of them synced."""
    for number in range(3):
        out = files.create(folder / f"file-{number}")
        for place in range(3):
            out.write_at(place * 700, [bytes([65 + place]) * 700])
        out.close()
        files.rename(folder / f"file-{number}", folder / f"renamed-{number}")
        files.link(folder / f"renamed-{number}", folder / f"linked-{number}")
        files.acknowledge(number)


@pytest.mark.parametrize("limit", [2, 20, 1000])
def test_every_crash_is_its_picks(tmp_path: Path, limit: int) -> None:
    recording = record(tmp_path, busy)
    for model, fates, _ in distinct_crashes(recording, random.Random(1), limit, [2, 5, 18], set()):
        again = CrashModel(recording)
        choices = Choices(model.picks(fates))
        again.advance_to(choices.pick("operations before the crash", *range(19)))
        assert again.pick(choices) == fates
        assert choices.departures == model.picks(fates)


def test_a_sampled_point_has_the_plain_crashes(tmp_path: Path) -> None:
    recording = record(tmp_path, busy)
    found: list[Picture] = []
    assert explore_crashes(recording, lambda folder, _: found.append(picture(folder)),
                           points=[len(recording.operations)]) == len(found) <= 128
    everything = picture(tmp_path)
    assert found[0] == everything
    assert {} in found
    for number in range(3):
        one_less = {name: value for name, value in everything.items() if name != f"linked-{number}"}
        del one_less[f"nlink:linked-{number}"]
        assert one_less in found


def test_points_beyond_the_recording_are_refused(tmp_path: Path) -> None:
    recording = record(tmp_path, busy)
    with pytest.raises(InvalidInput, match="cannot be cut after 99"):
        explore_crashes(recording, lambda folder, acknowledged: None, points=[99])
    with pytest.raises(InvalidInput, match="limit_per_point is 0"):
        explore_crashes(recording, lambda folder, acknowledged: None, limit_per_point=0)
