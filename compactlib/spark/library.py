"""Ships compactlib to workers that do not have it installed."""

from __future__ import annotations

import atexit
import hashlib
import importlib.resources
import io
import os
import shutil  # noqa: TID251 - scratch for Spark, no data of the library
import tempfile  # noqa: TID251 - scratch for Spark, no data of the library
import zipfile
from collections.abc import Iterator
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

from compactlib.spark.dependencies import require_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EARLIEST = (1980, 1, 1, 0, 0, 0)
_KNOWN_ALREADY = ("DUPLICATED_ARTIFACT", "ARTIFACT_ALREADY_EXISTS")


def library_archive(packages: tuple[str, ...] = ("compactlib",)) -> bytes:
    """The sources of pure-Python packages as a zip that Python can import from; equal sources give equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in packages:
            for name, data in sorted(_sources(importlib.resources.files(package), package)):
                info = zipfile.ZipInfo(name, _EARLIEST)
                info.compress_type = zipfile.ZIP_DEFLATED
                info.external_attr = 0o644 << 16
                archive.writestr(info, data)
    return buffer.getvalue()


def _sources(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for child in folder.iterdir():
        path = f"{name}/{child.name}"
        if child.is_dir():
            yield from _sources(child, path)
        elif child.name.endswith((".py", ".typed")):
            yield path, child.read_bytes()


def ship_library(spark: SparkSession, *, with_dependencies: bool = False) -> str:
    """Send compactlib's sources to the workers of this session; they go before an installed copy.

    Call it once per session, before the first job. Calling again with unchanged sources does nothing. The archive is
    kept in a temporary folder until this process ends, because workers that join later fetch it from there.

    Args:
        spark: a classic or a Spark Connect session.
        with_dependencies: send attrs and sortedcontainers too, for workers that have only PySpark's own packages.

    Returns:
        The archive's file name, which carries a digest of the sources.

    Raises:
        MissingDependency: PySpark is not installed here.
    """
    require_spark("shipping the library")
    from pyspark.errors import PySparkException

    packages = ("compactlib", "attr", "attrs", "sortedcontainers") if with_dependencies else ("compactlib",)
    data = library_archive(packages)
    name = f"compactlib-{hashlib.sha256(data).hexdigest()[:16]}.zip"
    folder = tempfile.mkdtemp(prefix="compactlib-ship-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = os.path.join(folder, name)
    with open(path, "xb") as out:
        out.write(data)
    try:
        spark.addArtifacts(path, pyfile=True)
    except PySparkException as error:
        # The name carries the digest, so an artifact of that name is the same archive.
        if error.getCondition() not in _KNOWN_ALREADY:
            raise
        shutil.rmtree(folder, ignore_errors=True)
    return name
