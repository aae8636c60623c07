# SPDX-License-Identifier: Apache-2.0
"""The engines are spoken to through their faces: by promise tests, the edge of the library, examples and benchmarks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.faces import OUTSIDE, ROOT, internals

TESTS = ("tests/promises", "tests/harness")
PLACES = (*TESTS, *OUTSIDE)
STILL_INSIDE = {
    "benchmarks/catalog.py": "single steps of a decision and of a recovery",
    "benchmarks/growth.py": "single steps of a poll, a recovery and a table's plan",
    "benchmarks/raftlog_compaction.py": "the rewrite with and without NumPy",
    "benchmarks/scheduler.py": "the scheduler's state without a host",
    "benchmarks/spark_rewrites.py": "a task of the staging area without a repository",
    "examples/etcd_store.py": "a pool of connections, and how versions are compared",
}
"""The files that import internals, and their reasons. This list only shrinks."""


def files() -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for place in PLACES
                  for path in ([ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.py")))


def mechanisms(tree: ast.AST) -> Iterator[str]:
    """Return the imported modules of tests of mechanisms: they are removed with the mechanisms."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "tests":
            yield from (alias.name for alias in node.names if alias.name not in ("harness", "promises"))
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tests."):
            if node.module.split(".")[1] not in ("harness", "promises"):
                yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "tests"
                        and alias.name.split(".")[1:2] not in (["harness"], ["promises"]))


@pytest.mark.parametrize("file", files())
def test_file_imports_faces_only(file: str) -> None:
    tree = ast.parse(Path(ROOT / file).read_text())
    found = [f"{module}: {name or 'the module'}" for module, name in internals(tree, file)]
    if file.startswith(TESTS):
        found += [f"{module}: a helper of tests of mechanisms" for module in mechanisms(tree)]
    if file in STILL_INSIDE:
        assert found, f"{file} imports faces only: take it from STILL_INSIDE"
    else:
        assert found == [], "import it from a face of its package, or test the promise by its effect for a user"


def test_list_of_exceptions_names_files_that_exist() -> None:
    assert sorted(STILL_INSIDE.keys() - {*files()}) == []


def test_promise_has_its_own_name() -> None:
    names = [Path(file).name for file in files() if file.startswith(TESTS) and Path(file).name.startswith("test_")]
    assert sorted(names) == sorted(set(names))
