# SPDX-License-Identifier: Apache-2.0
"""The library's wheel, shipped as Spark itself does, and a Python without it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]


def ship_wheel(spark: SparkSession, path: Path) -> str:
    """Send a wheel to the workers of a session, under a name that Spark imports from, which is returned."""
    archive = path.with_name(f"{path.name.split('-')[0]}-wheel.zip")
    shutil.copy(path, archive)
    spark.addArtifacts(str(archive), pyfile=True)
    return archive.name


def library_wheel(folder: Path) -> Path:
    """compactlib's own wheel, built as a release is, without network access."""
    built = folder / "dist"
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)], cwd=ROOT, check=True,
                   capture_output=True, timeout=120)
    (path,) = built.glob("compactlib-*.whl")
    return path


def python_without_library(folder: Path) -> dict[str, str]:
    """The environment of workers that have PySpark and its packages, and no compactlib: `PYSPARK_PYTHON` and the rest.

    Packages in a path of `PYTHONPATH` are found, but not packages installed by reference, as this tree is.
    """
    venv.create(folder / "bare", symlinks=True, with_pip=False)
    environment = {"PYSPARK_PYTHON": str(folder / "bare" / "bin" / "python"),
                   "PYTHONPATH": sysconfig.get_path("purelib"), "PYTHONSAFEPATH": "1"}
    tried = subprocess.run([environment["PYSPARK_PYTHON"], "-c", "import pyarrow, pandas, attrs, compactlib"],
                           cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert "No module named 'compactlib'" in tried.stderr, tried.stderr
    return environment
