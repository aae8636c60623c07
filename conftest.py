"""Runs the examples of docstrings, docs/ and README.md as tests, those of each file in a scratch folder of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE
from typing import Any

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser
from sybil.parsers.rest import DocTestParser
from sybil.sybil import SybilCollection
from sybil.typing import Parser

_FLAGS = ELLIPSIS | NORMALIZE_WHITESPACE


def _enter_scratch_folder(namespace: dict[str, Any]) -> None:
    namespace["_came_from"] = os.getcwd()
    os.chdir(tempfile.mkdtemp(prefix="compactlib-example-"))


def _leave_scratch_folder(namespace: dict[str, Any]) -> None:
    scratch = os.getcwd()
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
