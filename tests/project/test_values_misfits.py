# SPDX-License-Identifier: Apache-2.0
"""Values of the library that hosts make by hand: what is given to them of another type is `InvalidInput` at once."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import attrs
import pytest
from prometheus_client import CollectorRegistry

import compactlib
from compactlib.blobstore.compaction.plan.policy import SegmentView
from compactlib.blobstore.model.names import SegmentName
from compactlib.errors import CompactlibError, InvalidInput
from compactlib.executors import LocalExecutor, ProcessExecutor
from compactlib.hosting.raftlog_execute import TheseSegments
from compactlib.kv import DynamoStore, EtcdStore, MemoryStore
from compactlib.kv.store import KVLimits
from compactlib.raftlog import LogView, SegmentLimits
from compactlib.raftlog.snapshots.model import SnapshotManifest
from compactlib.runtime import PrometheusObserver, RecordingObserver
from compactlib.staging import ParquetFormat
from tests.harness.misfits import HOSTILE, ODD, STRANGE

LIMITS = dict.fromkeys(("max_partition_bytes", "max_key_bytes", "max_value_bytes", "max_transact"), 1)
MANIFEST = {**dict.fromkeys(("index", "term", "machine_version", "live_count", "live_bytes", "live_crc", "state_bytes",
                             "state_crc"), 1), "cluster": b""}
VIEW = {"segments": (), "snapshot_index": 5, "limits": SegmentLimits(), "folder": "", "damaged": ()}
SEGMENT = {"name": SegmentName(1, 0), "used_bytes": 9, "valid_bytes": 5, "last_modified": 1.0, "disk_bytes": 9}
NEEDED = {"name", "used_bytes", "valid_bytes"}
"""Fields without which there is no value, and which are not tried."""

FINE: dict[tuple[str, str], tuple[Any, ...]] = {
    ("SnapshotManifest", "cluster"): (b"bytes",), ("LogView", "folder"): ("text",),
    ("LogView", "snapshot_index"): (None, -7), ("SegmentView", "disk_bytes"): (None,),
    ("SegmentView", "last_modified"): (3.5, -7)}
"""What of the strange things is none there."""


@pytest.mark.parametrize(("make", "given"), [
    (KVLimits, LIMITS), (TheseSegments, {"numbers": (1, 2)}), (SnapshotManifest, MANIFEST), (LogView, VIEW),
    (SegmentView, SEGMENT)], ids=lambda each: getattr(each, "__name__", ""))
def test_a_field_of_another_type_is_refused(make: Callable[..., Any], given: dict[str, Any]) -> None:
    make(**given)
    for name in given.keys() - NEEDED:
        for strange in (*STRANGE, float("nan")):
            if strange in FINE.get((make.__name__, name), ()):
                make(**{**given, name: strange})
                continue
            with pytest.raises(InvalidInput):
                make(**{**given, name: strange})


TAKEN = frozenset({"BlobChoice.weighted_cost", "BlockEntry.appended_at", "BlockEntry.index", "BlockEntry.time",
                   "ListRequest.max_scanned", "SourceOptions.as_of", "SourceOptions.first", "SourceOptions.last",
                   "SourceOptions.partition_bytes", "TokenBucket.at", "TokenBucket.level"})
"""What the library fills in itself, or checks where it is used."""
GIVEN = {"int": 1, "float": 1.0, "str": "a"}


def numbers_of_values() -> Iterator[tuple[type, dict[str, Any], str]]:
    """Each field that is a number, of each value that checks its own fields and can be made of numbers and text."""
    for module in pkgutil.walk_packages(compactlib.__path__, "compactlib."):
        for name, made in vars(importlib.import_module(module.name)).items():
            if not (inspect.isclass(made) and made.__module__ == module.name and attrs.has(made)
                    and "__attrs_post_init__" in dir(made) and not name.startswith("_")
                    and not inspect.isabstract(made)):
                continue
            fields = [field for field in attrs.fields(made) if field.init]
            needed = [field for field in fields if field.default is attrs.NOTHING]
            if all(str(field.type) in GIVEN for field in needed):
                given = {str(field.alias): GIVEN[str(field.type)] for field in needed}
                yield from ((made, given, str(field.alias)) for field in fields
                            if "int" in str(field.type) or "float" in str(field.type))


def test_no_setting_that_is_a_number_is_taken_as_something_else_or_refused_without_a_name() -> None:
    wrong: list[str] = []
    tried = 0
    for made, given, name in numbers_of_values():
        for strange in ("x", [1], float("nan")):
            tried += 1
            try:
                made(**{**given, name: strange})
            except CompactlibError:
                continue
            except Exception as error:
                wrong.append(f"{made.__name__}({name}={strange!r}) raises {type(error).__name__}")
            else:
                if f"{made.__name__}.{name}" not in TAKEN:
                    wrong.append(f"{made.__name__}({name}={strange!r}) is taken")
    assert not wrong, "\n".join(wrong)
    assert tried > 600


def policies() -> list[type[Any]]:
    """Every policy of the library that has settings, each of which has a default."""
    return sorted({made for module in pkgutil.walk_packages(compactlib.__path__, "compactlib.")
                   for made in vars(importlib.import_module(module.name)).values()
                   if inspect.isclass(made) and attrs.has(made) and callable(getattr(made, "choose", None))
                   and made.__module__ == module.name and all(
                       field.default is not attrs.NOTHING for field in attrs.fields(made))}, key=attrgetter("__name__"))


def test_a_setting_of_a_policy_that_is_refused_is_an_error_of_the_library() -> None:
    wrong: list[str] = []
    found = policies()
    for made in found:
        for field in filter(attrgetter("init"), attrs.fields(made)):
            for strange in (*STRANGE, *ODD, *HOSTILE):
                try:
                    made(**{str(field.alias): strange})
                except InvalidInput:
                    continue
                except Exception as error:
                    wrong.append(f"{made.__name__}({field.alias}={strange!r}) raises {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)
    assert len(found) > 20


@pytest.mark.parametrize("make", [
    lambda strange: ProcessExecutor(strange), lambda strange: ProcessExecutor(1, max_attempts=strange),
    lambda strange: ProcessExecutor(1, grace_seconds=strange), lambda strange: LocalExecutor(strange),
    lambda strange: MemoryStore(page_size=strange), lambda strange: EtcdStore(page_size=strange),
    lambda strange: DynamoStore("table", page_size=strange), lambda strange: RecordingObserver(limit=strange),
    lambda strange: PrometheusObserver(CollectorRegistry(), max_series=strange),
    lambda strange: ParquetFormat(rows_per_group=strange)], ids=range(10))
def test_a_number_of_an_executor_a_store_an_observer_or_a_format_is_one(make: Callable[[Any], object]) -> None:
    for strange in (*(each for each in STRANGE if not isinstance(each, int | float)), "x", [1], float("nan"), -1):
        with pytest.raises(InvalidInput):
            make(strange)
