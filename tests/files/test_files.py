# SPDX-License-Identifier: Apache-2.0
"""The file seam: the local disk behind it, the durable idioms (crashed at every point), and how errors are named."""

from __future__ import annotations

import array
import contextlib
import errno
import mmap
import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from compactlib.errors import Closed, DiskFull, InvalidInput, ReadOnly, StorageError
from compactlib.files import LocalFiles, write_durably
from compactlib.files.disk import (
    ReadDescriptor,
    StrPath,
    copy_range,
    list_folder,
    make_missing_folder,
    read_exactly,
    replace_with_link,
    replace_with_symlink,
)
from compactlib.testing import RecordingFiles, explore_crashes, record
from tests.harness.failing_files import FailingFiles

FILES = LocalFiles()
BROKEN_MESSAGE = "not in this environment: "


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


# ------------------------------------------------------------------------------------------------- writing a file


def test_a_new_file_is_written_read_back_and_opened_again(tmp_path: Path) -> None:
    out = FILES.create(tmp_path / "a")
    assert out.path == str(tmp_path / "a")
    assert out.write_at(3, [b"abc", b"de"]) == 5
    assert os.pread(out.fileno(), 100, 0) == b"\0\0\0abcde"
    out.sync()
    out.close()
    again = FILES.open(tmp_path / "a")
    again.write_at(0, [b"xyz"])
    again.truncate(6)
    again.close()
    assert (tmp_path / "a").read_bytes() == b"xyzabc"


def test_more_pieces_than_the_system_takes_at_once_of_any_kind(tmp_path: Path) -> None:
    kinds: list[Callable[[bytes], Any]] = [bytes, bytearray, memoryview, lambda data: memoryview(data)[:2],
                                           lambda data: array.array("H", data + bytes(len(data) % 2)), lambda _: b""]
    pieces = [kinds[number % len(kinds)](b"%d" % number) for number in range(5000)]
    whole = b"".join(pieces)
    out = FILES.create(tmp_path / "a")
    assert out.write_at(7, pieces) == len(whole)
    assert out.write_at(7 + len(whole), tuple(pieces)) == len(whole)
    out.close()
    assert (tmp_path / "a").read_bytes() == bytes(7) + whole + whole


def test_a_link_that_is_in_its_place_is_made_again_without_a_third_name(tmp_path: Path) -> None:
    FILES.create(tmp_path / "a").close()
    for _ in range(2):
        replace_with_link(FILES, tmp_path / "a", tmp_path / "b")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
        assert (tmp_path / "b").samefile(tmp_path / "a")


class LateCreator(LocalFiles):
    """Another process makes each name just before this one does."""

    def create(self, path: StrPath) -> Any:
        Path(path).write_bytes(b"another's")
        return super().create(path)

    def link(self, source: StrPath, target: StrPath) -> None:
        Path(target).write_bytes(b"another's")
        super().link(source, target)

    def symlink(self, text: str, path: StrPath) -> None:
        Path(path).write_bytes(b"another's")
        super().symlink(text, path)


@pytest.mark.parametrize("replace", [
    lambda path: write_durably(LateCreator(), path, [b"new"], temporary_suffix=".own"),
    lambda path: replace_with_link(LateCreator(), path.parent / "source", path, temporary_suffix=".own"),
    lambda path: replace_with_symlink(LateCreator(), "source", path, temporary_suffix=".own"),
])
def test_a_temporary_file_of_another_process_is_not_removed(tmp_path: Path, replace: Callable[[Path], None]) -> None:
    (tmp_path / "source").write_bytes(b"source")
    with pytest.raises(StorageError):
        replace(tmp_path / "a")
    assert (tmp_path / "a.own").read_bytes() == b"another's"
    assert list_folder(tmp_path) == ["a.own", "source"]


@settings(max_examples=60, deadline=None)
@given(pieces=st.lists(st.binary(max_size=6), max_size=8), takes=st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_a_short_write_is_finished(tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes],
                                   takes: list[int]) -> None:
    """The kernel may take less than it was given; here it takes as many bytes as `takes` says, in turn."""
    path = tmp_path_factory.mktemp("short") / "a"
    turns = iter(takes * 100)
    really_write = os.pwrite
    out = FILES.create(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwritev",
                      lambda fd, buffers, offset: really_write(fd, b"".join(buffers)[:next(turns)], offset))
        patch.setattr(os, "pwrite", lambda fd, data, offset: really_write(fd, bytes(data)[:next(turns)], offset))
        assert out.write_at(2, [array.array("H", b"ab"), *pieces]) == 2 + sum(map(len, pieces))
    out.close()
    assert path.read_bytes() == b"\0\0ab" + b"".join(pieces)


