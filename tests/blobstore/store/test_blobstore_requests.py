# SPDX-License-Identifier: Apache-2.0
"""Another process asks the owner of a store to compact it: real processes, real sockets."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.blobstore import BlobChoice, BlobStore, BlobStoreConfig, BlobView, StatsBased
from compactlib.blobstore.model.names import SOCKET_NAME
from compactlib.blobstore.segment.erasure import STATE_NAME
from compactlib.blobstore.store.requests import OwnerAnswer, ask_owner, user_at
from compactlib.errors import Busy, CompactlibError, StorageError, Unsupported
from compactlib.files import LocalFiles, OutFile
from compactlib.files.disk import StrPath
from compactlib.runtime import OnRequest, RecordingObserver
from tests.harness.forks import in_a_fork

CONFIG = BlobStoreConfig(capacity_bytes=1 << 16, segment_bytes=1 << 12, max_blob_bytes=600, pace=None,
                         deleted_retention_seconds=0.0, durability="interval", stats_entries_per_second=None,
                         triggers=(OnRequest(),))
POLICY = StatsBased(min_used_fraction=0.0)
OWNER = """
    import sys
    from tests.blobstore.store.test_blobstore_requests import CONFIG, POLICY, fill
    from compactlib.blobstore import BlobStore

    with BlobStore(sys.argv[1], CONFIG, policy=POLICY) as store:
        fill(store)
        print("open", flush=True)
        sys.stdin.readline()
