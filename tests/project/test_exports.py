# SPDX-License-Identifier: Apache-2.0
"""The public surface: every name of a face exists and has a docstring."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import compactlib
from tests.project.test_faces import imports_of


def packages() -> list[str]:
    top = Path(compactlib.__path__[0])
    return sorted(".".join(init.parent.relative_to(top.parent).parts) for init in top.rglob("__init__.py"))


def shared_modules() -> list[str]:
    return [f"compactlib.{module.name}" for module in pkgutil.iter_modules(compactlib.__path__)
            if not module.ispkg and not module.name.startswith("_")]


def documented_where_it_is_assigned(module: ModuleType, name: str) -> bool:
    """Whether `name = ...` is followed by a string."""
    body = ast.parse(inspect.getsource(module)).body
    for statement, after in zip(body, [*body[1:], None], strict=True):
        targets = (statement.targets if isinstance(statement, ast.Assign)
                   else [statement.target] if isinstance(statement, ast.AnnAssign) else [])
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                    and isinstance(after.value.value, str))
    return False


def has_own_docstring(value: Any) -> bool:
    return bool((value.__doc__ or "").strip())


def is_documented(module: ModuleType, name: str) -> bool:
    value = getattr(module, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        return has_own_docstring(value)
    homes = dict(imports_of(Path(str(module.__file__))))
    home = homes.get(name, module.__name__)
    return documented_where_it_is_assigned(importlib.import_module(home), name)


@pytest.mark.parametrize("package", packages())
def test_each_package_and_each_name_that_it_offers_is_documented(package: str) -> None:
    module = importlib.import_module(package)
    assert has_own_docstring(module)
    names = vars(module).get("__all__", [])
    assert not [name for name in names if not hasattr(module, name)]
    assert not [name for name in names if not is_documented(module, name)]


@pytest.mark.parametrize("name", shared_modules())
def test_each_shared_module_documents_its_names(name: str) -> None:
    module = importlib.import_module(name)
    assert has_own_docstring(module)
    own = {public: value for public, value in vars(module).items()
           if not public.startswith("_") and getattr(value, "__module__", None) == name
           and (inspect.isclass(value) or inspect.isfunction(value))}
    assert not [public for public, value in own.items() if not has_own_docstring(value)]


def test_the_version_is_one_that_installers_understand() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", compactlib.__version__)
