# SPDX-License-Identifier: Apache-2.0
"""A session of the caller: sending the library to its workers, and making the tables known to it."""

from __future__ import annotations

import atexit
import hashlib
import importlib.resources
import io
import os
import shutil  # noqa: TID251 - scratch for Spark, no data of the library
import sys
import tempfile  # noqa: TID251 - scratch for Spark, no data of the library
import zipfile
from collections.abc import Iterator
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

from compactlib.spark.jobs import require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def library_archive(with_dependencies: bool = False) -> bytes:
    """The sources of the library as a zip that Python can import from; equal sources give equal bytes."""
    packages = ("compactlib", "attr", "attrs", "sortedcontainers") if with_dependencies else ("compactlib",)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for package in packages:
            for name, data in sorted(_sources(importlib.resources.files(package), package)):
                # As of 1980, whatever the time.
                archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _sources(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for child in folder.iterdir():
        path = f"{name}/{child.name}"
        if child.is_dir():
            yield from _sources(child, path)
        elif child.name.endswith(".py"):
            yield path, child.read_bytes()


def ship_library(spark: SparkSession, *, with_dependencies: bool = False) -> str:
    """Send compactlib's sources to the workers of this session; they go before an installed copy.

    Call it once per session, before the first job; again with unchanged sources it does nothing. The archive stays in a
    temporary folder until this process ends; its file name, which is returned, carries a digest of the sources. With
    dependencies, attrs and sortedcontainers are sent too, for workers that have only PySpark's own packages.
    """
    require_spark("shipping the library")
    from pyspark.errors import PySparkException

    data = library_archive(with_dependencies)
    name = f"compactlib-{hashlib.sha256(data).hexdigest()[:16]}.zip"
    folder = tempfile.mkdtemp(prefix="compactlib-ship-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = os.path.join(folder, name)
    with open(path, "xb") as out:
        out.write(data)
    before = set(sys.path)
    try:
        spark.addArtifacts(path, pyfile=True)
    except PySparkException as error:
        # The name carries the digest, so an artifact of that name is the same archive.
        if error.getCondition() not in ("DUPLICATED_ARTIFACT", "ARTIFACT_ALREADY_EXISTS"):
            raise
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        # Spark puts it on this process's path as well, where it would be a second copy of what is installed.
        sys.path[:] = [entry for entry in sys.path if entry in before or os.path.basename(entry) != name]
    return name


def register(spark: SparkSession) -> None:
    """Make `spark.read.format(...).load(folder)` work in this session for `compactlib.raftlog` and
    `compactlib.blobstore`; `docs/spark.md` has their columns and options.

    A DataFrame sees the files that it found when it was first executed; after a compaction it may fail with `Stale`.
    With `payload=false` and `damaged=column` payloads are checked but not passed on.
    """
    require_spark("a data source of compactlib")
    from compactlib.spark.tables import BlobTable, LogTable

    for table in (LogTable, BlobTable):
        spark.dataSource.register(table)
