# SPDX-License-Identifier: Apache-2.0
"""Packages that load their names when they are asked for: a host pays for what it uses."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import pkgutil
from pathlib import Path
from types import ModuleType

import pytest
from pyspark import cloudpickle

import compactlib
from compactlib._lazy import LazyPackage
from tests.project.test_import_cost import loaded_by


def lazy_packages() -> list[str]:
    top = Path(compactlib.__path__[0])
    names = [".".join(init.parent.relative_to(top.parent).parts) for init in sorted(top.rglob("__init__.py"))]
    return [name for name in names if isinstance(importlib.import_module(name), LazyPackage)]


@pytest.mark.parametrize("name", lazy_packages())
def test_each_name_is_that_of_its_module_whatever_was_imported_before(name: str) -> None:
    package = importlib.import_module(name)
    for each in pkgutil.iter_modules(package.__path__):
        # This binds the module to its package: a function of the same name must not be hidden by it.
        importlib.import_module(f"{name}.{each.name}")
    for public, home in vars(package)["_homes"].items():
        value = getattr(package, public)
        assert value is getattr(importlib.import_module(home, name), public)
        assert not isinstance(value, ModuleType)
        assert public in dir(package)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    package = importlib.import_module("compactlib.raftlog")
    with pytest.raises(AttributeError, match=r"module 'compactlib\.raftlog' has no attribute 'SegmentLgo'"):
        package.SegmentLgo  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'SegmentLgo'"):
        exec("from compactlib.raftlog import SegmentLgo")
    assert "_homes" not in dir(package)


def test_a_package_travels_as_any_module() -> None:
    for name in lazy_packages():
        package = importlib.import_module(name)
        assert pickle.loads(pickle.dumps(package)) is package
        assert cloudpickle.loads(cloudpickle.dumps(lambda package=package: package))() is package  # type: ignore[no-untyped-call]


def test_all_names_come_with_a_star() -> None:
    found: dict[str, object] = {}
    exec("from compactlib.kv import *", found)
    assert found.keys() - {"__builtins__"} == set(vars(importlib.import_module("compactlib.kv"))["__all__"])


def test_importing_a_package_loads_nothing_of_it() -> None:
    for name in ("raftlog", "scheduler", "staging", "catalog", "blobstore", "kv", "objects"):
        ours = {each for each in loaded_by(f"import compactlib.{name}") if each.startswith("compactlib")}
        assert ours == {"compactlib", "compactlib._lazy", f"compactlib.{name}"}


UNUSED = {
    # A worker that rewrites a group knows nothing of the log, nor of how it is replicated.
    "from compactlib.raftlog.compaction.rewrite import CompactSegments":
        {"compactlib.raftlog.log.segment_log", "compactlib.raftlog.wal", "compactlib.raftlog.replication",
         "compactlib.raftlog.snapshots", "compactlib.raftlog.compaction.plan.policies"},
    "from compactlib.raftlog import SegmentLog": {"compactlib.raftlog.wal", "compactlib.raftlog.memtable.table",
                                                  "fractions"},
    "from compactlib.raftlog import RaftLogStore": {"compactlib.raftlog.replication"},
    "from compactlib.kv import MemoryStore": {"sqlite3", "compactlib.kv.stores.postgres",
                                              "compactlib.kv.stores.dynamodb.store"},
    "from compactlib.blobstore import BlobStore": {"compactlib.runtime.services.manager",
                                                   "compactlib.blobstore.compaction.plan.policies"},
    "from compactlib.scheduler import SchedulerService": {"compactlib.scheduler.workers.worker", "compactlib.kv.store"},
    "from compactlib.staging import Repository": {"compactlib.staging.repository.worker",
                                                  "compactlib.staging.compaction.sense"},
    "from compactlib.catalog import CatalogService": {"compactlib.catalog.transport.node_service", "ssl"},
}
# A start of the console script costs what its command needs: a kind of store is imported when a path is of that kind.
START = {"compactlib.staging", "compactlib.catalog", "compactlib.scheduler", "compactlib.kv", "compactlib.raftlog.log",
         "compactlib.blobstore.store", "compactlib.app.demo", "compactlib.spark", "compactlib.executors"}
HEAVY = {"asyncio", "concurrent", "email", "html", "http", "importlib.metadata", "multiprocessing", "sqlite3", "ssl",
         "unittest", "xml"}
"""Modules of the standard library that take long, and that nobody needs who does not ask for what uses them."""


@pytest.mark.parametrize("statement", UNUSED)
def test_a_host_pays_for_what_it_uses(statement: str) -> None:
    loaded = loaded_by(statement)
    assert not loaded & (UNUSED[statement] | HEAVY)


def test_the_console_script_starts_without_the_stores() -> None:
    assert not loaded_by("import compactlib.app.cli") & START
