# SPDX-License-Identifier: Apache-2.0
"""Wheels, shipped as Spark itself does, and a Python that has none of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]


def wheel(folder: Path) -> Path:
    """A wheel with one module."""
    members = {"greeting/__init__.py": "def greet(who):\n    return f'hello, {who}'\n",
               "greeting-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n",
               "greeting-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n"}
    path = folder / "greeting-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        # The same bytes whenever it is made.
        for member, text in members.items():
            archive.writestr(zipfile.ZipInfo(member), text)
    return path


def ship_wheel(spark: SparkSession, path: Path) -> str:
    """Send a wheel to the workers of a session, under a name that Spark imports from, which is returned."""
    archive = path.with_name(f"{path.name.split('-')[0]}-wheel.zip")
    shutil.copy(path, archive)
    spark.addArtifacts(str(archive), pyfile=True)
    return archive.name


def library_wheel(folder: Path) -> Path:
    """compactlib's own wheel, built as a release is, without a look at the network."""
    built = folder / "dist"
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)], cwd=ROOT, check=True,
                   capture_output=True, timeout=120)
    (path,) = built.glob("compactlib-*.whl")
    return path


def python_without_library(folder: Path) -> dict[str, str]:
    """The environment of workers that have PySpark and its packages, and no compactlib: `PYSPARK_PYTHON` and the rest.

    What is installed in a path of `PYTHONPATH` is there, but not what is installed by reference, as this tree is.
    """
    venv.create(folder / "bare", symlinks=True, with_pip=False)
    environment = {"PYSPARK_PYTHON": str(folder / "bare" / "bin" / "python"),
                   "PYTHONPATH": sysconfig.get_path("purelib"), "PYTHONSAFEPATH": "1"}
    tried = subprocess.run([environment["PYSPARK_PYTHON"], "-c", "import pyarrow, pandas, attrs, compactlib"],
                           cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert "No module named 'compactlib'" in tried.stderr, tried.stderr
    return environment
