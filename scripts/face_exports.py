# SPDX-License-Identifier: Apache-2.0
"""A griffe extension for `make site`: a package's page shows what its `__init__.py` imports for type checkers.

They come in the order of use: first the ten names of the table at the head of `docs/api/<package>.md`, then the others.
"""

import re
from pathlib import Path
from typing import Any

import griffe


class FaceExports(griffe.Extension):  # type: ignore[misc]  # griffe lives in the site's own environment
    """Makes the names that a package imports under their own names (`from m import x as x`) its exports."""

    def on_package(self, *, pkg: griffe.Module, **_kwargs: Any) -> None:
        """Called by griffe when a package was loaded as a whole."""
        for module in pkg.modules.values():
            if not module.is_alias:
                self.on_package(pkg=module)
        if pkg.is_init_module:
            named = re.findall(r"\b(\w+) as \1\b", pkg.filepath.read_text())
            page = Path("docs", "api", f"{pkg.name}.md")
            first = re.findall(r"^\| \[`(\w+)`\]", page.read_text(), re.MULTILINE) if page.exists() else []
            pkg.exports = [*first, *(name for name in named if name not in first)]
