# SPDX-License-Identifier: Apache-2.0
"""Stores in DynamoDB, on moto's server, and proxies that refuse as DynamoDB does."""

from __future__ import annotations

import itertools
import json
from typing import Any

from compactlib.kv import DynamoStore
from tests.harness.kv import servers
from tests.harness.kv.faulty_proxy import FaultyProxy, Refusal
from tests.harness.kv.processes import SESSION

_numbers = itertools.count()


def new_table() -> str:
    return f"kv-{next(_numbers)}"


def make(table: str | None = None, address: str | None = None, **arguments: Any) -> DynamoStore:
    # The server is one thread of Python, and may wait long for a busy machine.
    arguments.setdefault("timeout_seconds", 120.0)
    return DynamoStore(table or new_table(), endpoint_url=address or servers.moto(), session=SESSION, **arguments)


def answer(status: int, code: str, **more: Any) -> Refusal:
    """What DynamoDB says when it refuses."""
    body = {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "told by DynamoDB", **more}
    return status, "application/x-amz-json-1.0", json.dumps(body).encode()


def make_proxy(throttled: str = "ProvisionedThroughputExceededException", **more: Any) -> FaultyProxy:
    return FaultyProxy(servers.moto(), throttled=answer(400, throttled, **more),
                       failed=answer(500, "InternalServerError"))
