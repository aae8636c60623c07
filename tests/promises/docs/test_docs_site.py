# SPDX-License-Identifier: Apache-2.0
"""The documentation site (`make site`) has every page and notebook in its menu, and an API page for every package; what
its pages of internals name is there; examples fit a terminal."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.site_pages import main as make_pages

_ROOT = Path(__file__).parents[3]
_DOCS = _ROOT / "docs"


def _pages_of(menu: Any) -> Iterator[str]:
    if isinstance(menu, str):
        yield menu
    elif isinstance(menu, dict):
        for below in menu.values():
            yield from _pages_of(below)
    else:
        for below in menu:
            yield from _pages_of(below)


def _menu() -> list[str]:
    return list(_pages_of(tomllib.loads((_ROOT / "zensical.toml").read_text())["project"]["nav"]))


def test_every_page_is_in_the_menu_once() -> None:
    pages = [*_DOCS.rglob("*.md"), *_DOCS.rglob("*.ipynb")]
    written = {str(page.relative_to(_DOCS).with_suffix(".md")) for page in pages}
    assert sorted(_menu()) == sorted(written)


@pytest.mark.parametrize("package", sorted(
    path.parent.name for path in (_ROOT / "compactlib").glob("*/__init__.py") if path.parent.name != "app"))
def test_every_package_has_an_api_page(package: str) -> None:
    page = (_DOCS / "api" / f"{package}.md").read_text()
    assert f"::: compactlib.{package}\n" in page


def test_the_index_of_formats_names_every_page() -> None:
    index = (_DOCS / "formats" / "index.md").read_text()
    named = set(re.findall(r"\(([a-z-]+\.md)\)", index))
    assert named == {page.name for page in (_DOCS / "formats").glob("*.md")} - {"index.md"}


@pytest.mark.parametrize("page", ["differences.md", "checks.md"])
def test_every_path_in_a_page_of_internals_exists(page: str) -> None:
    text = (_DOCS / "internals" / page).read_text()
    named = set(re.findall(r"`((?:benchmarks|compactlib|examples|tests)/[^`]+)`", text))
    assert named
    assert [path for path in sorted(named) if not (_ROOT / path).exists()] == []


@pytest.mark.parametrize("page", [_ROOT / "README.md", *sorted(_DOCS.glob("*.md"))], ids=lambda page: page.stem)
def test_examples_fit_80_columns(page: Path) -> None:
    blocks = re.findall(r"^```(?:python|console)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert [line for block in blocks for line in block.splitlines() if len(line) > 80] == []


def test_a_notebook_becomes_a_page_with_its_pictures_and_tables(tmp_path: Path) -> None:
    make_pages(tmp_path / "docs")
    for notebook in (_DOCS / "notebooks").glob("*.ipynb"):
        page = tmp_path / "docs" / "notebooks" / f"{notebook.stem}.md"
        drawn = re.findall(r"^!\[[^]]+\]\(([a-z0-9-]+\.png)\)$", page.read_text(), re.MULTILINE)
        assert len(drawn) == notebook.read_text().count('"image/png":') > 0
        assert all((page.parent / name).read_bytes().startswith(b"\x89PNG") for name in drawn)
        assert re.search(r"^<div[^>]*>.*<table", page.read_text(), re.MULTILINE)
    assert "(notebooks/raftlog-sql.md)" in (tmp_path / "docs" / "index.md").read_text()
