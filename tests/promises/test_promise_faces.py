# SPDX-License-Identifier: Apache-2.0
"""Promises are held by what users see: tests/promises, and the helpers it shares, import faces of the library alone."""

from __future__ import annotations

import ast
import importlib
import inspect
import symtable
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import compactlib

ROOT = Path(__file__).parents[2]
TOP = Path(compactlib.__path__[0])
PACKAGES = [f"compactlib.{init.parent.name}" for init in sorted(TOP.glob("*/__init__.py"))
            if "__all__" in vars(importlib.import_module(f"compactlib.{init.parent.name}"))]
FACES = ["compactlib", *PACKAGES, *(f"compactlib.{path.stem}" for path in sorted(TOP.glob("[!_]*.py"))),
         "compactlib.testing.views",
         *(f"{package}.{part}" for package in PACKAGES for part in ("errors", "policy", "policies"))]
"""Where tests, examples and hosts may import from, whether it is there yet or not."""
PLACES = ("tests/promises", "tests/harness")
STILL_INSIDE = {
    "tests/harness/scheduler_history.py": "operations and answers of the scheduler's state machine",
    "tests/harness/log_compaction_story.py": "what a crash loses is chosen by the kit's model of a disk",
    "tests/promises/contract/blobstore.py": "DecliningCost, which is a policy of the lab",
    "tests/promises/contract/catalog.py": "messages and the transport in memory, for a service without a network",
    "tests/promises/contract/hosting.py": "the election by a log, which has no face",
    "tests/promises/contract/raftlog_worker.py": "the snapshot writer, which has no face",
    "tests/promises/contract/runtime.py": "the base of all services, which has no face",
    "tests/promises/contract/scheduler.py": "the kit's views of jobs, and what a poll answers",
    "tests/promises/drivers/local_objects.py": "a read that is checked against a reference",
}
"""What imports internals for now, and what it needs of them. This list only shrinks."""


def files() -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for place in PLACES for path in (ROOT / place).rglob("*.py"))


@cache
def offered(face: str) -> frozenset[str]:
    """The public names of a face; a module's own are those that it defines."""
    try:
        module = importlib.import_module(face)
    except ModuleNotFoundError:
        return frozenset()
    named: list[str] | None = vars(module).get("__all__")
    if named is None:
        # An assignment's targets, a class and a function; what is imported is another module's.
        stored = symtable.symtable(inspect.getsource(module), face, "exec").get_symbols()
        named = [each.get_name() for each in stored if each.is_assigned() and not each.is_imported()]
    return frozenset(name for name in named if not name.startswith("_"))


def internals(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Each internal module that is imported, and the name that is imported from it; `""`: the module itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names
                        if alias.name.split(".")[0] == "compactlib" and alias.name not in FACES)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "compactlib":
            known = offered(node.module) if node.module in FACES else frozenset[str]()
            yield from ((node.module, alias.name) for alias in node.names
                        if alias.name not in known and f"{node.module}.{alias.name}" not in FACES)


def mechanisms(tree: ast.AST) -> Iterator[str]:
    """The modules that tests of mechanisms have, of those that are imported: they go when the mechanisms go."""
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
def test_promise_imports_faces_only(file: str) -> None:
    tree = ast.parse(Path(ROOT / file).read_text())
    found = [f"{module}: {name or 'the module'}" for module, name in internals(tree)]
    found += [f"{module}: a helper of tests of mechanisms" for module in mechanisms(tree)]
    if file in STILL_INSIDE:
        assert found, f"{file} imports faces only: take it from STILL_INSIDE"
    else:
        assert found == [], "import it from a face of its package, or hold the promise by what a user sees"


def test_list_of_exceptions_names_files_that_exist() -> None:
    assert sorted(STILL_INSIDE.keys() - {*files()}) == []


def test_promise_has_a_name_of_its_own() -> None:
    names = [Path(file).name for file in files() if Path(file).name.startswith("test_")]
    assert sorted(names) == sorted(set(names))
