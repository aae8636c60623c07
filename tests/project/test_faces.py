# SPDX-License-Identifier: Apache-2.0
"""The faces of the library: how much they show, that no name means two things, and what each page begins with."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, TypeVar

import pytest

import compactlib
from compactlib._lazy import LazyPackage

TOP = Path(compactlib.__path__[0])
# More than their share: the scheduler, whose host passes commands and operations in and takes answers out; the catalog,
# for columns and changes of a table are what its callers write; the Raft log, whose host also writes snapshots, applies
# them and answers `AppendEntries`; the pieces for an executor of one's own; the kits, which a backend of each kind
# inherits. What leaves a face lowers its bound. What authors of policies need is in `policy` and `policies`.
AT_MOST = {
    "compactlib": 20,
    "compactlib.raftlog": 45, "compactlib.blobstore": 33, "compactlib.staging": 36, "compactlib.catalog": 46,
    "compactlib.scheduler": 39, "compactlib.kv": 23, "compactlib.spark": 14, "compactlib.hosting": 20,
    "compactlib.lab": 27, "compactlib.testing": 70, "tests.tools.interleave": 10, "compactlib.objects": 20,
    "compactlib.runtime": 16, "compactlib.executors": 17, "compactlib.files": 9, "compactlib.indexset": 5,
}
# Types that public methods take and promises name are on the faces (`RecordKind`, ...); what leaves a face lowers it.
IN_ALL = 455
DOCUMENTED = ["raftlog", "blobstore", "staging", "catalog", "scheduler", "kv", "objects", "spark", "hosting", "lab",
              "testing"]


def faces() -> list[str]:
    names = [".".join(stub.parent.relative_to(TOP.parent).parts) for stub in sorted(TOP.rglob("__init__.pyi"))]
    assert len(names) > 10
    return names


def names_of(package: str) -> list[str]:
    listed: list[str] = vars(importlib.import_module(package))["__all__"]
    return listed


def shared_modules() -> list[str]:
    return [f"compactlib.{each.name}" for each in pkgutil.iter_modules(compactlib.__path__)
            if not each.ispkg and not each.name.startswith("_")]


def defined_in(name: str) -> dict[str, Any]:
    return {public: value for public, value in vars(importlib.import_module(name)).items()
            if not public.startswith("_") and getattr(value, "__module__", None) == name
            and not isinstance(value, TypeVar)}


def test_what_a_package_shows_stands_in_its_stub_and_nowhere_else() -> None:
    for init in TOP.rglob("__init__.py"):
        listed = [node.id for node in ast.walk(ast.parse(init.read_text())) if isinstance(node, ast.Name)
                  and node.id == "__all__"]
        assert not listed, init
    for face in faces():
        assert isinstance(importlib.import_module(face), LazyPackage)


@pytest.mark.parametrize("face", faces())
def test_a_stub_and_what_is_loaded_name_the_same(face: str) -> None:
    package = importlib.import_module(face)
    stub = ast.parse((Path(package.__path__[0]) / "__init__.pyi").read_text())
    told = {alias.name: statement.module for statement in stub.body if isinstance(statement, ast.ImportFrom)
            for alias in statement.names}
    assert told == vars(package)["_homes"]
    assert all(alias.asname == alias.name for statement in stub.body if isinstance(statement, ast.ImportFrom)
               for alias in statement.names)


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
    _, _, after = page.partition("The ten names to begin with")
    rows = after.partition("\n\n")[2].partition("\n\n")[0].splitlines()[2:]
    named = [re.findall(r"`(\w+)`", row)[0] for row in rows]
    assert len(named) == 10
    assert set(named) <= set(names_of(f"compactlib.{package}"))
