# SPDX-License-Identifier: Apache-2.0
"""Real servers on loopback, for the tests of one process: started once, ended with it."""

from __future__ import annotations

import atexit
import contextlib
import functools
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

from tests.harness.ports import free_port

_STARTS = 5
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


@contextlib.contextmanager
def serving(command: list[str], *, ready: str = "/") -> Iterator[str]:
    """Run a server for the block; `{port}` in its command is filled in. Yields its address.

    Another process may take the free port before the server binds it, so a server that ends is started again at
    another port, a few times.
    """
    with contextlib.ExitStack() as kept:
        for _ in range(_STARTS):
            port = free_port()
            printed = kept.enter_context(TemporaryFile())
            # Not a pipe: servers log each request, and would wait for somebody to read it.
            server = subprocess.Popen([part.format(port=port) for part in command], stdout=subprocess.DEVNULL,
                                      stderr=printed, cwd=Path(__file__).parents[3])
            kept.callback(server.wait)
            kept.callback(server.terminate)
            address = f"http://127.0.0.1:{port}"
            if _is_ready(server, address + ready):
                yield address
                return
        printed.seek(0)
        raise AssertionError(f"the server ended {_STARTS} times before it answered, the last time with "
                             f"{server.returncode}: {printed.read()[-2_000:].decode(errors='replace')}")


def _is_ready(server: subprocess.Popen[bytes], address: str) -> bool:
    """Wait for an answer that is no server error; return False if the server ends before."""
    while True:
        try:
            urllib.request.urlopen(address, timeout=1).close()
        except urllib.error.HTTPError as error:
            error.close()
            if error.code < 500:
                return True
        except OSError:
            pass
        else:
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(0.05)
            return False
