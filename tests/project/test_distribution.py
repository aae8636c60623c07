# SPDX-License-Identifier: Apache-2.0
"""The wheel and the source distribution: complete, and enough for README's examples."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import compactlib

HOME = Path(__file__).parents[2]
REQUIRED = ("attr", "attrs", "sortedcontainers")
# The example of the staging area needs pyarrow, which is an extra.
EXAMPLES = [example for example in re.findall(r"(?ms)^```python\n(.*?)^```", (HOME / "README.md").read_text())
            if "compactlib.staging" not in example]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    # Without isolation: the backend is the environment's, and no registry is asked.
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=HOME, check=True,
                   capture_output=True)
    return folder


@pytest.fixture(scope="module")
def bare(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content and the packages that it requires, and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(folder)
    for name in REQUIRED:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        (folder / name).symlink_to(Path(spec.origin).parent)
    return folder


def run(bare: Path, statements: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    start = f"import sys; sys.path.insert(0, {str(bare)!r})\n"
    return subprocess.run([sys.executable, "-I", "-S", "-c", start + statements, *arguments], cwd=cwd,
                          capture_output=True, text=True, check=False)


def sources() -> set[str]:
    return {str(path.relative_to(HOME)) for path in (HOME / "compactlib").rglob("*")
            if path.is_file() and "__pycache__" not in path.parts}


def test_wheel_holds_the_package_its_types_and_the_licence(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    of_package = {name for name in names if ".dist-info/" not in name}
    assert of_package == sources()
    assert "compactlib/py.typed" in of_package
    assert {name.partition("/")[2] for name in names - of_package} >= {"METADATA", "entry_points.txt",
                                                                     "licenses/LICENSE"}


def test_source_distribution_has_the_files_of_both_commands(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= sources() | {"Makefile", "README.md", "pyproject.toml", "requirements.lock", "scripts/bootstrap.py",
                                 "tests/conftest.py", "docs/index.md", ".ci/run"}


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example_of_the_readme_runs_with_the_required_packages_alone(number: int, bare: Path, tmp_path: Path) -> None:
    done = run(bare, EXAMPLES[number], cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_console_of_the_wheel_knows_its_version(bare: Path, tmp_path: Path) -> None:
    done = run(bare, "from compactlib.__main__ import main; raise SystemExit(main())", "--version", cwd=tmp_path)
    assert (done.returncode, compactlib.__version__ in done.stdout) == (0, True), done.stderr


def test_a_missing_extra_is_named_with_the_command_that_installs_it(bare: Path, tmp_path: Path) -> None:
    done = run(bare, "from compactlib.objects import RemoteObjects; RemoteObjects('s3://bucket')", cwd=tmp_path)
    assert "MissingDependency" in done.stderr
    assert "compactlib[objects]" in done.stderr
