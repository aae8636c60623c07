"""Real servers that speak S3, on loopback: one that honours conditional writes, and one that does not."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import boto3
from obstore.store import S3Store

KEYS = {"access_key_id": "testing", "secret_access_key": "testing"}


@contextlib.contextmanager
def moto() -> Iterator[str]:
    """moto's server; yields its address."""
    with _serving([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "{port}"]) as address:
        yield address


@contextlib.contextmanager
def rclone(folder: Path) -> Iterator[str]:
    """rclone's S3 server over a folder; it overwrites whatever `If-None-Match` says. Yields its address."""
    program = Path(sys.executable).parent / "rclone"
    with _serving([str(program), "serve", "s3", "--addr", "127.0.0.1:{port}", "--auth-key", "testing,testing",
                   "--config", "/dev/null", str(folder)]) as address:
        yield address


@contextlib.contextmanager
def _serving(command: list[str]) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # Not a pipe: both tell of each request, and would wait for somebody to read it.
    server = subprocess.Popen([part.format(port=port) for part in command], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        _await(server, address)
        yield address
    finally:
        server.terminate()
        server.wait()


def _await(server: subprocess.Popen[bytes], address: str) -> None:
    """Return once the server answers anything at all."""
    while True:
        try:
            urllib.request.urlopen(address, timeout=1).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            try:
                server.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            raise AssertionError(f"the server ended with {server.returncode}; start it by hand to see why") from None
        else:
            return


def make_bucket(address: str, name: str) -> None:
    """Create a bucket."""
    client = boto3.client("s3", endpoint_url=address, region_name="us-east-1", aws_access_key_id="testing",
                          aws_secret_access_key="testing")
    try:
        client.create_bucket(Bucket=name)
    finally:
        client.close()


def bucket(address: str, name: str) -> S3Store:
    """A bucket of a server as obstore sees it, without retries."""
    return S3Store(name, endpoint=address, region="us-east-1", client_options={"allow_http": True},
                   conditional_put="etag", retry_config={"max_retries": 0}, virtual_hosted_style_request=False,
                   access_key_id="testing", secret_access_key="testing")
