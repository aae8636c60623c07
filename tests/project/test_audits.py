# SPDX-License-Identifier: Apache-2.0
"""What an audit checks is checked under `python -O` as well, which strips every `assert`."""

from __future__ import annotations

import ast
from pathlib import Path

_LIBRARY = Path(__file__).parents[2] / "compactlib"


def test_no_audit_rests_on_an_assert() -> None:
    audits, resting = 0, []
    for path in sorted(_LIBRARY.rglob("*.py")):
        for found in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef) and "audit" in found.name.split("_")[:2]:
                audits += 1
                resting += [f"{path.relative_to(_LIBRARY)}:{node.lineno}" for node in ast.walk(found)
                            if isinstance(node, ast.Assert)]
    assert resting == []
    assert audits > 10
