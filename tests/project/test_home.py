# SPDX-License-Identifier: Apache-2.0
"""The pages at the root are right: links have targets, commands exist, and lists are complete."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]
_PAGES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
_HOSTED = sorted(path.relative_to(_ROOT).as_posix() for path in (_ROOT / ".github").rglob("*.yml"))


def _project() -> dict[str, Any]:
    return tomllib.loads((_ROOT / "pyproject.toml").read_text())


def _targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (_ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", _PAGES)
def test_a_link_leads_to_a_file(page: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (_ROOT / page).read_text()):
        assert (_ROOT / target).exists(), target


@pytest.mark.parametrize("page", [*_PAGES, *_HOSTED])
def test_a_command_of_make_exists(page: str) -> None:
    text = (_ROOT / page).read_text()
    named = re.findall(r"`make ([a-z]+)", text) + re.findall(r"^(?:\$|.*run:) make ([a-z]+)", text, re.MULTILINE)
    assert set(named) <= _targets()


def test_names_in_contributing_exist() -> None:
    page = (_ROOT / "CONTRIBUTING.md").read_text()
    for name in re.findall(r"`((?:compactlib|tests|docs|scripts)/[\w/.-]+)`", page):
        assert (_ROOT / name).exists(), name


def test_the_map_shows_every_room_in_the_order_of_imports() -> None:
    page = (_ROOT / "CONTRIBUTING.md").read_text()
    rows = [re.findall(r"`compactlib/(\w+)(?:\.py)?`", row)
            for row in re.findall(r"^\| (`compactlib.*?) \|", page, re.MULTILINE)]
    layers = _project()["tool"]["importlinter"]["contracts"][0]["layers"]
    depth = {name: number for number, layer in enumerate(layers) for name in re.findall(r"\w+", layer)
             if not name.startswith("_")}
    assert {name for row in rows for name in row} == set(depth)
    for above, below in pairwise(rows):
        assert max(depth[name] for name in above) <= min(depth[name] for name in below), (above, below)


def test_the_oldest_spark_and_arrow_tested_match_pyproject() -> None:
    tried = (_ROOT / ".github/workflows/change.yml").read_text()
    stated = [text for extra in ("spark", "staging") for text in _project()["project"]["optional-dependencies"][extra]]
    for package in ("pyspark", "pyarrow"):
        floors = {match[1] for text in stated if (match := re.match(rf"{package}>=([\d.]+)", text))}
        found = re.findall(rf"{package}==([\d.]+)", tried)
        assert len(floors) == len(found) == 1
        assert (found[0] + ".").startswith(floors.pop() + ".")


def test_every_python_is_tried_that_is_classified() -> None:
    matrix = re.findall(r"^ +python: \[(.*?)\]", (_ROOT / ".github/workflows/change.yml").read_text(), re.MULTILINE)
    tried = {"3.11", *re.findall(r"3\.\d+", matrix[0])}
    stated = [match[1] for text in _project()["project"]["classifiers"]
              if (match := re.search(r"Python :: (3\.\d+)$", text))]
    assert stated
    assert tried.issuperset(stated)