def run_limited(code: str, folder: Path) -> str:
    """Run code in a process that may not write files of more than 10,000 bytes."""
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10000, 10000))\n" + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", limited, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_real_limit_cuts_a_write_short_and_is_named(tmp_path: Path) -> None:
    told = run_limited("""
        import os, sys
        from compactlib.errors import DiskFull
        from compactlib.files import LocalFiles
        out = LocalFiles().create(os.path.join(sys.argv[1], "a"))
        assert out.write_at(0, [b"a" * 3000] * 3) == 9000
        try:
            out.write_at(9000, [b"b" * 600] * 3)
        except DiskFull as error:
            print(error.operation, error.path == out.path)
    """, tmp_path)
    assert told.split() == ["write", "True"]
    assert (tmp_path / "a").read_bytes() == b"a" * 9000 + b"b" * 1000


def test_a_real_limit_leaves_the_old_file_of_a_durable_write(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "source").write_bytes(b"c" * 20_000)
    told = run_limited("""
        import os, sys
        from compactlib.errors import DiskFull
        from compactlib.files import LocalFiles, write_durably
        try:
            write_durably(LocalFiles(), os.path.join(sys.argv[1], "a"), [b"new" * 2000] * 3)
        except DiskFull as error:
            print(error.operation)
        out = LocalFiles().create(os.path.join(sys.argv[1], "copy"))
        try:
            out.copy_from(os.open(os.path.join(sys.argv[1], "source"), os.O_RDONLY), 0, 20000, 0)
        except DiskFull as error:
            print(error.operation)
    """, tmp_path)
    assert told.split() == ["write", "copy"]
    assert (tmp_path / "a").read_bytes() == b"old"
    assert list_folder(tmp_path) == ["a", "copy", "source"]


def test_files_are_not_inherited_by_other_programs(tmp_path: Path) -> None:
    out = FILES.create(tmp_path / "a")
    assert not os.get_inheritable(out.fileno())
    out.close()


def test_a_closed_file_leaves_the_next_file_of_its_number_alone(tmp_path: Path) -> None:
    closed = FILES.create(tmp_path / "closed")
    number = closed.fileno()
    closed.close()
    closed.close()
    (tmp_path / "other").write_bytes(b"untouched")
    other = os.open(tmp_path / "other", os.O_RDWR)
    os.dup2(other, number)
    uses: list[Callable[[], object]] = [lambda: closed.write_at(0, [b"x"]), lambda: closed.truncate(0), closed.sync,
                                        lambda: closed.copy_from(other, 0, 1, 5), closed.fileno]
    try:
        for use in uses:
            with pytest.raises(Closed, match="open it again"):
                use()
        closed.close()
        assert os.pread(number, 100, 0) == b"untouched"
    finally:
        os.close(number)
        if other != number:
            os.close(other)


# -------------------------------------------------------------------------------------------------------- copying


PATTERN = bytes(number * 7 % 251 for number in range(3 * (1 << 20) + 17))


