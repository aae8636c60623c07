# SPDX-License-Identifier: Apache-2.0
"""A package is importable from its modules alone, and an import loads only the modules that it needs."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import compactlib

PACKAGES = [f"compactlib.{each.name}" for each in pkgutil.iter_modules(compactlib.__path__) if each.ispkg]
# A host that freezes or repackages the library has its modules, and no other file.
ONLY_MODULES = """
import importlib, os, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
import compactlib
for package in map(importlib.import_module, {packages}):
    names = [name for name in getattr(package, "__all__", ()) if hasattr(package, name)]
folder = os.path.dirname(compactlib.__file__)
print(*[name for name in opened if name.startswith(folder) and not name.endswith((".py", ".pyc"))])
"""
MODULES_OF = """
import sys
import {package}
print(*[name for name in sys.modules if name.split(".")[0] in ("compactlib", "attr", "attrs", "sortedcontainers")])
"""


def printed(script: str) -> list[str]:
    """The words that a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_names_of_every_package_load_from_modules_alone() -> None:
    assert printed(ONLY_MODULES.format(packages=PACKAGES)) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_import_of_a_package_loads_none_of_its_modules(package: str) -> None:
    # Loading the modules of a log takes 0.2 seconds; a package alone takes a few milliseconds.
    loaded = {name for name in printed(MODULES_OF.format(package=package)) if name != "compactlib._lazy"}
    assert loaded == {"compactlib", package}
