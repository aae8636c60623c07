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

    from compactlib.spark import local_session, ship_library

    found = SparkSession.getActiveSession()
    session = found or local_session(
        "compactlib-promises", java_options="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        # The folder that pytest was started in holds the library too; workers must not find it there.
        options={"spark.executorEnv.PYTHONSAFEPATH": "1"})
    ship_library(session)
    yield session
    if found is None:
        session.stop()