@pytest.fixture(params=["kernel", "loop", "kernel stops half-way"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How bytes are copied: by the kernel, by the plain loop, or first by one and then by the other."""
    if not hasattr(os, "copy_file_range") and request.param != "loop":
        pytest.skip(BROKEN_MESSAGE + "no copy_file_range")
    if request.param == "loop":
        monkeypatch.delattr(os, "copy_file_range", raising=False)
    elif request.param == "kernel stops half-way":
        real, calls = os.copy_file_range, iter(range(1000))

        def stopping(source: int, target: int, count: int, source_offset: int, target_offset: int) -> int:
            if next(calls) == 1:
                raise OSError(errno.EXDEV, "only so far")
            return real(source, target, min(count, 100_000), source_offset, target_offset)

        monkeypatch.setattr(os, "copy_file_range", stopping)
    return str(request.param)


@pytest.mark.parametrize(("start", "length", "place"), [(0, len(PATTERN), 0), (5, 1_500_000, 3), (0, 0, 0), (9, 1, 4)])
def test_ranges_are_copied(tmp_path: Path, way: str, start: int, length: int, place: int) -> None:
    (tmp_path / "source").write_bytes(PATTERN)
    out = FILES.create(tmp_path / way)
    with opened(tmp_path / "source") as source:
        out.copy_from(source, start, length, place)
    out.close()
    assert (tmp_path / way).read_bytes() == (bytes(place) + PATTERN[start:start + length] if length else b"")


@pytest.mark.usefixtures("way")
def test_a_source_that_ends_early_is_refused(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"12345")
    out = FILES.create(tmp_path / "target")
    with opened(tmp_path / "source") as source, pytest.raises(InvalidInput, match="ends 3 bytes before the 6"):
        out.copy_from(source, 2, 6, 0)
    out.close()


def test_a_source_that_the_kernel_will_not_copy_is_read(tmp_path: Path) -> None:
    path = Path("/proc/version")
    if not path.exists():
        pytest.skip(BROKEN_MESSAGE + "no /proc/version")
    told = path.read_bytes()
    with opened(path) as source, open(tmp_path / "a", "wb") as target:
        copy_range(source, target.fileno(), 2, 0, len(told) - 2)
    assert (tmp_path / "a").read_bytes() == told[2:]


def test_copies_between_file_systems(tmp_path: Path) -> None:
    others = [folder for folder in ("/dev/shm", "/var/tmp")
              if os.access(folder, os.W_OK) and os.stat(folder).st_dev != os.stat(tmp_path).st_dev]
    if not others:
        pytest.skip(BROKEN_MESSAGE + "no second file system")
    source = Path(others[0]) / f"compactlib-test-files-{os.getpid()}"
    source.write_bytes(PATTERN)
    try:
        out = FILES.create(tmp_path / "a")
        with opened(source) as descriptor:
            out.copy_from(descriptor, 1, len(PATTERN) - 1, 0)
        out.close()
    finally:
        source.unlink()
    assert (tmp_path / "a").read_bytes() == PATTERN[1:]


# ---------------------------------------------------------------------------------------------- names and folders


def test_names_are_created_and_removed(tmp_path: Path) -> None:
    FILES.make_folder(tmp_path / "sub")
    FILES.create(tmp_path / "a").close()
    FILES.link(tmp_path / "a", tmp_path / "sub" / "b")
    assert (tmp_path / "a").stat().st_nlink == 2
    FILES.symlink("sub/b", tmp_path / "c")
    assert os.readlink(tmp_path / "c") == "sub/b"
    FILES.rename(tmp_path / "c", tmp_path / "d")
    FILES.unlink(tmp_path / "a")
    FILES.sync_folder(tmp_path)
    assert list_folder(tmp_path) == ["d", "sub"]
    FILES.unlink(tmp_path / "sub/b")
    FILES.remove_folder(tmp_path / "sub")
    assert list_folder(tmp_path) == ["d"]


def test_a_hard_link_of_a_symbolic_link_names_the_link(tmp_path: Path) -> None:
    (tmp_path / "s").symlink_to("nowhere")
    FILES.link(tmp_path / "s", tmp_path / "t")
    assert os.readlink(tmp_path / "t") == "nowhere"


REFUSED: dict[str, tuple[Callable[[Path], object], str, str, int]] = {
    "create what exists": (lambda at: FILES.create(at / "file"), "create", "file", errno.EEXIST),
    "create over a link": (lambda at: FILES.create(at / "loose"), "create", "loose", errno.EEXIST),
    "create nowhere": (lambda at: FILES.create(at / "no/a"), "create", "no/a", errno.ENOENT),
    "open nothing": (lambda at: FILES.open(at / "no"), "open", "no", errno.ENOENT),
    "open a folder": (lambda at: FILES.open(at / "full"), "open", "full", errno.EISDIR),
    "rename nothing": (lambda at: FILES.rename(at / "no", at / "a"), "rename", "no", errno.ENOENT),
    "link over something": (lambda at: FILES.link(at / "file", at / "loose"), "link", "file", errno.EEXIST),
    "symlink over something": (lambda at: FILES.symlink("x", at / "file"), "symlink", "file", errno.EEXIST),
    "unlink nothing": (lambda at: FILES.unlink(at / "no"), "unlink", "no", errno.ENOENT),
    "make what exists": (lambda at: FILES.make_folder(at / "file"), "make folder", "file", errno.EEXIST),
    "remove a full one": (lambda at: FILES.remove_folder(at / "full"), "remove folder", "full", errno.ENOTEMPTY),
    "sync no folder": (lambda at: FILES.sync_folder(at / "file"), "sync folder", "file", errno.ENOTDIR),
    "list nothing": (lambda at: list_folder(at / "no"), "list", "no", errno.ENOENT),
    "list a file": (lambda at: list_folder(at / "file"), "list", "file", errno.ENOTDIR),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_of_the_disk_names_the_operation(tmp_path: Path, case: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "loose").symlink_to("nowhere")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/a").write_bytes(b"")
    attempt, operation, path, number = REFUSED[case]
    with pytest.raises(StorageError) as caught:
        attempt(tmp_path)
    error = caught.value
    assert (error.operation, error.path, error.errno) == (operation, str(tmp_path / path), number)
    assert isinstance(error.__cause__, OSError)
    assert str(error).startswith(f"{operation} {tmp_path / path}: {os.strerror(number)}")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (again.operation, again.path, again.errno, str(again)) == (operation, error.path, number, str(error))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with 64 KiB of room."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    try:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mounted)], capture_output=True,
                              text=True, check=False)
    except FileNotFoundError:
        pytest.skip(BROKEN_MESSAGE + "no mount")
    if done.returncode:
        pytest.skip(BROKEN_MESSAGE + done.stderr.strip())
    try:
        yield mounted
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def test_a_real_full_disk(small_disk: Path, tmp_path: Path) -> None:
    write_durably(FILES, small_disk / "a", [b"old" * 4000])
    with pytest.raises(DiskFull, match="free some space") as caught:
        write_durably(FILES, small_disk / "a", [b"new" * 1000] * 40)
    assert caught.value.operation == "write"
    assert (small_disk / "a").read_bytes() == b"old" * 4000
    assert list_folder(small_disk) == ["a"]
    (tmp_path / "source").write_bytes(bytes(100_000))
    out = FILES.create(small_disk / "copy")
    with opened(tmp_path / "source") as source, pytest.raises(DiskFull):
        out.copy_from(source, 0, 100_000, 0)
    out.close()
    FILES.unlink(small_disk / "copy")
    write_durably(FILES, small_disk / "a", [b"new" * 4000])
    assert (small_disk / "a").read_bytes() == b"new" * 4000


def test_a_real_read_only_disk(small_disk: Path) -> None:
    write_durably(FILES, small_disk / "a", [b"old"])
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    attempts: list[Callable[[], object]] = [
        lambda: FILES.open(small_disk / "a"),
        lambda: write_durably(FILES, small_disk / "a", [b"new"]),
        lambda: FILES.rename(small_disk / "a", small_disk / "b"),
        lambda: replace_with_link(FILES, small_disk / "a", small_disk / "b"),
        lambda: replace_with_symlink(FILES, "a", small_disk / "b"),
        lambda: FILES.unlink(small_disk / "a"),
        lambda: FILES.make_folder(small_disk / "b"),
    ]
    for attempt in attempts:
        with pytest.raises(ReadOnly, match="mount the file system for writing"):
            attempt()
    assert (small_disk / "a").read_bytes() == b"old"


def test_the_local_disk_is_a_value() -> None:
    assert LocalFiles() == LocalFiles()
    assert len({LocalFiles(), pickle.loads(pickle.dumps(LocalFiles()))}) == 1


# -------------------------------------------------------------------------------------------------- write_durably


def test_a_whole_file_is_put_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_durably(FILES, tmp_path / "a", [b"one"])
    assert (tmp_path / "a").read_bytes() == b"one"
    monkeypatch.chdir(tmp_path)
    write_durably(FILES, "a", [b"two", b"three"], temporary_suffix=".other")
    assert (tmp_path / "a").read_bytes() == b"twothree"
    assert list_folder(tmp_path) == ["a"]


@pytest.mark.parametrize("leftover", ["file", "symlink", "symlink to the target"])
def test_a_leftover_temporary_name_is_replaced(tmp_path: Path, leftover: str) -> None:
    (tmp_path / "a").write_bytes(b"old")
    if leftover == "file":
        (tmp_path / "a.tmp").write_bytes(b"longer than what comes")
    else:
        (tmp_path / "a.tmp").symlink_to("nowhere" if leftover == "symlink" else "a")
    write_durably(FILES, tmp_path / "a", [b"new"])
    assert (tmp_path / "a").read_bytes() == b"new"
    assert list_folder(tmp_path) == ["a"]


def test_any_error_removes_the_temporary_name(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(BufferError):
        write_durably(FILES, tmp_path / "a", [memoryview(b"0123")[::2]])
    assert list_folder(tmp_path) == ["a"]


def test_each_failure_leaves_the_old_content_until_the_last(tmp_path: Path) -> None:
    counting = FailingFiles()
    write_durably(counting, tmp_path / "a", [b"old"])
    for number in range(1, counting.count + 1):
        (tmp_path / "a").write_bytes(b"old")
        with pytest.raises(DiskFull):
            write_durably(FailingFiles(fail_at=number, short_write=True), tmp_path / "a", [b"new"])
        assert list_folder(tmp_path) == ["a"]
        assert (tmp_path / "a").read_bytes() == (b"new" if number == counting.count else b"old")


CONTENTS = {version: (b"%d" % version) * 1500 for version in range(3)}


@pytest.mark.parametrize("leftover", [False, True])
def test_a_durable_write_survives_a_crash_at_every_point(tmp_path: Path, leftover: bool) -> None:
    (tmp_path / "a").write_bytes(CONTENTS[0])
    if leftover:
        (tmp_path / "a.tmp").write_bytes(b"left from a crash")

    def work(folder: Path, files: RecordingFiles) -> None:
        for version in (1, 2):
            write_durably(files, folder / "a", [CONTENTS[version][:700], CONTENTS[version][700:]])
            files.acknowledge(version)

    def check(folder: Path, acknowledged: Sequence[int]) -> None:
        found = [version for version, content in CONTENTS.items() if (folder / "a").read_bytes() == content]
        assert found
        assert found[0] >= max(acknowledged, default=0)
        assert set(list_folder(folder)) <= {"a", "a.tmp"}
        write_durably(FILES, folder / "a", [b"next"])
        assert list_folder(folder) == ["a"]
        assert (folder / "a").read_bytes() == b"next"

    explore_crashes(record(tmp_path, work), check, limit_per_point=1 << 12)



# -------------------------------------------------------------------------------------------------------- reading


def test_reading_ends_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    with opened(tmp_path / "a") as descriptor:
        assert read_exactly(descriptor, 4, 3) == b"3456"
        assert read_exactly(descriptor, 10, 0) == b"0123456789"
        assert read_exactly(descriptor, 100, 7) == b"789"
        assert read_exactly(descriptor, 5, 10) == b""
        assert read_exactly(descriptor, 0, 2) == b""
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        read_exactly(-1, 1, 0)


def test_short_reads_are_finished() -> None:
    path = Path("/proc/kallsyms")
    if not path.exists() or len(path.read_bytes()) < 3 * mmap.PAGESIZE:
        pytest.skip(BROKEN_MESSAGE + "no long file in /proc")
    with opened(path) as descriptor:
        wanted = 3 * mmap.PAGESIZE
        assert len(os.pread(descriptor, wanted, 0)) < wanted, "the kernel returns fewer bytes than requested"
        assert read_exactly(descriptor, wanted, 0) == path.read_bytes()[:wanted]


class _MadeByAnother(LocalFiles):
    """Another process makes each folder a moment before."""

    def make_folder(self, path: StrPath) -> None:
        os.mkdir(path)
        super().make_folder(path)


def test_a_missing_folder_is_made_by_racing_threads(tmp_path: Path) -> None:
    assert make_missing_folder(LocalFiles(), tmp_path / "a")
    assert not make_missing_folder(LocalFiles(), tmp_path / "a")
    assert make_missing_folder(_MadeByAnother(), tmp_path / "b")
    assert (tmp_path / "b").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(StorageError):
        make_missing_folder(LocalFiles(), tmp_path / "file")


def test_descriptor_is_let_go_quietly_after_an_interrupt_before_its_init() -> None:
    ReadDescriptor.__new__(ReadDescriptor).__del__()
