# SPDX-License-Identifier: Apache-2.0
"""A griffe extension for `make site`: a package's page shows what its stub `__init__.pyi` names.

They come in the order of use: first the ten names of the table at the head of `docs/api/<package>.md`, then the others.
"""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import griffe


class StubExports(griffe.Extension):  # type: ignore[misc]  # griffe lives in the site's own environment
    """Makes the names of a stub the exports of its package; nothing else says which are public."""

    def on_package(self, *, pkg: griffe.Module, **_kwargs: Any) -> None:
        """Called by griffe when a package was loaded as a whole."""
        for module in pkg.modules.values():
            if not module.is_alias:
                self.on_package(pkg=module)
        stub = pkg.filepath.with_suffix(".pyi") if pkg.is_init_module else None
        if stub is not None and stub.exists():
            words = stub.read_text().replace(",", " ").split()
            named = [name for before, name in pairwise(words) if before == "as"]
            page = Path("docs", "api", f"{pkg.name}.md")
            first = re.findall(r"^\| \[`(\w+)`\]", page.read_text(), re.MULTILINE) if page.exists() else []
            pkg.exports = [*first, *(name for name in named if name not in first)]
