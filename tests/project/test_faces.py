# SPDX-License-Identifier: Apache-2.0
"""The faces of the library: how much they show, that no name means two things, and what each page begins with."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest

import compactlib

TOP = Path(compactlib.__path__[0])
# More than their share: the scheduler, whose host passes commands and operations in and takes answers out; the catalog,
# for columns and changes of a table are what its callers write; the Raft log, whose host also writes snapshots, applies
# and sends them, and answers `AppendEntries`; the pieces for an executor of one's own; the kits, which back-ends
# inherit. A removed name lowers its face's bound. Names for authors of policies are in `policy` and `policies`.
AT_MOST = {
    "compactlib.raftlog": 39, "compactlib.blobstore": 31, "compactlib.staging": 30, "compactlib.catalog": 42,
    "compactlib.scheduler": 34, "compactlib.fences": 14, "compactlib.kv": 25, "compactlib.spark": 10,
    "compactlib.commandlog": 9, "compactlib.lab": 19, "compactlib.testing": 37,
    "compactlib.objects": 16, "compactlib.executors": 17, "compactlib.files": 9,
}
# Types that public methods take and promises name are on the faces (`RecordKind`, ...); what leaves a face lowers it.
IN_ALL = 418
DOCUMENTED = ["raftlog", "blobstore", "staging", "catalog", "scheduler", "kv", "objects", "spark", "lab",
              "testing"]

def imports_of(init: Path) -> list[tuple[str, str]]:
    """Each name that a package imports for type checkers, and its module."""
    tree = ast.parse(init.read_text())
    return [(alias.name, node.module) for block in tree.body if isinstance(block, ast.If)
            for node in block.body if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names if alias.asname == alias.name]

def faces() -> list[str]:
    names = [".".join(init.parent.relative_to(TOP.parent).parts) for init in sorted(TOP.rglob("__init__.py"))
             if imports_of(init)]
    assert len(names) > 10
    return names

def names_of(package: str) -> list[str]:
    listed: list[str] = vars(importlib.import_module(package))["__all__"]
    return listed

def shared_modules() -> list[str]:
    return [f"compactlib.{each.name}" for each in pkgutil.iter_modules(compactlib.__path__)
            if not each.ispkg and not each.name.startswith("_") and each.name not in ("cli", "demo")]

def defined_in(name: str) -> dict[str, Any]:
    return {public: value for public, value in vars(importlib.import_module(name)).items()
            if not public.startswith("_") and getattr(value, "__module__", None) == name
            and not isinstance(value, TypeVar)}

@pytest.mark.parametrize("face", faces())
def test_a_face_offers_the_names_that_type_checkers_read(face: str) -> None:
    package = importlib.import_module(face)
    for each in pkgutil.iter_modules(package.__path__):
        # The import binds the submodule to its package: no public name may be spelled alike.
        importlib.import_module(f"{face}.{each.name}")
    read = imports_of(Path(package.__path__[0]) / "__init__.py")
    assert {name for name, _ in read} == {*names_of(face)} <= {*dir(package)}
    for name, home in read:
        assert getattr(package, name) is getattr(importlib.import_module(home), name)
        assert not isinstance(getattr(package, name), ModuleType)

@pytest.mark.parametrize("face", faces())
def test_a_face_is_small(face: str) -> None:
    assert len(names_of(face)) <= AT_MOST[face]

def test_all_faces_together_are_small() -> None:
    shown = {name for face in faces() for name in names_of(face)}
    shown |= {name for module in shared_modules() for name in defined_in(module)}
    assert len(shown) + len(faces()) + len(shared_modules()) <= IN_ALL

def test_no_name_has_two_meanings() -> None:
    meanings = defaultdict[str, dict[int, str]](dict)
    for face in faces():
        package = importlib.import_module(face)
        for name in names_of(face):
            meanings[name][id(getattr(package, name))] = face
    for module in shared_modules():
        for name, value in defined_in(module).items():
            meanings[name][id(value)] = module
    assert {name: sorted(found.values()) for name, found in meanings.items() if len(found) > 1} == {}

@pytest.mark.parametrize("package", DOCUMENTED)
def test_a_reference_begins_with_the_ten_names_that_every_user_needs(package: str) -> None:
    page = (TOP.parent / "docs" / "api" / f"{package}.md").read_text()
    named = re.findall(rf"\[`(\w+)`\]\(#compactlib.{package}.\1\)", page.partition("Begin with ")[2])
    assert len(named) == 10
    assert set(named) <= set(names_of(f"compactlib.{package}"))
