# SPDX-License-Identifier: Apache-2.0
"""Packages that load a name at its first use: a host loads only the modules that it uses."""

from __future__ import annotations

import importlib
from importlib.util import find_spec

import pytest
from pyspark import cloudpickle

from tests.project.test_import_cost import loaded_by


def test_an_absent_name_is_an_attribute_error() -> None:
    package = importlib.import_module("compactlib.raftlog")
    with pytest.raises(AttributeError, match=r"module 'compactlib\.raftlog' has no attribute 'SegmentLgo'"):
        package.SegmentLgo  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'SegmentLgo'"):
        exec("from compactlib.raftlog import SegmentLgo")


def test_a_package_travels_as_any_module() -> None:
    package = importlib.import_module("compactlib.raftlog")
    # A function that a notebook sends to Spark brings the packages along that it uses.
    assert cloudpickle.loads(cloudpickle.dumps(lambda package=package: package))() is package  # type: ignore[no-untyped-call]


def test_a_star_import_has_all_names() -> None:
    found: dict[str, object] = {}
    exec("from compactlib.kv import *", found)
    assert found.keys() - {"__builtins__"} == set(vars(importlib.import_module("compactlib.kv"))["__all__"])


UNUSED = {
    # A worker that rewrites a group knows nothing of the log, nor of how it is replicated.
    "from compactlib.raftlog.compaction.rewrite import CompactSegments":
        {"compactlib.raftlog.log.segment_log", "compactlib.raftlog.wal", "compactlib.raftlog.transfer",
         "compactlib.raftlog.snapshots", "compactlib.raftlog.policies"},
    "from compactlib.raftlog import SegmentLog": {"compactlib.raftlog.wal", "fractions"},
    "from compactlib.raftlog import RaftLogStore": {"compactlib.raftlog.transfer"},
    "from compactlib.kv import MemoryStore": {"sqlite3", "compactlib.kv.postgres",
                                              "compactlib.kv.dynamodb"},
    "from compactlib.blobstore import BlobStore": {"compactlib.manager", "compactlib.blobstore.reader"},
    "from compactlib.scheduler import Scheduler": {"compactlib.scheduler.worker", "compactlib.scheduler.http"},
    "from compactlib.staging import Repository": {"compactlib.staging.worker",
                                                  "compactlib.staging.sensor"},
    "from compactlib.catalog import CatalogService": {"compactlib.catalog.node", "asyncio"},
}
# A start of the console script costs what its command needs: a kind of store is imported when a path is of that kind.
START = {"compactlib.staging", "compactlib.catalog", "compactlib.scheduler", "compactlib.kv", "compactlib.raftlog.log",
         "compactlib.blobstore.store", "compactlib.demo", "compactlib.spark", "compactlib.executors"}
HEAVY = {"asyncio", "concurrent", "email", "html", "http", "importlib.metadata", "multiprocessing", "sqlite3", "ssl",
         "unittest", "xml"}
"""Modules of the standard library that take long, and that nobody needs who does not ask for what uses them."""


@pytest.mark.parametrize("statement", UNUSED)
def test_a_host_loads_only_the_modules_it_uses(statement: str) -> None:
    assert all(map(find_spec, UNUSED[statement]))
    assert not loaded_by(statement) & (UNUSED[statement] | HEAVY)


def test_the_console_script_starts_without_the_stores() -> None:
    assert not loaded_by("import compactlib.cli") & START
