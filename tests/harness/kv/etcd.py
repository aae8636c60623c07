# SPDX-License-Identifier: Apache-2.0
"""Stores in etcd, and what its gateway says when it refuses."""

from __future__ import annotations

import itertools
import json
from typing import Any

from examples.etcd_store import EtcdStore
from tests.harness.kv import servers

_numbers = itertools.count()


def new_root() -> bytes:
    return b"test-%d/" % next(_numbers)


def make(root: bytes | None = None, **arguments: Any) -> EtcdStore:
    host, port = servers.etcd()
    return EtcdStore(host, port, root=root or new_root(), **arguments)


def answer(status: int, code: int, message: str) -> tuple[int, str, bytes]:
    """What etcd's gateway says when it refuses."""
    return status, "application/json", json.dumps({"error": message, "code": code, "message": message}).encode()
