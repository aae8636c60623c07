# SPDX-License-Identifier: Apache-2.0
"""The socket `REQUESTS` in a store's folder, by which another process of this machine asks the owner to compact it.

Only the owner's user and root may: the socket's mode is 0600, and the kernel says whose process is at the other end. A
connection is one line of JSON, `{"do": "compact", "format": 1}`, and two lines back: at once who answers,
`{"process": ..., "store": ...}`, and when it is done what came of it, `{"outcome": ..., "told": ..., "rows": [...]}`.
What else is sent is refused by one line, `{"refused": ...}`; another user's process is told nothing.

The path of a socket is short, some 100 bytes. A longer one is reached through a descriptor of its folder, where the
platform has names for these (Linux).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import socket
import stat
import struct
import threading
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Protocol

import attrs

from compactlib.blobstore.compaction.plan.plan import BlobPlan
from compactlib.blobstore.compaction.plan.policy import BlobChoice, BlobView
from compactlib.blobstore.compaction.run.report import BlobCompactionReport, BlobReclaimReport
from compactlib.blobstore.compaction.run.store_compactions import OwnedStore
from compactlib.blobstore.model.names import SOCKET_NAME
from compactlib.blobstore.store.hard_delete import with_reclaim
from compactlib.contract import Compaction
from compactlib.errors import Busy, CompactlibError, InvalidInput, StorageError, TaskFailed, Unsupported
from compactlib.executors.tasks import foreign_error
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.runtime.owned_lock import Changes

_LOGGER = logging.getLogger("compactlib.blobstore")
_FORMAT = 1
_MAX_PATH_BYTES = 100
_MAX_REQUEST_BYTES = 256
_MAX_ANSWER_BYTES = 1 << 20
_MAX_CONNECTIONS = 8
_PATIENCE_SECONDS = 5.0
"""How long a connection may take to say what it wants, and the owner to say that it is there."""
_PAUSE_SECONDS = 0.2
_DESCRIPTORS = "/proc/self/fd"


@attrs.frozen
class OwnerAnswer:
    """What the owner of a store answers to a request.

    Attributes:
        process: the owner's process.
        store: what it calls the store.
        outcome: `"done"`, `"skipped"` or `"failed"`.
        told: the same in words.
        rows: `to_dicts()` of the outcome.
    """

    process: int
    store: str
    outcome: str
    told: str
    rows: tuple[dict[str, Any], ...] = ()


class KeptStore(OwnedStore, Compaction[BlobView, BlobChoice, BlobPlan, BlobCompactionReport, BlobReclaimReport],
                Protocol):
    """A store that is compacted by its own methods (`BlobStore` is one)."""


class RequestDoor:
    """Listens in the folder of a store while that is open, and compacts it on request.

    A request is the store's `compact`, and then its `reclaim`: one that finds it busy is told so.

    Args:
        store: the store.
    """

    def __init__(self, store: KeptStore) -> None:
        self._store = store
        self._pid = os.getpid()
        self._listening: socket.socket | None = None
        self._wake: tuple[socket.socket, ...] = ()
        self._lock = Changes()
        self._lines: set[socket.socket] = set()
        self._waiting: set[socket.socket] = set()
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Listen from now on. Where that cannot be, the observer is told `blobstore_takes_no_requests`: a store works
        without it."""
        try:
            self._listening = listening = self._listen()
            self._wake = woken, _ = socket.socketpair()
            thread = threading.Thread(target=self._serve, args=(listening, woken), daemon=True,
                                      name=f"requests to the blob store {self._store.name}")
            thread.start()
        except (OSError, RuntimeError, CompactlibError) as error:
            self._tell_closed(error)
            self._give_up()
            return
        self._thread = thread

    def _tell_closed(self, error: BaseException) -> None:
        self._store.observer.event("blobstore_takes_no_requests", {"store": self._store.name, "error": str(error)})

    def _listen(self) -> socket.socket:
        path = os.path.join(self._store.folder, SOCKET_NAME)
        if os.path.lexists(path):
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                raise InvalidInput(f"{path} is no socket, and not the store's; see what it is, and remove it")
            # An earlier owner's, who was killed: the folder is locked by this one.
            self._store.files.unlink(path)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Linux gives the name the mode of the socket; elsewhere there is a moment in which only the check of the
            # other side's user holds.
            with contextlib.suppress(OSError):
                os.fchmod(listening.fileno(), 0o600)
            with _reachable(self._store.folder) as reachable:
                listening.bind(reachable)
                # Not through `Files`: a socket is nothing that a crash has to leave.
                os.chmod(reachable, 0o600)  # noqa: TID251
            listening.listen(_MAX_CONNECTIONS)
        except BaseException:
            listening.close()
            raise
        return listening

    def close(self) -> None:
        """Listen no more. Connections that have asked for nothing end; the others are answered."""
        if os.getpid() != self._pid:
            # The lines too: who asks sees that the owner has ended when nobody holds the other end any more.
            self._give_up(*self._lines)
            return
        with self._lock:
            listening, self._listening = self._listening, None
            for line in self._waiting:
                with contextlib.suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)
        if listening is None or self._thread is None:
            return
        self._wake[1].send(b"\0")
        self._thread.join()
        with contextlib.suppress(StorageError):
            self._store.files.unlink(os.path.join(self._store.folder, SOCKET_NAME))
        with self._lock:
            self._lock.wait_for(lambda: not self._lines, _PATIENCE_SECONDS)
        self._give_up(listening)

    def _give_up(self, *others: socket.socket) -> None:
        """In a fork of the process that listens: close this copy. The thread is not here, and the lock may be held."""
        for each in (self._listening, *self._wake, *others):
            if each is not None:
                each.close()

    def _serve(self, listening: socket.socket, woken: socket.socket) -> None:
        try:
            with selectors.DefaultSelector() as ready:
                ready.register(listening, selectors.EVENT_READ)
                ready.register(woken, selectors.EVENT_READ)
                while woken not in {key.fileobj for key, _ in ready.select()}:
                    try:
                        line, _ = listening.accept()
                    except OSError:
                        # No descriptor is left, say: the connection waits as well.
                        ready.unregister(listening)
                        ready.select(_PAUSE_SECONDS)
                        ready.register(listening, selectors.EVENT_READ)
                    else:
                        self._take(line)
        except Exception as error:
            self._tell_closed(error)
            raise

    def _take(self, line: socket.socket) -> None:
        with self._lock:
            if self._listening is None or len(self._lines) >= _MAX_CONNECTIONS:
                line.close()
                return
            self._lines.add(line)
            self._waiting.add(line)
        try:
            threading.Thread(target=self._answer, args=(line,), daemon=True,
                             name=f"a request to the blob store {self._store.name}").start()
        except RuntimeError:
            self._end(line)

    def _answer(self, line: socket.socket) -> None:
        try:
            line.settimeout(_PATIENCE_SECONDS)
            user = user_at(line)
            is_stranger = user not in (0, os.geteuid())
            refused = f"it is user {user}'s" if is_stranger else self._refusal(line)
            with self._lock:
                self._waiting.discard(line)
            if refused:
                self._store.observer.event("blobstore_request_refused", {"store": self._store.name, "why": refused})
                if not is_stranger:
                    _send(line, {"refused": refused})
                return
            _send(line, {"process": self._pid, "store": self._store.name})
            outcome = self._carried_out()
            _send(line, {"outcome": type(outcome).__name__.lower(), "told": _told(outcome), "rows": outcome.to_dicts()})
        except OSError:
            # The other side is gone; what was done is done.
            return
        finally:
            self._end(line)

    def _refusal(self, line: socket.socket) -> str:
        try:
            with line.makefile("rb") as reading:
                request = json.loads(_line_of(reading, _MAX_REQUEST_BYTES))
        except (ValueError, RecursionError) as error:
            return f"that is no request: {error}"
        if request != {"do": "compact", "format": _FORMAT}:
            return f"that is no request of this release: {json.dumps(request):.100}"
        return ""

    def _carried_out(self) -> Outcome[Any]:
        outcome: Outcome[Any] | None = None
        try:
            outcome = self._store.compact()
            if isinstance(outcome, Failed) and isinstance(outcome.error, TaskFailed):
                self._log_error(outcome.error)
            return with_reclaim(outcome, self._store.reclaim)
        except CompactlibError as error:
            return Failed(error, "partly") if isinstance(outcome, Done) else Failed(error)
        except Exception as error:  # what a policy of the host's raises: the other side gets it
            self._store.compactions.note(foreign_error("compact", error))
            self._log_error(error)
            return Failed(CompactlibError(f"{type(error).__name__}: {error}"))

    def _log_error(self, error: BaseException) -> None:
        _LOGGER.warning("a requested compaction of the store %s raised %r", self._store.name, error, exc_info=error)

    def _end(self, line: socket.socket) -> None:
        line.close()
        with self._lock:
            self._lines.discard(line)
            self._waiting.discard(line)
            self._lock.notify_all()


