# SPDX-License-Identifier: Apache-2.0
"""The folder of a store in an object store: fetched, changed, committed as a whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError, CorruptData, InvalidInput, NotFound, Stale, StorageError, Unsupported
from compactlib.files import LocalFiles
from compactlib.objects import Digest, LocalObjects, MemoryObjects, ObjectRef, ObjectStore, ObjectStoreFailed
from compactlib.objects.folder import Contents, ObjectFolder, WorkingCopy, contents_of
from compactlib.objects.register import ObjectRegister
from compactlib.objects.stored_file import StoredFile
from compactlib.scheduler import FencedOff, MemoryFence, TokenFence
from tests.harness.objects.unsure_objects import UnsureObjects

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "objects-folder.md"
DIGEST = Digest.of(b"x").hex.encode()


def heads(folder: str) -> Mapping[str, int]:
    """Of each `.big` file the first three bytes."""
    return {name: 3 for name in os.listdir(folder) if name.endswith(".big")}


def folder_in(objects: ObjectStore) -> ObjectFolder:
    return ObjectFolder(objects, "stores/one", heads=heads, part_bytes=4, clock=ManualClock(0.0))


def made(folder: Path) -> Path:
    (folder / "below" / "deeper").mkdir(parents=True)
    (folder / "a.big").write_bytes(b"0123456789")
    (folder / "empty").write_bytes(b"")
    (folder / "below" / "b").write_bytes(b"b")
    (folder / "link").symlink_to("a.big")
    os.utime(folder / "link", ns=(10 ** 18, 10 ** 18), follow_symlinks=False)
    return folder


def picture(folder: Path) -> dict[str, object]:
    """All that is in a folder."""
    return {str(path.relative_to(folder)): (os.readlink(path), path.lstat().st_mtime_ns) if path.is_symlink()
            else path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def held(objects: ObjectStore, scratch: Path) -> dict[str, object]:
    """All that the folder in the object store holds."""
    copy = folder_in(objects).fetch(scratch / f"seen-{len(list(scratch.iterdir()))}")
    return picture(Path(copy.folder))


def test_a_folder_comes_back_as_it_was_put(tmp_path: Path) -> None:
    objects = MemoryObjects()
    source = made(tmp_path / "source")
    (source / "LOCK").touch()
    version = folder_in(objects).put(source)
    (source / "LOCK").unlink()
    assert held(objects, tmp_path) == picture(source)
    assert max(info.size_bytes for info in objects.list("stores/one/files/")) == 4
    assert contents_of(version, "").files["a.big"].head_bytes == 3
    with pytest.raises(Stale):
        folder_in(objects).put(source)


def test_there_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="stores/one"):
        folder_in(MemoryObjects()).fetch(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    with pytest.raises(InvalidInput, match="part_bytes"):
        ObjectFolder(MemoryObjects(), "one", part_bytes=0)


def test_only_what_was_changed_travels(tmp_path: Path) -> None:
    objects = MemoryObjects()
    folder_in(objects).put(made(tmp_path / "source"))
    before = {info.key for info in objects.list("stores/one/files/")}
    with folder_in(objects).opened() as copy:
        here = Path(copy.folder)
        (here / "a.big").rename(here / "below" / "c.big")
        os.link(here / "below" / "c.big", here / "d.big")
        (here / "below" / "b").write_bytes(b"B")
        (here / "link").unlink()
        (here / "empty").unlink()
        expected = picture(here)
    assert not here.exists()
    assert held(objects, tmp_path) == expected
    added = {info.key for info in objects.list("stores/one/files/")} - before
    assert len(added) == 1


def test_a_folder_that_was_not_changed_gets_no_version(tmp_path: Path) -> None:
    objects = MemoryObjects()
    first = folder_in(objects).put(made(tmp_path / "source"))
    for only_heads in (False, True):
        with folder_in(objects).opened(only_heads=only_heads):
            pass
    assert folder_in(objects).read() == first


def test_what_a_commit_has_put_is_not_put_again(tmp_path: Path) -> None:
    objects = MemoryObjects()
    source = made(tmp_path / "source")
    times = [path.stat().st_mtime_ns for path in source.rglob("*")]
    folder_in(objects).put(source)
    assert [path.stat().st_mtime_ns for path in source.rglob("*")] == times
    copy = folder_in(objects).fetch(tmp_path / "copy")
    (tmp_path / "copy" / "new").write_bytes(b"0123456789")
    version = folder_in(objects).commit(copy)
    there = list(objects.list())
    assert folder_in(objects).commit(copy) == version
    assert list(objects.list()) == there
    # The same size, and changed.
    (tmp_path / "copy" / "new").write_bytes(b"9876543210")
    assert folder_in(objects).commit(copy) != version
    assert held(objects, tmp_path) == picture(tmp_path / "copy")


def test_of_large_files_only_the_heads_are_read(tmp_path: Path) -> None:
    objects = MemoryObjects()
    source = made(tmp_path / "source")
    folder_in(objects).put(source)
    with folder_in(objects).opened(only_heads=True, scratch=str(tmp_path)) as copy:
        here = Path(copy.folder)
        assert here.name == "one"
        assert (here / "a.big").read_bytes() == b"012" + bytes(7)
        assert (here / "below" / "b").read_bytes() == b"b"
        (here / "a.big").rename(here / "e.big")
        # An inode that was given back is no hole of another file.
        (here / "below" / "b").unlink()
        (here / "new").write_bytes(b"new")
    (source / "a.big").rename(source / "e.big")
    (source / "below" / "b").unlink()
    (source / "new").write_bytes(b"new")
    assert held(objects, tmp_path) == picture(source)


@pytest.mark.parametrize("same_size", [False, True])
def test_a_file_of_which_only_the_head_is_there_is_not_put_back_changed(tmp_path: Path, *, same_size: bool) -> None:
    objects = MemoryObjects()
    first = folder_in(objects).put(made(tmp_path / "source"))

    def change(copy: WorkingCopy) -> None:
        with open(os.path.join(copy.folder, "a.big"), "r+b") as file:
            file.seek(0 if same_size else 10)
            file.write(b"9")

    with pytest.raises(Unsupported, match=r"a\.big was changed"), folder_in(objects).opened(only_heads=True) as copy:
        change(copy)
    assert folder_in(objects).read() == first


def test_a_removed_head_and_a_new_file_are_not_taken_for_each_other(tmp_path: Path) -> None:
    objects = MemoryObjects()
    folder_in(objects).put(made(tmp_path / "source"))
    with folder_in(objects).opened(only_heads=True) as copy:
        for number in range(20):
            (Path(copy.folder) / "a.big").unlink(missing_ok=True)
            (Path(copy.folder) / f"new-{number}").write_bytes(b"%d" % number)
    assert {f"new-{number}" for number in range(20)} <= held(objects, tmp_path).keys()


def test_what_raises_in_between_changes_nothing(tmp_path: Path) -> None:
    objects = MemoryObjects()
    first = folder_in(objects).put(made(tmp_path / "source"))
    with pytest.raises(IsADirectoryError), folder_in(objects).opened(scratch=str(tmp_path)) as copy:
        (Path(copy.folder) / "below").write_bytes(b"")
    assert folder_in(objects).read() == first
    assert [each.name for each in tmp_path.iterdir()] == ["source"]


def test_the_second_of_two_has_changed_nothing(tmp_path: Path) -> None:
    objects = MemoryObjects()
    folder_in(objects).put(made(tmp_path / "source"))
    one, other = (folder_in(objects).fetch(tmp_path / name) for name in ("one", "other"))
    for copy in (one, other):
        (Path(copy.folder) / "empty").write_bytes(copy.folder.encode())
    version = folder_in(objects).commit(other)
    with pytest.raises(Stale):
        folder_in(objects).commit(one)
    assert folder_in(objects).read() == version
    # What was committed may be changed and committed again.
    (Path(other.folder) / "empty").write_bytes(b"again")
    assert folder_in(objects).commit(other).number == 3


def test_a_fence_is_asked_at_the_commit(tmp_path: Path) -> None:
    objects, fence = MemoryObjects(), MemoryFence()
    first = folder_in(objects).put(made(tmp_path / "source"), fence=TokenFence(fence, "one", 5))
    with pytest.raises(FencedOff), folder_in(objects).opened(fence=TokenFence(fence, "one", 4)) as copy:
        (Path(copy.folder) / "new").write_bytes(b"")
    assert folder_in(objects).read() == first


@pytest.mark.parametrize("wrong", [{"older_than_seconds": -1}, {"older_than_seconds": math.nan}, {"now": math.nan},
                                   {"now": "noon"}, {"older_than_seconds": None}])
def test_an_age_below_0_reclaims_nothing(wrong: dict[str, Any], tmp_path: Path) -> None:
    """It would take the files of a commit that is under way."""
    (tmp_path / "file").write_bytes(b"data")
    objects = MemoryObjects()
    folder = ObjectFolder(objects, "store")
    objects.create("store/files/put-and-not-yet-named/0", b"data")
    folder.put(tmp_path)
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        folder.reclaim(**{"now": 0.0, "older_than_seconds": 0.0, **wrong})
    assert len(list(objects.list("store/files/"))) == 2


def test_what_is_no_fence_is_refused_before_anything_is_put(tmp_path: Path) -> None:
    objects = MemoryObjects()
    (tmp_path / "file").write_bytes(b"data")
    with pytest.raises(InvalidInput, match="fence is 5"):
        ObjectFolder(objects, "store").put(tmp_path, fence=5)  # type: ignore[arg-type]
    assert list(objects.list()) == []


def test_a_place_for_working_copies_that_is_not_there_is_named(tmp_path: Path) -> None:
    folder = ObjectFolder(MemoryObjects(), "store")
    with pytest.raises(StorageError, match="make a folder in /"), folder.opened(scratch=f"{tmp_path}/nowhere"):
        pass


def test_what_is_no_file_is_refused_and_a_socket_is_left_out(tmp_path: Path) -> None:
    source = made(tmp_path / "source")
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(os.path.relpath(source / "REQUESTS"))
        objects = MemoryObjects()
        folder_in(objects).put(source)
    assert "REQUESTS" not in held(objects, tmp_path)
    os.mkfifo(source / "pipe")
    with pytest.raises(Unsupported, match="pipe"):
        folder_in(MemoryObjects()).put(source)


# ------------------------------------------------------------------------------------------------- any request fails


def changed(objects: ObjectStore) -> None:
    with folder_in(objects).opened(only_heads=True) as copy:
        here = Path(copy.folder)
        (here / "a.big").unlink()
        (here / "new").write_bytes(b"newer than the others")


def requests() -> int:
    objects = UnsureObjects()
    folder_in(objects).put(made(Path("counted")))
    objects.arm(0)
    changed(objects)
    return objects.requests


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("carried_out", [False, True])
@pytest.mark.parametrize("stays_away", [False, True])
def test_whichever_request_fails_the_folder_is_what_it_was_or_what_it_became(
        here: Path, *, carried_out: bool, stays_away: bool) -> None:
    """A process that dies at a request is one that gets no answer any more."""
    everything = requests()
    assert everything > 12
    ended = []
    for number in range(1, everything + 1):
        objects = UnsureObjects()
        folder_in(objects).put(made(here / f"source-{number}"))
        before = held(objects, here)
        objects.arm(number, carried_out=carried_out, stays_away=stays_away)
        error: CompactlibError | None = None
        try:
            changed(objects)
        except CompactlibError as raised:
            error = raised
        objects.arm(0)
        after = held(objects, here)
        assert after == before or after["new"] == b"newer than the others"
        assert error is not None or after != before
        if after != before:
            assert "a.big" not in after
            assert error is None or isinstance(error, ObjectStoreFailed)
        else:
            changed(objects)
            assert "a.big" not in held(objects, here)
        ended.append((error is None, after != before))
        # What was left behind goes, and nothing else.
        folder_in(objects).reclaim(now=1e12, older_than_seconds=1.0)
        assert "a.big" not in held(objects, here)
    assert (False, False) in ended
    assert (True, True) in ended or stays_away
    assert (False, True) in ended or not stays_away


@pytest.mark.parametrize("changed_again", [False, True])
def test_a_commit_without_an_answer_that_is_asked_for_again_is_no_other_committers(
        here: Path, *, changed_again: bool) -> None:
    """It was `Stale`, which says that nothing was changed."""
    counts = []
    for number in range(1, 6):
        objects = UnsureObjects()
        first = folder_in(objects).put(made(here / f"source-{number}"))
        copy = folder_in(objects).fetch(here / f"copy-{number}")
        (here / f"copy-{number}" / "empty").unlink()
        objects.arm(number, carried_out=True, stays_away=True)
        with contextlib.suppress(ObjectStoreFailed):
            folder_in(objects).commit(copy)
        if changed_again:
            (here / f"copy-{number}" / "link").unlink()
        for away in (1, 2):
            # As long as nothing can be seen, it is unknown.
            objects.arm(away, stays_away=True)
            with contextlib.suppress(ObjectStoreFailed):
                folder_in(objects).commit(copy)
        objects.arm(0)
        counts.append(folder_in(objects).read() != first)
        version = folder_in(objects).commit(copy)
        assert folder_in(objects).read() == version
        assert held(objects, here) == picture(Path(copy.folder))
    assert set(counts) == {False, True}


@pytest.mark.parametrize("changed_again", [False, True])
def test_a_commit_that_arrives_only_when_it_is_asked_for_again_is_no_other_committers(
        here: Path, *, changed_again: bool) -> None:
    """The look did not see it yet, and what came in between was taken for another's."""
    objects = UnsureObjects()
    folder_in(objects).put(made(here / "source"))
    copy = folder_in(objects).fetch(here / "copy")
    (here / "copy" / "empty").unlink()
    objects.arm(1, stays_away=True)
    with pytest.raises(ObjectStoreFailed):
        folder_in(objects).commit(copy)
    (late,) = copy.unseen
    assert copy.version is not None
    number = copy.version.number

    def arrives(request: int) -> None:
        objects.meanwhile = arrives if request < 4 else lambda number: None
        if request == 4:
            ObjectRegister(objects, "stores/one/manifest").replace(late.encoded(), copy.version)

    if changed_again:
        (here / "copy" / "link").unlink()
    objects.arm(0)
    objects.meanwhile = arrives
    version = folder_in(objects).commit(copy)
    assert version.number == number + 1 + changed_again
    assert folder_in(objects).read() == version
    assert held(objects, here) == picture(Path(copy.folder))


