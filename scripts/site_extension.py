# SPDX-License-Identifier: Apache-2.0
"""A griffe extension for `make site`: which names a package's page shows, and doctests as fenced blocks.

A page shows what the package's `__init__.py` imports for type checkers, first the ten names of the table at the head of
`docs/api/<package>.md`. Markdown would take `>>>` for a quotation in a quotation, and the answers for plain text.
"""

import re
from pathlib import Path
from typing import Any

import griffe

# A doctest from its first prompt to the blank line that ends it, at any indentation.
_DOCTEST = re.compile(r"^(?P<indent> *)>>> .*(?:\n(?P=indent)(?=\S| ).*)*", re.MULTILINE)


class SiteExtension(griffe.Extension):
    """Chooses the exports of packages, and fences the doctests of every object that griffe collects."""

    def on_package(self, *, pkg: griffe.Module, **_kwargs: Any) -> None:
        """Called by griffe when a package was loaded as a whole."""
        for module in pkg.modules.values():
            if not module.is_alias:
                self.on_package(pkg=module)
        if pkg.is_init_module and isinstance(pkg.filepath, Path):
            named = re.findall(r"\b(\w+) as \1\b", pkg.filepath.read_text())
            page = Path("docs", "api", f"{pkg.name}.md")
            first = re.findall(r"^\| \[`(\w+)`\]", page.read_text(), re.MULTILINE) if page.exists() else []
            pkg.exports = [*first, *(name for name in named if name not in first)]

    def on_instance(self, *, obj: griffe.Object, **_kwargs: Any) -> None:
        """Called by griffe for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = _DOCTEST.sub(
                lambda found: f"{found['indent']}```pycon\n{found[0]}\n{found['indent']}```", obj.docstring.value)
