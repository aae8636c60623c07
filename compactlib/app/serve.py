# SPDX-License-Identifier: Apache-2.0
"""`compactlib serve`: a scheduler in an SQLite file, over HTTP, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import secrets
import signal
import ssl
from collections.abc import Callable, Iterable
from typing import TypeVar

import attrs

from compactlib.errors import InvalidInput, StorageError
from compactlib.files.disk import LocalFiles
from compactlib.hosting.http.application import SchedulerApplication
from compactlib.hosting.http.server import HttpServer
from compactlib.kv import KVStore, PredicateFailed, SqliteStore
from compactlib.runtime.doors import Address
from compactlib.runtime.observe import Observer, PrometheusObserver
from compactlib.scheduler import BlockMeta, PollRequest, SchedulerService, StoredScheduler
from compactlib.scheduler.fences.token import TokenSealer
from compactlib.scheduler.model.poll import PollResponse
from compactlib.scheduler.model.update import BlocksAdded
from compactlib.scheduler.service.store import PARTITION, stored_machine

AnswerT = TypeVar("AnswerT")
_SEALS = b"scheduler/seals"
_SEAL = b"key"
_SEAL_BYTES = 32


@attrs.frozen(kw_only=True)
class ServeSettings:
    """What is to be served, and to whom.

    Attributes:
        path: the SQLite file; made for its owner alone if there is none, since it holds what seals tokens.
        address: `HOST:PORT`; port 0: the system chooses.
        tokens: a file of who may ask: a name, a space and a secret a line.
        certificate: of the server, with its chain; for TLS.
        key: the certificate's.
        authority: whose certificates of clients are accepted; each must show one then.
        insecure: answer everybody, or without TLS.
    """

    path: str
    address: str
    tokens: str | None = None
    certificate: str | None = None
    key: str | None = None
    authority: str | None = None
    insecure: bool = False


def serve(settings: ServeSettings) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit code.

    Raises:
        InvalidInput: the settings would answer strangers, or make no sense.
        CompactlibError: the store cannot be opened, or the address not be listened on.
    """
    listen, tls = address_of(settings.address), _tls_of(settings)
    tokens = None if settings.tokens is None else tokens_of(settings.tokens)
    observer = PrometheusObserver.apart()
    # What strangers send that is no HTTP is answered, and is no news.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    with contextlib.closing(SqliteStore(settings.path, files=LocalFiles(private=True))) as kv, \
            contextlib.ExitStack() as open_last:
        _refuse_others(kv, settings.path)
        served = _OpenedLast(lambda: open_last.enter_context(contextlib.closing(opened(kv, observer))))
        application = SchedulerApplication(served, tokens=tokens, sealer=TokenSealer({"serve": _seal_key(kv)}),
                                           metrics=observer, insecure=settings.insecure, observer=observer)
        server = HttpServer(application, listen=listen, tls=tls, insecure=settings.insecure, observer=observer)
        asyncio.run(_until_told(server, served, settings.path, "http" if tls is None else "https"))
    return 0


class _OpenedLast:
    """What is served, opened once the server listens: opening takes the store over, and what refuses to serve it after
    that would have stopped another server for nothing."""

    def __init__(self, take_over: Callable[[], StoredScheduler]) -> None:
        self._take_over = take_over
        self._scheduler: StoredScheduler

    def open(self) -> None:
        """Take the store over; nothing is asked before, since the event loop waits for it."""
        self._scheduler = self._take_over()

    def poll(self, request: PollRequest) -> PollResponse:
        """See `Served.poll`."""
        return self._scheduler.poll(request)

    def add_blocks(self, blocks: Iterable[BlockMeta]) -> BlocksAdded:
        """See `Served.add_blocks`."""
        return self._scheduler.add_blocks(blocks)

    def look(self, at: Callable[[SchedulerService], AnswerT]) -> AnswerT:
        """See `Served.look`."""
        return self._scheduler.look(at)


async def _until_told(server: HttpServer, served: _OpenedLast, path: str, scheme: str) -> None:
    told = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    async with server:
        served.open()
        host, port = server.address
        print(f"{path} is served at {scheme}://{f'[{host}]' if ':' in host else host}:{port}/", flush=True)
        await told.wait()


def opened(kv: KVStore, observer: Observer) -> StoredScheduler:
    """The scheduler of a store, under the settings that it was opened with last; the defaults for a new one."""
    return StoredScheduler(kv, stored_machine(kv).service.state.opened_with, observer=observer)


def address_of(text: str) -> Address:
    """`HOST:PORT` or `[HOST]:PORT`, taken apart; raises `InvalidInput`."""
    match = re.fullmatch(r"(?:([^][:]+)|\[([^][]+)\]):([0-9]{1,5})", text)
    if match is None or int(match[3]) > 65535:
        raise InvalidInput(f"{text!r} is no address to listen on; give HOST:PORT, for example 127.0.0.1:8080")
    return match[1] or match[2], int(match[3])


def tokens_of(path: str) -> dict[str, str]:
    """Who may ask, from a file that nobody but its owner reads.

    Raises:
        InvalidInput: others can read it, or a line is no name and secret.
        StorageError: it cannot be read.
    """
    try:
        with open(path, encoding="utf-8") as file:
            shared = os.fstat(file.fileno()).st_mode & 0o077
            lines = [line.split() for line in file if line.strip() and not line.startswith("#")]
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is no text in UTF-8: {error}") from None
    except OSError as error:
        raise StorageError.from_os(error, "read", path) from None
    if shared:
        raise InvalidInput(f"{path} holds secrets, and others on this machine may read it; chmod 600 it")
    tokens = {words[0]: words[-1] for words in lines if len(words) == 2}
    if not tokens or len(tokens) < len(lines):
        raise InvalidInput(f"{path} has {len(lines)} lines and {len(tokens)} tokens; give a name, a space and a secret "
                           f"on each line, each name once")
    return tokens


def _tls_of(settings: ServeSettings) -> ssl.SSLContext | None:
    if settings.certificate is None:
        if settings.key is not None or settings.authority is not None:
            raise InvalidInput("--key and --authority are for TLS; give the server's --certificate too")
        return None
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        tls.load_cert_chain(settings.certificate, settings.key)
        if settings.authority is not None:
            tls.load_verify_locations(settings.authority)
            tls.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(f"the certificate, its key or the authority cannot be read: {error}; give files in PEM, and "
                           f"the key of this certificate") from None
    return tls


def _refuse_others(kv: SqliteStore, path: str) -> None:
    """A file that holds other stores, and no scheduler, is not the one that was meant."""
    there = set(kv.partitions())
    if PARTITION not in there and (others := sorted(there - {_SEALS})):
        raise InvalidInput(f"{path} holds no scheduler, but {', '.join(map(repr, others[:3]))}; give the scheduler's "
                           f"file, or a new one")


def _seal_key(kv: KVStore) -> bytes:
    """What seals tokens, as long as there is the store: a worker keeps its jobs over a restart."""
    with contextlib.suppress(PredicateFailed):
        kv.set_if(_SEALS, _SEAL, secrets.token_bytes(_SEAL_BYTES), None)
    return kv.get(_SEALS, _SEAL).value
