# SPDX-License-Identifier: Apache-2.0
"""Packages that load a public name from its module at its first use (PEP 562).

A process imports only the modules that it uses: a worker that runs one rewrite needs a third of its package's
modules, and the names of optional back-ends need packages that may not be installed. An `__init__.py` lists its names
twice: as imports that type checkers read, and as a mapping that `offer` reads at run time. A test compares them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping


def offer(package: str, names: Mapping[str, str]) -> None:
    """Give a package that is being imported its `__getattr__`, `__dir__` and `__all__`.

    Args:
        package: its `__name__`.
        names: the public names of each module, separated by spaces. No name is that of a submodule of the package:
            the import system binds those to the package.
    """
    namespace = vars(sys.modules[package])
    homes = {name: home for home, listed in names.items() for name in listed.split()}

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        value: object = getattr(importlib.import_module(homes[name]), name)
        namespace[name] = value  # The next access finds it without a call.
        return value

    def names_of_package() -> list[str]:
        return sorted({*namespace, *homes})

    namespace.update(__getattr__=load, __dir__=names_of_package, __all__=sorted(homes))
