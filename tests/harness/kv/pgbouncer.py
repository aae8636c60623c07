# SPDX-License-Identifier: Apache-2.0
"""A real PgBouncer in transaction mode, in front of a PostgreSQL server: transactions share its connections."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.harness.ports import free_port

AVAILABLE = shutil.which("pgbouncer") is not None


@contextmanager
def pgbouncer(server: str, *, connections: int = 3) -> Iterator[str]:
    """Start it with a number of connections to the server; yield the address of it."""
    found = conninfo_to_dict(server)
    with tempfile.TemporaryDirectory(prefix="pgb-") as folder:
        port, config = free_port(), Path(folder) / "pgbouncer.ini"
        config.write_text(f"""[databases]
* = host={found["host"]} port={found.get("port") or 5432} user={found["user"]} pool_size={connections}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 200
ignore_startup_parameters = options
logfile =
""")
        Path(folder).chmod(0o755)
        # It refuses to run as root; the server's owner may enter the folder of its socket.
        user = os.stat(str(found["host"])).st_uid if os.getuid() == 0 else None
        with subprocess.Popen(["pgbouncer", "-q", str(config)], user=user, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) as process:
            uri = make_conninfo(dbname=found["dbname"], host="127.0.0.1", port=port, user=found["user"])
            try:
                for _ in range(100):
                    if _answers(uri):
                        break
                    assert process.poll() is None, "pgbouncer ended"
                    time.sleep(0.05)
                yield uri
            finally:
                process.terminate()


def _answers(uri: str) -> bool:
    try:
        psycopg.connect(uri, connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True
