# SPDX-License-Identifier: Apache-2.0
"""List imports of internals of the library, or rewrite them to its faces: `python scripts/faces.py [PATH ...]`.

Each file that imports internals of another package is listed with them, and then the internal modules that most files
import. With `--rewrite`, such imports are rewritten where a face has the very same object under the same name; `ruff`
sorts them afterwards.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import subprocess
import symtable
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TOP = ROOT / "compactlib"
PACKAGES = tuple(f"compactlib.{init.parent.name}" for init in sorted(TOP.glob("*/__init__.py")))
MODULES = tuple(f"compactlib.{path.stem}" for path in sorted(TOP.glob("[!_]*.py")))
FACES = ("compactlib", *PACKAGES, *MODULES, "compactlib.testing.views",
         *(f"{package}.{part}" for package in PACKAGES for part in ("errors", "policy", "policies")))
"""Where tests, examples and hosts may import from, whether it is there yet or not."""
OUTSIDE = ("compactlib/cli.py", "compactlib/demo.py", "compactlib/lab", "compactlib/spark", "compactlib/testing",
           "benchmarks", "examples", "scripts")
"""What speaks to the engines through their faces alone."""
MOST_IMPORTED = 40


@cache
def offered(face: str) -> dict[str, Any]:
    """Return the public names of a face with their objects; a module's own names are its definitions."""
    try:
        module = importlib.import_module(face)
    except ModuleNotFoundError:
        return {}
    named: list[str] | None = vars(module).get("__all__")
    if named is None:
        # An assignment's targets, a class and a function; an imported name is another module's.
        stored = symtable.symtable(inspect.getsource(module), face, "exec").get_symbols()
        named = [each.get_name() for each in stored if each.is_assigned() and not each.is_imported()]
    return {name: getattr(module, name) for name in named if not name.startswith("_") and hasattr(module, name)}


def internals(tree: ast.AST, file: str = "") -> Iterator[tuple[str, str]]:
    """Each internal module that is imported, and the name that is imported from it; `""`: the module itself.

    A file's imports from its own package, or from a root module, are no internals of another package.

    Args:
        tree: of the file.
        file: its path below the root.
    """
    own = is_own(file)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names
                        if alias.name.split(".")[0] == "compactlib" and alias.name not in FACES and not own(alias.name))
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "compactlib":
            known = offered(node.module) if node.module in FACES else {}
            yield from ((node.module, alias.name) for alias in node.names if not own(node.module)
                        and alias.name not in known and f"{node.module}.{alias.name}" not in FACES)


def is_own(file: str) -> Callable[[str], bool]:
    """Whether a module belongs to the package of the library that a file is in, or is one of the root's."""
    place = Path(file).parts
    roots = {f"compactlib.{path.stem}" for path in TOP.glob("*.py")} if place[:1] == ("compactlib",) else set()
    return lambda module: module in roots or (bool(roots) and module.split(".")[1:2] == [*place[1:2]])


def home(module: str, name: str) -> str:
    """Return the face of the package that has an internal module's name; the module itself if no face has it."""
    package = ".".join(module.split(".")[:2])
    # A submodule that nobody has imported is no attribute yet.
    value = getattr(importlib.import_module(module), name, None)
    return next((face for face in FACES if f"{face}.".startswith(f"{package}.")
                 if value is not None and offered(face).get(name) is value), module)


def rewritten(source: str, file: str = "") -> str:
    """The source with each import of internals split among the faces that have its names, in its place."""
    own = is_own(file)
    lines = source.splitlines(keepends=True)
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    for node in sorted(found, key=lambda node: node.lineno, reverse=True):
        if node.module is None or not node.module.startswith("compactlib.") or node.module in FACES or own(
                node.module):
            continue
        told = "".join(lines[node.lineno - 1:node.end_lineno])
        indent = " " * node.col_offset
        parts = defaultdict[str, list[str]](list)
        for alias in node.names:
            parts[home(node.module, alias.name)].append(ast.unparse(alias))
        # An import with a comment or on a shared line is changed by hand.
        if list(parts) != [node.module] and "#" not in told and ";" not in told and told.startswith(f"{indent}from "):
            lines[node.lineno - 1:node.end_lineno] = [f"{indent}from {face} import {', '.join(names)}\n"
                                                      for face, names in parts.items()]
    return "".join(lines)


def files(paths: Sequence[str]) -> list[Path]:
    """The Python files in these files and folders."""
    return sorted(file for path in paths for file in ((ROOT / path).rglob("*.py") if (ROOT / path).is_dir() else
                                                      [ROOT / path]))


def main() -> None:
    """List, or rewrite."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", default=("tests", *OUTSIDE), metavar="PATH", help="files and folders")
    parser.add_argument("--rewrite", action="store_true", help="rewrite imports")
    given = parser.parse_args()
    listed, importers = files(given.paths), defaultdict[str, dict[Path, None]](dict)
    if given.rewrite:
        for file in listed:
            file.write_text(rewritten(file.read_text(), str(file.relative_to(ROOT))))
        sort = [sys.executable, "-m", "ruff", "check", "--select", "I", "--fix", "-q"]
        subprocess.run([*sort, *given.paths], cwd=ROOT, check=True)
        return
    imported = {file: sorted(set(internals(ast.parse(file.read_text()), str(file.relative_to(ROOT)))))
                for file in listed}
    for file, found in imported.items():
        for module, name in found:
            importers[module][file] = None
            print(f"{file.relative_to(ROOT)}: {module}{name and ' import '}{name}")
    print(f"\n{sum(map(bool, imported.values()))} of {len(listed)} files import internals. The most imported:")
    for module, by in sorted(importers.items(), key=lambda item: (-len(item[1]), item[0]))[:MOST_IMPORTED]:
        names = {name for file in by for each, name in imported[file] if each == module}
        print(f"{len(by):4} {module}: {', '.join(sorted(names))}")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
