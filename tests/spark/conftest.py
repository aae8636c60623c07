# SPDX-License-Identifier: Apache-2.0
"""One quiet Spark session for all tests under tests/spark."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from compactlib.spark import ship_library
from tests.harness.spark_session import QUICK_JAVA, spark_session
from tests.raftlog import wrapped_files
from tests.spark import rewrite_tasks, store_jobs


@attrs.frozen
class _Started:
    session: SparkSession
    archive: str


@pytest.fixture(scope="session")
def _started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Started]:
    folder = tmp_path_factory.mktemp("spark")
    options = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        # The folder pytest was started in holds the library too; workers must not find it there.
        "spark.executorEnv.PYTHONSAFEPATH": "1",
    }
    found = SparkSession.getActiveSession()
    is_ours = found is not None and found.conf.get("spark.executorEnv.PYTHONSAFEPATH", "") == "1"
    # The promise tests may have started the same one; an example in the docs starts one of its own.
    if found is not None and not is_ours:
        found.stop()
    session = found if found is not None and is_ours else spark_session(
        "compactlib-tests", java_options=QUICK_JAVA, options=options)
    archive = ship_library(session)
    # The tests' own tasks are importable here only, so they travel by value, as a notebook's do.
    for module in (rewrite_tasks, store_jobs, wrapped_files):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    yield _Started(session, archive)
    for module in (rewrite_tasks, store_jobs, wrapped_files):
        cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]
    if not is_ours:
        session.stop()


@pytest.fixture(scope="session")
def spark(_started: _Started) -> SparkSession:
    """A classic session on two cores that retries killed workers and has the library shipped to them."""
    return _started.session


@pytest.fixture(scope="session")
def shipped_archive(_started: _Started) -> str:
    """The name under which the library was shipped."""
    return _started.archive
