"""Runs the examples of docstrings, docs/ and README.md as tests, those of each file in a scratch folder of its own.

With `-n 2` a file's tests stay in one process, and all that need Spark in the same one, since they share a session.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE
from pathlib import Path
from typing import Any

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser
from sybil.parsers.rest import DocTestParser
from sybil.sybil import SybilCollection
from sybil.typing import Parser

_FLAGS = ELLIPSIS | NORMALIZE_WHITESPACE


def _enter_scratch_folder(namespace: dict[str, Any]) -> None:
    namespace["_came_from"] = os.getcwd()
    # Named once and for all: what is removed in the end must not depend on where an example has gone meanwhile.
    namespace["_scratch_folder"] = tempfile.mkdtemp(prefix="compactlib-example-")
    os.chdir(namespace["_scratch_folder"])


def _leave_scratch_folder(namespace: dict[str, Any]) -> None:
    # Called twice when pytest stumbles over a failing example.
    scratch = namespace.pop("_scratch_folder", None)
    if scratch is not None:
        os.chdir(namespace["_came_from"])
        shutil.rmtree(scratch)


def _examples(parsers: Sequence[Parser], path: str, pattern: str, exclude: str | None = None) -> Sybil:
    return Sybil(parsers, path=path, pattern=pattern, exclude=exclude,
                 setup=_enter_scratch_folder, teardown=_leave_scratch_folder)


_MARKDOWN: Sequence[Parser] = [PythonCodeBlockParser(doctest_optionflags=_FLAGS), SkipParser()]

pytest_collect_file = SybilCollection([
    _examples([DocTestParser(_FLAGS)], "compactlib", "*.py"),
    _examples(_MARKDOWN, "docs", "*.md"),
    _examples(_MARKDOWN, ".", "README.md", exclude="*/README.md"),
]).pytest()


@pytest.hookimpl(tryfirst=True)  # before xdist's own, which reads the groups
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        path = item.path.relative_to(Path(__file__).parent)
        needs_spark = "spark" in str(path) or any(item.get_closest_marker(name) for name in ("spark", "cluster"))
        item.add_marker(pytest.mark.xdist_group("spark" if needs_spark else str(path)))
