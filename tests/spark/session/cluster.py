# SPDX-License-Identifier: Apache-2.0
"""A standalone Spark cluster on loopback, made of the processes that the pip package brings."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyspark

from tests.harness.spark_session import QUICK_JAVA

_STOP_SECONDS = 10


@contextlib.contextmanager
def standalone_cluster(folder: Path, workers: int) -> Iterator[str]:
    """Start a master and `workers` workers of one core each; gives the master's address, and ends them all.

    Each worker is a host of its own, 127.0.0.1, 127.0.0.2, ..., as far as Spark knows: a copy of a slow task never goes
    to the same host.
    """
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(_daemon(folder / "master", [
            "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]))
        address = master.after("Starting Spark master at ")
        started = [stack.enter_context(_daemon(folder / f"worker-{number}", [
            "org.apache.spark.deploy.worker.Worker", "--host", f"127.0.0.{number + 1}", "--port", "0",
            "--webui-port", "0", "--cores", "1", "--memory", "600M", "--work-dir", str(folder / f"worker-{number}"),
            address]))
            for number in range(workers)]
        for worker in started:
            worker.after("Successfully registered with master ")
        yield address


class _Log:
    """A daemon's log: can be read until a certain line, and is kept from filling its pipe afterwards."""

    def __init__(self, process: subprocess.Popen[str], path: Path) -> None:
        self._process = process
        self._path = path

    def after(self, marker: str) -> str:
        """Read up to the line with `marker`; the word that follows it."""
        assert self._process.stderr is not None
        with self._path.open("a") as kept:
            for line in self._process.stderr:
                kept.write(line)
                if marker in line:
                    threading.Thread(target=self._drain, daemon=True).start()
                    return line.split(marker)[1].split()[0]
        raise AssertionError(f"the daemon ended without saying {marker!r}:\n{self._path.read_text()}")

    def _drain(self) -> None:
        assert self._process.stderr is not None
        with self._path.open("a") as kept, contextlib.suppress(ValueError):
            kept.writelines(self._process.stderr)


@contextlib.contextmanager
def _daemon(folder: Path, arguments: list[str], *, command: Path | None = None,
            environment: Mapping[str, str] | None = None) -> Iterator[_Log]:
    folder.mkdir()
    home = Path(pyspark.__file__).parent
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
        "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOG_DIR": str(folder), "SPARK_PID_DIR": str(folder),
    }
    process = subprocess.Popen([str(command or home / "bin" / "spark-class"), *arguments], cwd=folder,
                               env={**inherited, **(environment or {})}, text=True, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, start_new_session=True)
    try:
        yield _Log(process, folder / "log")
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
        # Executors are in the worker's process group: end the ones that outlived it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(_STOP_SECONDS)
        assert process.stderr is not None
        process.stderr.close()
