# SPDX-License-Identifier: Apache-2.0
"""Packages that load their public names when they are asked for, so that a host pays for what it uses.

A worker process that runs one rewrite, or a host of a log in segments, needs a third of its package's modules; from
an archive, as on Spark, each of them is compiled anew in every process. The names of a package stand once, in the stub
`__init__.pyi` beside its `__init__.py`: type checkers read it, and so does `offer`.
"""

from __future__ import annotations

import importlib
import os
import sys
from itertools import pairwise
from types import ModuleType
from typing import Any

_HOMES = "_homes"


class LazyPackage(ModuleType):
    """A package that imports a submodule when one of its public names is asked for the first time."""

    def __getattr__(self, name: str) -> Any:
        home = vars(self)[_HOMES].get(name)
        if home is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self)
        value = getattr(importlib.import_module(home), name)
        vars(self)[name] = value
        return value

    def __setattr__(self, name: str, value: object) -> None:
        # The import system binds each submodule to its package: a public name that is spelled alike keeps its meaning.
        if not (isinstance(value, ModuleType) and name in vars(self)[_HOMES]):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        # As any module: by name. A function that a notebook sends to Spark brings the packages along that it uses.
        return importlib.import_module, (self.__name__,)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *vars(self)[_HOMES]} - {_HOMES})


def offer(package: str) -> None:
    """Make `package`, which is being imported, offer the names of its stub, and load each when it is asked for.

    The stub consists of lines `from module import name as name`; it is read through the package's loader, so that it
    may lie in an archive.

    Args:
        package: its `__name__`.
    """
    module = sys.modules[package]
    assert module.__spec__ is not None, "a package that is imported has a spec"
    loader: Any = module.__spec__.loader
    stub = loader.get_data(os.path.join(os.path.dirname(str(module.__file__)), "__init__.pyi")).decode()
    homes, home = dict[str, str](), ""
    for line in stub.splitlines():
        words = line.replace(",", " ").split()
        if words[:1] == ["from"]:
            home = words[1]
        homes.update((name, home) for before, name in pairwise(words) if before == "as")
    own = ["__version__"] if hasattr(module, "__version__") else []
    vars(module).update({_HOMES: homes, "__all__": [*sorted(homes), *own]})
    module.__class__ = LazyPackage
