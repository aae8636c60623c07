# SPDX-License-Identifier: Apache-2.0
"""Real servers on loopback, for the tests of one process: started once, ended with it."""

from __future__ import annotations

import atexit
import contextlib
import functools
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

_kept = contextlib.ExitStack()
atexit.register(_kept.close)


@functools.cache
def moto() -> str:
    """The address of moto's server: DynamoDB and S3 with conditional writes; see `tests.harness.kv.moto_server`."""
    return _kept.enter_context(serving([sys.executable, "-m", "tests.harness.kv.moto_server", "{port}"]))


@functools.cache
def etcd() -> tuple[str, int]:
    """Host and port of an etcd server over a folder of its own, whose writes do not wait for the disk."""
    folder = _kept.enter_context(TemporaryDirectory(prefix="compactlib-etcd-"))
    peers = f"http://127.0.0.1:{free_port()}"
    address = _kept.enter_context(serving([
        str(Path(sys.executable).parent / "etcd"), "--data-dir", folder, "--log-level", "error",
        "--listen-client-urls", "http://127.0.0.1:{port}", "--advertise-client-urls", "http://127.0.0.1:{port}",
        "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}",
        "--unsafe-no-fsync",
    ], ready="/health"))
    return "127.0.0.1", int(address.rpartition(":")[2])


def free_port() -> int:
    """A port that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def serving(command: list[str], *, ready: str = "/") -> Iterator[str]:
    """Run a server for the block; `{port}` in its command is filled in. Yields its address."""
    port = free_port()
    # Not a pipe: servers tell of each request, and would wait for somebody to read it.
    server = subprocess.Popen([part.format(port=port) for part in command], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, cwd=Path(__file__).parents[3])
    address = f"http://127.0.0.1:{port}"
    try:
        _await(server, address + ready)
        yield address
    finally:
        server.terminate()
        server.wait()


def _await(server: subprocess.Popen[bytes], address: str) -> None:
    """Return once the server answers that it is well, or anything else that is no failure of its own."""
    while True:
        try:
            urllib.request.urlopen(address, timeout=1).close()
        except urllib.error.HTTPError as error:
            error.close()
            if error.code < 500:
                return
        except OSError:
            pass
        else:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(0.05)
            raise AssertionError(f"the server ended with {server.returncode}; start it by hand to see why")
