# SPDX-License-Identifier: Apache-2.0
"""Runs the examples of docstrings, docs/, README.md and CONTRIBUTING.md as tests, each file in a scratch folder.

With `-n 2` two processes share the files among them.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import tempfile
from collections.abc import Generator, Sequence
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE
from pathlib import Path
from typing import Any

import pytest
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser
from sybil.parsers.rest import DocTestParser
from sybil.sybil import SybilCollection
from sybil.typing import Parser
from xdist.scheduler import LoadScopeScheduling

_FLAGS = ELLIPSIS | NORMALIZE_WHITESPACE


def _enter_scratch_folder(namespace: dict[str, Any]) -> None:
    namespace["_came_from"] = os.getcwd()
    # Named once and for all: what is removed in the end must not depend on where an example has gone meanwhile.
    namespace["_scratch_folder"] = tempfile.mkdtemp(prefix="compactlib-example-")
    os.chdir(namespace["_scratch_folder"])
    # What an example makes by `tempfile` goes with it.
    tempfile.tempdir = namespace["_scratch_folder"]


def _leave_scratch_folder(namespace: dict[str, Any]) -> None:
    # Called twice when pytest stumbles over a failing example.
    scratch = namespace.pop("_scratch_folder", None)
    if scratch is not None:
        os.chdir(namespace["_came_from"])
        tempfile.tempdir = None
        shutil.rmtree(scratch)


def _examples(parsers: Sequence[Parser], path: str, pattern: str, exclude: str | None = None) -> Sybil:
    return Sybil(parsers, path=path, pattern=pattern, exclude=exclude,
                 setup=_enter_scratch_folder, teardown=_leave_scratch_folder)


_MARKDOWN: Sequence[Parser] = [PythonCodeBlockParser(doctest_optionflags=_FLAGS), SkipParser()]

_collect_examples = SybilCollection([
    _examples([DocTestParser(_FLAGS)], "compactlib", "*.py"),
    _examples(_MARKDOWN, "docs", "*.md"),
    _examples(_MARKDOWN, ".", "README.md", exclude="*/README.md"),
    _examples(_MARKDOWN, ".", "CONTRIBUTING.md"),
]).pytest()
# Its examples are one story on one session, so all of them need Spark.
_ON_SPARK = Path(__file__).with_name("docs") / "spark.md"
# Of two processes that compile the tests at once, the second begins at the end and meets the first in the middle.
_FROM_THE_END = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 2 == 1
_MARKED = re.compile(rb"^pytestmark = .*", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    # Files that a run leaves out whole import Spark and clients of servers, which takes time.
    left_out = re.findall(r"not (\w+)", config.option.markexpr)
    if not left_out or collection_path.suffix != ".py":
        return None
    marks = _MARKED.search(collection_path.read_bytes())
    return True if marks and any(f"mark.{name}".encode() in marks[0] for name in left_out) else None


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    # Few modules have examples; to look for them in the syntax trees of all takes seconds in each process.
    if file_path.suffix == ".py" and b">>>" not in file_path.read_bytes():
        return None
    found: pytest.Collector | None = _collect_examples(file_path, parent)
    return found


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    if isinstance(collector, pytest.Session):
        gc.disable()  # what is collected lives until the end: there is no garbage to find meanwhile
    report = yield
    if _FROM_THE_END and isinstance(collector, pytest.Session | pytest.Dir) and report.result:
        report.result.reverse()
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path == _ON_SPARK:
            item.add_marker("spark")
    if "PYTEST_XDIST_WORKER" in os.environ:  # the processes must agree on the order; pages come after the tests
        items.sort(key=lambda item: (item.path.suffix == ".md", item.nodeid.partition("::")[0]))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    # Ten thousand tests live until the end; the garbage collector neither visits them nor copies them in a fork.
    gc.collect()
    gc.freeze()
    # Tests make many short-lived objects: at Python's own threshold, the collector takes a twentieth of the time.
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


class _FilesTogether(LoadScopeScheduling):  # type: ignore[misc]
    """A file's tests in one process, because examples build on each other; all that need Spark in one, because a
    session takes long to start."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::")[0]
        return "spark" if "spark" in path else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _FilesTogether(config, log)