def ask_owner(folder: str) -> OwnerAnswer | None:
    """Have the process that has a store open compact it; waits for the end of that. `None` if it takes no requests.

    Raises:
        Busy: it does not answer, or has ended meanwhile.
        Unsupported: the folder's path is too long here for a socket in it.
        CompactlibError: it refuses the request, or is another user's; says why.
    """
    path = os.path.join(folder, SOCKET_NAME)
    if not os.path.lexists(path):
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line, line.makefile("rb") as reading:
        line.settimeout(_PATIENCE_SECONDS)
        try:
            with _reachable(folder) as reachable:
                line.connect(reachable)
            if (user := user_at(line)) not in (0, os.geteuid(), os.stat(folder).st_uid):
                raise CompactlibError(f"user {user} listens on {path}, who owns neither the folder nor this process; "
                                      f"nothing was asked")
            _send(line, {"do": "compact", "format": _FORMAT})
            greeting = _read(reading)
            # How long a compaction takes, nobody knows.
            line.settimeout(None)
            answer = greeting if "refused" in greeting else _read(reading)
            if "refused" in answer:
                raise CompactlibError(f"the owner of {folder} refuses: {answer['refused']}")
            return OwnerAnswer(process=greeting["process"], store=greeting["store"], outcome=answer["outcome"],
                               told=answer["told"], rows=tuple(answer["rows"]))
        except (ConnectionRefusedError, FileNotFoundError):
            # Left by an owner who was killed, or just gone.
            return None
        except KeyError as error:
            raise Busy(f"the owner of {folder} answers on {path} without {error}, which this release asks for; see "
                       f"what that process is") from error
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise Busy(f"the owner of {folder} does not answer on {path}: {str(error) or type(error).__name__}; ask "
                       f"again, or see what that process does") from error


