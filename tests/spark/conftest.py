# SPDX-License-Identifier: Apache-2.0
"""One quiet Spark session for all tests under tests/spark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from compactlib.spark import local_session, ship_library
from tests.raftlog import wrapped_files
from tests.spark import rewrite_tasks, store_jobs
from tests.spark.jvm import QUICK_JAVA


@attrs.frozen
class _Started:
    session: SparkSession
    archive: str
    stderr: str


@pytest.fixture(scope="session")
def _started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Started]:
    folder = tmp_path_factory.mktemp("spark")
    options = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        # The folder pytest was started in holds the library too; workers must not find it there.
        "spark.executorEnv.PYTHONSAFEPATH": "1",
    }
    # An example in the docs may have started one of its own before.
    if (other := SparkSession.getActiveSession()) is not None:
        other.stop()
    session = _session_with_stderr(folder / "stderr", options)
    archive = ship_library(session)
    # The tests' own tasks are importable here only, so they travel by value, as a notebook's do.
    for module in (rewrite_tasks, store_jobs, wrapped_files):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    yield _Started(session, archive, (folder / "stderr").read_text())
    for module in (rewrite_tasks, store_jobs, wrapped_files):
        cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]
    session.stop()


@pytest.fixture(scope="session")
def spark(_started: _Started) -> SparkSession:
    """A classic session on two cores that retries killed workers and has the library shipped to them."""
    return _started.session


@pytest.fixture(scope="session")
def shipped_archive(_started: _Started) -> str:
    """The name under which the library was shipped."""
    return _started.archive


@pytest.fixture(scope="session")
def startup_stderr(_started: _Started) -> str:
    """What Java wrote to stderr until the session was ready."""
    return _started.stderr


def _session_with_stderr(path: Path, options: dict[str, str]) -> SparkSession:
    kept = os.dup(2)
    with path.open("wb") as out:
        os.dup2(out.fileno(), 2)
        try:
            return local_session("compactlib-tests", cores=2, java_options=QUICK_JAVA, options=options)
        finally:
            os.dup2(kept, 2)
            os.close(kept)
