"""Packages whose public names are loaded when they are asked for, so that a host pays for what it uses.

A worker process that runs one rewrite, or a host of a log in segments, needs a third of its package's modules; from
an archive, as on Spark, each of them is compiled anew in every process. Type checkers read the imports below
`if TYPE_CHECKING:`; a test holds that they, `__all__` and what is given here name the same.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

_HOMES = "_homes"


class LazyPackage(ModuleType):
    """A package that imports a submodule when one of its public names is asked for the first time."""

    def __getattr__(self, name: str) -> Any:
        home = vars(self)[_HOMES].get(name)
        if home is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self)
        value = getattr(importlib.import_module(home, self.__name__), name)
        vars(self)[name] = value
        return value

    def __setattr__(self, name: str, value: object) -> None:
        # The import system binds each submodule to its package: a public name that is spelled alike keeps its meaning.
        if not (isinstance(value, ModuleType) and name in vars(self)[_HOMES]):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *vars(self)[_HOMES]} - {_HOMES})


def load_lazily(package: str, names: Mapping[str, tuple[str, ...]]) -> None:
    """Make `package`, which is being imported, load `names` when they are asked for.

    Args:
        package: its `__name__`.
        names: the public names of each module; a module of the package itself begins with a dot.
    """
    module = sys.modules[package]
    vars(module)[_HOMES] = {name: home for home, listed in names.items() for name in listed}
    module.__class__ = LazyPackage