def test_a_commit_that_was_interrupted_is_seen_when_it_is_asked_for_again(here: Path) -> None:
    objects = UnsureObjects()
    folder_in(objects).put(made(here / "source"))
    copy = folder_in(objects).fetch(here / "copy")
    (here / "copy" / "empty").unlink()

    def interrupts(request: int) -> None:
        if request == 3:
            raise KeyboardInterrupt

    objects.arm(0)
    objects.meanwhile = interrupts
    with pytest.raises(KeyboardInterrupt):
        folder_in(objects).commit(copy)
    objects.meanwhile = lambda number: None
    version = folder_in(objects).commit(copy)
    assert folder_in(objects).read() == version
    assert version.number == 2


def test_a_disk_that_cannot_be_read_leaves_an_interrupted_commit_unknown(
        here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was `StorageError`, which says that nothing was changed."""
    objects = LocalObjects(here / "objects")
    folder_in(objects).put(made(here / "source"))
    copy = folder_in(objects).fetch(here / "copy")
    (here / "copy" / "empty").unlink()
    with monkeypatch.context() as patched:
        patched.setattr(LocalFiles, "link", _interrupted_behind(LocalFiles.link))
        with pytest.raises(KeyboardInterrupt):
            folder_in(objects).commit(copy)
    with monkeypatch.context() as patched:
        patched.setattr(LocalObjects, "get", _refused)
        with pytest.raises(ObjectStoreFailed, match="cannot be seen") as told:
            folder_in(objects).commit(copy)
    assert told.value.operation == "create"
    assert folder_in(objects).commit(copy).number == 2


def _interrupted_behind(act: Callable[..., None]) -> Callable[..., None]:
    def interrupted(*given: object) -> None:
        act(*given)
        raise KeyboardInterrupt

    return interrupted


def _refused(_: object, key: str) -> bytes:
    raise StorageError.from_os(OSError(errno.EIO, os.strerror(errno.EIO)), "read", key)


# ----------------------------------------------------------------------------------------------------------- reclaim


def test_what_no_version_names_is_reclaimed_by_age(tmp_path: Path) -> None:
    clock = ManualClock(1000.0)
    objects = MemoryObjects(clock=clock)
    folder_in(objects).put(made(tmp_path / "source"))
    reading = folder_in(objects).read()
    objects.create("stores/one/files/left/out/0", b"an attempt that nobody waited for")
    for number in range(3):
        clock.advance(100.0)
        with folder_in(objects).opened() as copy:
            (Path(copy.folder) / "a.big").write_bytes(b"%d" % number * 9)
    expected = held(objects, tmp_path)
    # Two versions are kept in any case, and files as long as one names them.
    assert folder_in(objects).reclaim(now=clock.now(), older_than_seconds=1000.0) == 0
    assert folder_in(objects).reclaim(now=clock.now() + 1, older_than_seconds=150.0) == 5
    assert folder_in(objects).reclaim(now=clock.now() + 1, older_than_seconds=150.0) == 0
    assert folder_in(objects).reclaim(now=1e9, older_than_seconds=150.0) == 4
    assert held(objects, tmp_path) == expected
    assert reading is not None
    missing = {ref.key for file in contents_of(reading, "").files.values() for ref in file.parts}
    missing -= {info.key for info in objects.list()}
    assert missing


@pytest.mark.parametrize(("newer", "told"), [([Contents().encoded()], Stale), ([], CorruptData)])
def test_a_reader_of_a_version_whose_files_went_is_told_whether_there_is_a_newer_one(
        newer: list[bytes], told: type[CompactlibError], tmp_path: Path) -> None:
    """Where there is none, to read it again would be no help."""
    class Losing(MemoryObjects):
        def get(self, key: str) -> bytes:
            if "/files/" in key:
                with contextlib.suppress(IndexError):
                    value = newer.pop()
                    register.replace(value, register.read())
                self.delete(key)
            return super().get(key)

    objects = Losing()
    register = ObjectRegister(objects, "stores/one/manifest")
    folder_in(objects).put(made(tmp_path / "source"))
    with pytest.raises(told, match="reclaimed" if told is Stale else "/files/"):
        folder_in(objects).fetch(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


# -------------------------------------------------------------------------------------------------------- the format


@pytest.mark.parametrize("data", [
    b"", b"[]", b"{}", b'{"files":{},"links":{},"folders":3}', b'{"files":{"../up":[null]},"links":{},"folders":[]}',
    b'{"files":{},"links":{"/etc/passwd":["x",1]},"folders":[]}', b'{"files":{},"links":{},"folders":["a/../b"]}',
    b'{"files":{},"links":{},"folders":[3]}', b'{"files":{"a":[null,["k",1]]},"links":{},"folders":[]}',
    b'{"files":{"a":[null,["k",1,"zz"]]},"links":{},"folders":[]}', b"\xff", b"[" * 200_000,
    b'{"files":{"a":[null]},"links":{},"folders":[]}',
    b'{"files":{"a":["3",["k",1,"%b"]]},"links":{},"folders":[]}' % DIGEST,
    b'{"files":{"a":[-3,["k",1,"%b"]]},"links":{},"folders":[]}' % DIGEST,
    b'{"files":{"a":[null,["k","1","%b"]]},"links":{},"folders":[]}' % DIGEST,
    b'{"files":{"a":[null,["k",-1,"%b"]]},"links":{},"folders":[]}' % DIGEST,
    b'{"files":{},"links":{"a":[3,1]},"folders":[]}', b'{"files":{},"links":{"a":["x",1e400]},"folders":[]}',
    b'{"files":{},"links":{},"folders":["a\\u0000"]}'])
def test_what_is_no_manifest_is_damage(data: bytes) -> None:
    with pytest.raises(CorruptData):
        Contents.decoded(data, "manifest")


def test_the_page_shows_a_manifest_that_is_read_and_written() -> None:
    (shown,) = re.findall(r"```json\n(.*?)\n```", PAGE.read_text(), re.DOTALL)
    told = Contents({"a": StoredFile((ObjectRef("f/files/1/0", 1, Digest.of(b"x")),))}, {"b": ("a", 1)}, ("c",))
    assert Contents.decoded(shown.encode(), "page") == told
    assert told.encoded() == shown.encode()


def test_a_damaged_part_is_found(tmp_path: Path) -> None:
    objects = MemoryObjects()
    folder_in(objects).put(made(tmp_path / "source"))
    (info, *_) = [info for info in objects.list("stores/one/files/") if info.size_bytes == 4]
    objects.delete(info.key)
    objects.create(info.key, b"else")
    with pytest.raises(CorruptData, match=info.key):
        folder_in(objects).fetch(tmp_path / "copy")