def user_at(line: socket.socket) -> int:
    """The user whose process is at the other end of a Unix socket, as the kernel says.

    Raises:
        OSError: the platform does not say.
    """
    if hasattr(socket, "SO_PEERCRED"):
        _, user, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        return int(user)
    # LOCAL_PEERCRED of macOS and FreeBSD: a version, then the user.
    _, user = struct.unpack_from("Ii", line.getsockopt(0, 1, 76))
    return int(user)


@contextlib.contextmanager
def _reachable(folder: str) -> Iterator[str]:
    """A name of the socket in a folder that is short enough."""
    path = os.path.join(folder, SOCKET_NAME)
    if len(os.fsencode(path)) <= _MAX_PATH_BYTES:
        yield path
        return
    if not os.path.isdir(_DESCRIPTORS):
        raise Unsupported(f"{path} is longer than the {_MAX_PATH_BYTES} bytes that a socket's path may have here; open "
                          f"the store by a shorter path")
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"{_DESCRIPTORS}/{descriptor}/{SOCKET_NAME}"
    finally:
        os.close(descriptor)


def _told(outcome: Outcome[Any]) -> str:
    match outcome:
        case Done(stats):
            return repr(stats).strip("<>")
        case Skipped(reason):
            return reason
        case Failed(error):
            return str(error)


def _send(line: socket.socket, said: Mapping[str, Any]) -> None:
    data = json.dumps(said, default=str).encode()
    if len(data) >= _MAX_ANSWER_BYTES:
        data = json.dumps({**said, "rows": []}, default=str).encode()
    line.sendall(data + b"\n")


def _read(reading: BinaryIO) -> dict[str, Any]:
    found = json.loads(_line_of(reading, _MAX_ANSWER_BYTES))
    if not isinstance(found, dict):
        raise ValueError(f"{found!r:.100} is no answer")
    return found


def _line_of(reading: BinaryIO, most: int) -> bytes:
    """One line, without its end.

    Raises:
        ValueError: there is no line end in `most` bytes, or before the end.
        OSError: a piece of it did not come in the time that the socket has for each.
    """
    found = reading.readline(most)
    if not found.endswith(b"\n"):
        raise ValueError(f"no line in {len(found)} bytes")
    return found[:-1]
