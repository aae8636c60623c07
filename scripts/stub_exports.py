# SPDX-License-Identifier: Apache-2.0
"""A griffe extension for `make site`: a package's page shows what its stub `__init__.pyi` names."""

from itertools import pairwise
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
            pkg.exports = [name for before, name in pairwise(words) if before == "as"]
