"""`docs/observability.md` lists every counter and event that the code names, and nothing that it does not."""

from __future__ import annotations

import ast
import re
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_NOT_TOLD_TO_HOSTS = {"testing", "app"}


def told_by_the_code() -> set[str]:
    """The literal names in calls of `count` and `event` on an observer."""
    names = set()
    for path in (_ROOT / "compactlib").rglob("*.py"):
        if _NOT_TOLD_TO_HOSTS & set(path.parts) or path.name == "observe.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args
                    and node.func.attr in ("count", "event") and "observer" in ast.unparse(node.func.value)
                    and isinstance(node.args[0], ast.Constant)):
                names.add(str(node.args[0].value))
    return names


def code_text() -> str:
    return "\n".join(path.read_text() for path in (_ROOT / "compactlib").rglob("*.py"))


def listed() -> set[str]:
    page = (_ROOT / "docs" / "observability.md").read_text()
    return set(re.findall(r"^\| `([a-z_.]+)` \| (?:counter|event) \|", page, re.MULTILINE))


def test_every_name_that_the_code_tells_is_on_the_page() -> None:
    assert told_by_the_code() - listed() == set()


def test_the_page_names_nothing_that_the_code_does_not() -> None:
    code = code_text()
    assert [name for name in sorted(listed()) if f'"{name}"' not in code] == []
