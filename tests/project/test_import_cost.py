# SPDX-License-Identifier: Apache-2.0
"""Light to import: the core loads nothing but the standard library, attrs and sortedcontainers."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys

import pytest

import compactlib

# Packages at the edge, which may load the libraries that they adapt.
EDGE = {"__main__", "cli", "demo", "lab", "spark", "testing"}
CORE_DEPENDENCIES = {"attr", "attrs", "sortedcontainers"}
# Used when installed, and cheap: CRC-32 and index sets in C. The last is loaded by a Cython module.
FAST = {"isal", "cython_runtime"}
# A second name for the main module, which `multiprocessing` of the standard library makes.
ALIASES = {"__mp_main__"}


def core() -> list[str]:
    return ["compactlib", *(f"compactlib.{module.name}" for module in pkgutil.iter_modules(compactlib.__path__)
                            if module.name not in EDGE)]


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter loads for a statement."""
    script = f"import json, sys; old = set(sys.modules); {statement}; print(json.dumps([*set(sys.modules) - old]))"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return set(json.loads(answer.stdout))


def foreign(modules: set[str]) -> set[str]:
    """Those of the modules that are neither ours nor allowed in the core."""
    tops = {name.partition(".")[0] for name in modules}
    tops = {top for top in tops if not top.startswith("_cython_")}
    return tops - sys.stdlib_module_names - CORE_DEPENDENCIES - FAST - ALIASES - {"compactlib"}


def test_the_top_of_the_library_loads_nothing_else() -> None:
    modules = loaded_by("import compactlib")
    assert {name for name in modules if name.startswith("compactlib")} == {"compactlib"}
    assert not {name.partition(".")[0] for name in modules} & (CORE_DEPENDENCIES | FAST)


@pytest.mark.parametrize("name", core())
def test_the_core_loads_nothing_foreign(name: str) -> None:
    modules = loaded_by(f"import {name}")
    assert name in modules
    assert not foreign(modules)


def test_the_core_as_a_whole_does_not_reach_the_packages_at_the_edge() -> None:
    modules = loaded_by("import " + ", ".join(core()))
    assert not {name for name in modules if name.startswith("compactlib.") and name.split(".")[1] in EDGE}


def test_a_foreign_module_would_be_noticed() -> None:
    assert foreign(loaded_by("import sortedcontainers, pytest")) >= {"pytest"}