"""


def fill(store: BlobStore) -> None:
    for number in range(30):
        store.put(b"%d" % number, b"x" * 900, replace=True)
        store.delete(b"%d" % number)


def opened(folder: Path, **more: Any) -> BlobStore:
    return BlobStore(folder, CONFIG, policy=POLICY, **more)


@pytest.fixture
def owner(scratch: Path) -> Iterator[Callable[[], tuple[Path, subprocess.Popen[bytes]]]]:
    """Starts a process that has a store open."""
    begun: list[subprocess.Popen[bytes]] = []

    def start() -> tuple[Path, subprocess.Popen[bytes]]:
        process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(OWNER), str(scratch / "store")],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        begun.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        return scratch / "store", process

    yield start
    for process in begun:
        process.kill()
        process.communicate()


def test_the_owner_in_another_process_compacts_and_says_what_it_did(
        owner: Callable[[], tuple[Path, subprocess.Popen[bytes]]]) -> None:
    folder, process = owner()
    mode = os.lstat(folder / SOCKET_NAME).st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    before = len(list(folder.glob("*.log")))
    answer = ask_owner(str(folder))
    assert isinstance(answer, OwnerAnswer)
    assert (answer.process, answer.store, answer.outcome) == (process.pid, "store", "done")
    assert answer.rows[0]["outcome"] == "done"
    assert len(list(folder.glob("*.log"))) < before
    again = ask_owner(str(folder))
    assert again is not None
    assert again.outcome == "skipped"
    process.communicate(b"\n")
    assert process.returncode == 0
    assert not (folder / SOCKET_NAME).exists()
    assert ask_owner(str(folder)) is None


def test_a_killed_owner_leaves_a_socket_that_the_next_one_replaces(
        owner: Callable[[], tuple[Path, subprocess.Popen[bytes]]]) -> None:
    folder, process = owner()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (folder / SOCKET_NAME).exists()
    assert ask_owner(str(folder)) is None
    with opened(folder):
        answer = ask_owner(str(folder))
        assert answer is not None
        assert answer.process == os.getpid()


def test_an_owner_that_is_stopped_does_not_answer(owner: Callable[[], tuple[Path, subprocess.Popen[bytes]]],
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compactlib.blobstore.store.requests._PATIENCE_SECONDS", 0.2)
    folder, process = owner()
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(Busy, match="does not answer"):
        ask_owner(str(folder))
    process.send_signal(signal.SIGCONT)


def test_a_fork_of_the_owner_answers_nothing_and_takes_nothing_along(scratch: Path) -> None:
    with opened(scratch / "store") as store:
        fill(store)

        def leaves() -> bool:
            store.close()
            return True

        assert in_a_fork(leaves) is True
        answer = ask_owner(str(scratch / "store"))
        assert answer is not None
        assert (answer.process, answer.outcome) == (os.getpid(), "done")


@pytest.mark.parametrize(("said", "why"), [
    ('{"process": 1, "store": "s"}\n{"outcome": "done", "told": ""}\n', "without 'rows'"),
    ('{"store": "s"}\n{"outcome": "done", "told": "", "rows": []}\n', "without 'process'"),
    ('{"process": 1, "store": "s"}\n{"outcome": "done", "told": "", "rows": 3}\n', "does not answer"),
    ('{"process": 1, "store": "s"}\n[]\n', "does not answer"), ("", "does not answer")])
def test_an_answer_that_is_not_whole_is_none(said: str, why: str, scratch: Path) -> None:
    (scratch / "store").mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(scratch / "store" / SOCKET_NAME))
        listening.listen(1)

        def answer() -> None:
            line, _ = listening.accept()
            with line:
                line.recv(100)
                line.sendall(said.encode())

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(Busy, match=why):
            ask_owner(str(scratch / "store"))
        thread.join()


class Waiting:
    """A policy that chooses nothing, once it may."""

    name = "waiting"

    def __init__(self) -> None:
        self.may = threading.Event()

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        self.may.wait()
        return BlobChoice((), why="it waited")


def test_a_fork_that_is_closed_holds_no_line_of_a_request_under_way(scratch: Path) -> None:
    """Or the asking side would wait for the fork, when the owner is killed."""
    policy = Waiting()
    with BlobStore(scratch / "store", CONFIG, policy=policy) as store, (
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as line:
        # The first turn finds nothing to resume; a request meanwhile would be told that the store is busy.
        while (upkeep := store.upkeep) is None or not upkeep.rows[0].last_ending:
            threading.Event().wait(0.01)
        line.connect(str(scratch / "store" / SOCKET_NAME))
        line.sendall(b'{"do": "compact", "format": 1}\n')
        assert json.loads(line.recv(1 << 16))["process"] == os.getpid()

        def sockets_closed() -> int:
            before = _sockets()
            store.close()
            return before - _sockets()

        try:
            assert in_a_fork(sockets_closed) == 4, "what listens, both ends of what wakes it, and the line"
        finally:
            policy.may.set()
        assert json.loads(line.recv(1 << 16))["outcome"] == "skipped"


def _sockets() -> int:
    found = 0
    for descriptor in os.listdir("/dev/fd"):
        # The listing's own is closed by now.
        with contextlib.suppress(OSError):
            found += stat.S_ISSOCK(os.fstat(int(descriptor)).st_mode)
    return found


def said_to(folder: Path, data: bytes) -> list[dict[str, Any]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.connect(str(folder / SOCKET_NAME))
        with contextlib.suppress(BrokenPipeError):
            line.sendall(data)
        found = b""
        # What was not read of the request resets the connection behind the answer.
        with contextlib.suppress(ConnectionResetError):
            while piece := line.recv(1 << 16):
                found += piece
    return [json.loads(each) for each in found.splitlines()]


@pytest.mark.parametrize("data", [
    b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 256, b"{}\n", b"[" * 255 + b"\n", b'{"do": "delete", "format": 1}\n',
    b'{"do": "compact", "format": 2}\n', b"\n", b"1" * 250 + b"\n"])
def test_garbage_is_refused_and_told(data: bytes, scratch: Path) -> None:
    observer = RecordingObserver()
    with opened(scratch / "store", observer=observer) as store:
        fill(store)
        before = store.status()
        (refused,) = said_to(scratch / "store", data)
        assert "request" in refused["refused"]
        assert [name for name, _ in observer.events] == ["blobstore_request_refused"]
        assert store.status() == before
        assert ask_owner(str(scratch / "store")) is not None


def test_an_owner_without_descriptors_goes_on_when_there_are_some_again(scratch: Path) -> None:
    with opened(scratch / "store"), contextlib.ExitStack() as taken:
        line = taken.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = max(int(name) for name in os.listdir("/dev/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, hard))
        try:
            with contextlib.suppress(OSError):
                while True:
                    taken.enter_context(open(os.devnull, "rb"))
            line.connect(str(scratch / "store" / SOCKET_NAME))
            line.sendall(b'{"do": "compact", "format": 1}\n')
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        line.settimeout(60.0)
        assert json.loads(line.makefile("rb").readline())["process"] == os.getpid()


def test_connections_that_say_nothing_keep_nobody_from_closing(scratch: Path) -> None:
    lines = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(20)]
    with opened(scratch / "store"):
        for line in lines:
            line.connect(str(scratch / "store" / SOCKET_NAME))
    # All that were taken have ended.
    for line in lines:
        line.settimeout(60.0)
        try:
            while line.recv(100):
                pass
        except ConnectionResetError:
            pass
        line.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process can be begun by root only")
def test_another_users_process_is_turned_away(scratch: Path) -> None:
    observer = RecordingObserver()
    with opened(scratch / "store", observer=observer) as store:
        fill(store)
        segments = store.status().segments
        path = scratch / "store" / SOCKET_NAME

        def asks() -> str:
            os.setuid(65534)
            try:
                said_to(scratch / "store", b'{"do": "compact", "format": 1}\n')
            except PermissionError as error:
                return type(error).__name__
            return "was let in"

        for folder in (scratch, scratch / "store"):
            folder.chmod(0o755)
        assert in_a_fork(asks) == "PermissionError"
        # Even where the modes of files keep nobody out, as on some systems.
        path.chmod(0o666)

        def is_told() -> Any:
            os.setuid(65534)
            return said_to(scratch / "store", b'{"do": "compact", "format": 1}\n')

        assert in_a_fork(is_told) == []
        assert [fields["why"] for _, fields in observer.events] == ["it is user 65534's"]
        assert store.status().segments == segments


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process can be begun by root only")
def test_a_stranger_who_listens_is_asked_nothing(scratch: Path) -> None:
    opened(scratch / "store").close()
    heard: list[object] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        os.seteuid(65534)
        try:
            (scratch / "store").parent.stat()
        finally:
            os.seteuid(0)
        for folder in (scratch, scratch / "store"):
            folder.chmod(0o777)

        def listen() -> Any:
            os.setuid(65534)
            listening.bind(str(scratch / "store" / SOCKET_NAME))
            listening.listen(1)
            line, _ = listening.accept()
            with line:
                return line.recv(100).decode()

        thread = threading.Thread(target=lambda: heard.append(in_a_fork(listen)))
        thread.start()
        while not (scratch / "store" / SOCKET_NAME).exists():
            assert thread.is_alive()
        error: CompactlibError | None = None
        while error is None:
            try:
                assert ask_owner(str(scratch / "store")) is None
            except CompactlibError as found:
                error = found
        assert "user 65534 listens on" in str(error)
        thread.join()
    assert heard == [""]


def test_a_path_that_is_too_long_for_a_socket(scratch: Path) -> None:
    folder = scratch / ("long" * 30) / ("name" * 20)
    folder.parent.mkdir()
    with opened(folder) as store:
        fill(store)
        answer = ask_owner(str(folder))
        assert answer is not None
        assert answer.outcome == "done"
        assert stat.S_IMODE(os.lstat(folder / SOCKET_NAME).st_mode) == 0o600
        with pytest.MonkeyPatch.context() as without:
            without.setattr("compactlib.blobstore.store.requests._DESCRIPTORS", str(scratch / "absent"))
            with pytest.raises(Unsupported, match="shorter path"):
                ask_owner(str(folder))
    with pytest.MonkeyPatch.context() as without:
        without.setattr("compactlib.blobstore.store.requests._DESCRIPTORS", str(scratch / "absent"))
        observer = RecordingObserver()
        with opened(folder, observer=observer) as store:
            store.put(b"a", b"")
        assert [name for name, _ in observer.events] == ["blobstore_takes_no_requests"]


@pytest.mark.parametrize("thing", ["file", "folder", "link"])
def test_what_is_no_socket_stays(thing: str, scratch: Path) -> None:
    opened(scratch / "store").close()
    path = scratch / "store" / SOCKET_NAME
    if thing == "file":
        path.write_bytes(b"a stranger's")
    elif thing == "folder":
        path.mkdir()
    else:
        path.symlink_to(scratch / "elsewhere")
    observer = RecordingObserver()
    with opened(scratch / "store", observer=observer):
        assert [name for name, _ in observer.events] == ["blobstore_takes_no_requests"]
    assert os.path.lexists(path)
    assert ask_owner(str(scratch / "store")) is None


def test_who_is_at_the_other_end() -> None:
    here, there = socket.socketpair()
    with here, there:
        assert user_at(here) == user_at(there) == os.geteuid()


def test_who_asks_is_told_of_the_hard_delete_that_the_disk_refused_after_the_compaction(scratch: Path) -> None:
    class Refusing(LocalFiles):
        def create(self, path: StrPath) -> OutFile:
            if STATE_NAME in os.fspath(path):
                raise StorageError(operation="create", path=path, errno=5)
            return super().create(path)

    with BlobStore(scratch / "store", attrs.evolve(CONFIG, hard_delete=True), policy=POLICY,
                   files=Refusing()) as store:
        fill(store)
        before = store.status().segments
        answer = ask_owner(str(scratch / "store"))
        assert store.status().segments < before
    assert answer is not None
    assert answer.outcome == "failed"
    assert "HARD_DELETE" in answer.told
    assert answer.rows[0]["changed"] == "partly"
