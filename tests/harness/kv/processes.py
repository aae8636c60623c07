# SPDX-License-Identifier: Apache-2.0
"""Processes that count together in one store: `python -m tests.harness.kv.processes SPEC TIMES` (`open_store`)."""

from __future__ import annotations

import subprocess
import sys

import boto3

from compactlib.errors import Closed
from compactlib.kv import DynamoStore, KeyNotFound, KVStore, PredicateFailed
from examples.etcd_store import EtcdStore
from tests.harness.forks import in_a_fork

P = b"test"
SESSION = boto3.Session(aws_access_key_id="testing", aws_secret_access_key="testing", region_name="us-east-1")
"""Credentials that moto accepts."""


def open_store(spec: str) -> KVStore:
    """Open the store of a spec: `dynamodb ADDRESS TABLE` or `etcd PORT ROOT`."""
    kind, where, name = spec.split()
    if kind == "etcd":
        return EtcdStore("127.0.0.1", int(where), root=name.encode())
    return DynamoStore(name, endpoint_url=where, session=SESSION)


def count_up(store: KVStore, times: int) -> None:
    """Increment a counter `times` times, by compare-and-set."""
    for _ in range(times):
        while True:
            try:
                try:
                    found = store.get(P, b"counter")
                except KeyNotFound:
                    store.set_if(P, b"counter", b"1", None)
                else:
                    store.set_if(P, b"counter", b"%d" % (int(found.value) + 1), found.predicate)
                break
            except PredicateFailed:
                pass


def counted(store: KVStore, spec: str, processes: int = 2, times: int = 10) -> int:
    """Return the counter after several processes and this one have incremented it."""
    others = [subprocess.Popen([sys.executable, "-m", "tests.harness.kv.processes", spec, str(times)])
              for _ in range(processes)]
    count_up(store, times)
    assert [other.wait() for other in others] == [0] * processes
    return int(store.get(P, b"counter").value)


def closed_in_a_child(store: KVStore) -> bool:
    """Return whether a forked child gets `Closed` from the store, and can close it without harm."""
    def refused() -> bool:
        try:
            store.get(P, b"k")
        except Closed:
            return True
        finally:
            store.close()
        return False

    return in_a_fork(refused) is True


if __name__ == "__main__":
    count_up(open_store(sys.argv[1]), int(sys.argv[2]))
