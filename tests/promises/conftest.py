# SPDX-License-Identifier: Apache-2.0
"""One Spark session for the promises that need one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on two cores that has the library shipped to its workers; another test's if there is one."""
    from pyspark.sql import SparkSession

    from compactlib.spark import ship_library
    from tests.harness.spark_session import QUICK_JAVA, spark_session

    found = SparkSession.getActiveSession()
    session = found or spark_session(
        "compactlib-promises", java_options=QUICK_JAVA,
        # The folder that pytest was started in holds the library too; workers must not find it there.
        options={"spark.executorEnv.PYTHONSAFEPATH": "1"})
    ship_library(session)
    yield session
    if found is None:
        session.stop()
