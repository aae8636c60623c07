# SPDX-License-Identifier: Apache-2.0
"""Send the library to the workers of a Spark session; register the tables in it."""

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
    """Return the library's sources as an importable zip. Equal sources give equal bytes."""
    packages = ("compactlib", "attr", "attrs", "sortedcontainers") if with_dependencies else ("compactlib",)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for package in packages:
            for name, data in sorted(_sources(importlib.resources.files(package), package)):
                # `ZipInfo` dates each file 1980: the bytes must not depend on the time.
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
    """Send compactlib's sources to the workers of this session, where they precede an installed copy.

    Call it once per session, before the first job; a second call with unchanged sources has no effect. The archive
    stays in a temporary folder until this process ends.

    Args:
        with_dependencies: send attrs and sortedcontainers too, for workers that have only PySpark's own packages.

    Returns:
        The file name of the archive, which contains a digest of the sources.
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
        # The name contains the digest, so an artifact of that name is the same archive.
        if error.getCondition() not in ("DUPLICATED_ARTIFACT", "ARTIFACT_ALREADY_EXISTS"):
            raise
    finally:
        # Spark adds the archive to this process's path too, where it would be a second copy of the library.
        sys.path[:] = [entry for entry in sys.path if entry in before or os.path.basename(entry) != name]
    return name


def register(spark: SparkSession) -> None:
    """Register the formats `compactlib.raftlog` and `compactlib.blobstore` for `spark.read.format(...)` in a session.

    `docs/spark.md` lists their columns and options. A DataFrame keeps the plan of its first execution; after a
    compaction it may fail with `Stale`.
    """
    require_spark("a data source of compactlib")
    from compactlib.spark.tables import BlobTable, LogTable

    for table in (LogTable, BlobTable):
        spark.dataSource.register(table)
