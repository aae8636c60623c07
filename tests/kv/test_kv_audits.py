# SPDX-License-Identifier: Apache-2.0
"""Audits of stores and catalogs raise an error of the library, also under `python -O`, which strips every `assert`."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import compactlib
from compactlib.errors import AuditFailed, CompactlibError

ROOT = Path(compactlib.__file__).parent

SCRIPT = """
from compactlib.errors import AuditFailed
from compactlib.kv import MemoryStore
store = MemoryStore()
store.set(b"p", b"k", b"v")
store._partitions[b"q"] = {}
try:
    store.audit()
except AuditFailed as error:
    print("found:", error)
"""


def test_an_audit_finds_what_is_wrong_also_without_asserts() -> None:
    assert issubclass(AuditFailed, CompactlibError)
    told = subprocess.run([sys.executable, "-O", "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert told.stdout == "found: partition b'q' is kept although it is empty\n"


@pytest.mark.parametrize("package", ["catalog", "kv"])
def test_no_audit_leaves_its_findings_to_assert(package: str) -> None:
    found = [f"{path.name}:{node.lineno}" for path in sorted((ROOT / package).rglob("*.py"))
             for function in ast.walk(ast.parse(path.read_text()))
             if isinstance(function, ast.FunctionDef) and "audit" in function.name
             for node in ast.walk(function)
             if isinstance(node, ast.Assert) or (isinstance(node, ast.Name) and node.id == "AssertionError")]
    assert found == []
