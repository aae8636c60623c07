# SPDX-License-Identifier: Apache-2.0
"""The archive that ships the library, and what needs no session."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from compactlib.errors import MissingDependency
from compactlib.spark import SparkExecutor, register, ship_library
from compactlib.spark.session import library_archive


def test_equal_sources_give_equal_bytes() -> None:
    assert library_archive() == library_archive()


def test_archive_has_sources_and_no_other_files() -> None:
    names = zipfile.ZipFile(io.BytesIO(library_archive())).namelist()
    assert {"compactlib/__init__.py", "compactlib/errors.py", "compactlib/spark/executor.py"} <= set(names)
    assert {Path(name).suffix for name in names} == {".py"}
    assert names == sorted(names)


def test_python_imports_from_it_alone(tmp_path: Path) -> None:
    archive = tmp_path / "library.zip"
    archive.write_bytes(library_archive(with_dependencies=True))
    script = ("import sys; sys.path.insert(0, sys.argv[1]); import compactlib.spark.executor, attrs, "
              "sortedcontainers\n"
              "for module in (compactlib.spark.executor, attrs, sortedcontainers): print(module.__file__)\n"
              "print('pyspark' in sys.modules)")
    # -S: no site-packages, as on a worker that has nothing installed.
    answer = subprocess.run([sys.executable, "-I", "-S", "-c", script, str(archive)], capture_output=True, text=True,
                            check=True)
    *files, has_pyspark = answer.stdout.split()
    assert len(files) == 3
    assert all(file.startswith(str(archive)) for file in files)
    assert has_pyspark == "False"


def test_importing_the_package_does_not_import_spark() -> None:
    script = "import sys, compactlib.spark; print(sorted({'pyspark', 'pyarrow', 'pandas', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_worker_imports_little() -> None:
    """Modules in an archive are compiled again in every worker process."""
    script = ("import sys, compactlib.spark.executor; print(*sorted(m for m in sys.modules if "
              "m.startswith('compactlib')))")
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    found = set(answer.stdout.split())
    assert not {name for name in found if name.startswith(("compactlib.raftlog", "compactlib.blobstore"))}
    assert len(found) < 24


@pytest.mark.spark
def test_shipping_leaves_this_process_as_it_was(spark: SparkSession, shipped_archive: str) -> None:
    path = list(sys.path)
    assert not any(shipped_archive in entry for entry in path)
    ship_library(spark)
    assert sys.path == path


@pytest.mark.parametrize("package", ["pyspark", "pyarrow", "pandas"])
def test_a_missing_package_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for call in (lambda: SparkExecutor(None),  # type: ignore[arg-type]
                 lambda: ship_library(None),  # type: ignore[arg-type]
                 lambda: register(None)):  # type: ignore[arg-type]
        with pytest.raises(MissingDependency, match=r"compactlib\[spark\]") as caught:
            call()
        assert (caught.value.package, caught.value.extra) == (package, "spark")
