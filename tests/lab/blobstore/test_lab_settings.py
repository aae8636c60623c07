# SPDX-License-Identifier: Apache-2.0
"""Every setting of a replay, and of the policies and placements that one takes: what it cannot be is refused."""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
from collections.abc import Iterator
from typing import Any, get_type_hints

import attrs
import pytest

from compactlib.blobstore.compaction.plan import policies
from compactlib.blobstore.model import placement as of_survivors
from compactlib.errors import InvalidInput
from compactlib.lab import BlobSettings, RaftLogSettings, SchedulerSettings, SensorSettings, Uniform
from compactlib.lab.blobstore import placement
from tests.harness.misfits import Strange

STRANGE: tuple[Any, ...] = (Strange(), "x", b"x", None, True, -7, 0.5, math.nan, math.inf, 10**400, [1])
REPLAYS = (BlobSettings, RaftLogSettings, SchedulerSettings, SensorSettings)
NEEDED: dict[type, dict[str, Any]] = {BlobSettings: {"capacity_bytes": 64_000, "segment_bytes": 1_000}}


def _kinds() -> Iterator[type]:
    """The classes that a user makes with settings, by the modules that they stand in."""
    modules = [of_survivors, *(
        importlib.import_module(each.name) for package in (policies, placement)
        for each in pkgutil.iter_modules(package.__path__, package.__name__ + "."))]
    for module in modules:
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if (kind.__module__ == module.__name__ and attrs.has(kind) and not kind.__name__.startswith("_")
                    and any(hasattr(kind, method) for method in ("choose", "placer", "place"))):
                yield kind


SETTINGS = {f"{kind.__name__}.{field.name}": (kind, field) for kind in (*_kinds(), *REPLAYS)
            for field in attrs.fields(kind) if field.init}


def _is_of(hint: Any, value: object) -> bool:
    """Whether a value could be what is annotated; a truth is no number."""
    if hint in (int, float, bool):
        if isinstance(value, bool) or hint is bool:
            return hint is bool and isinstance(value, bool)
        return isinstance(value, int) or (hint is float and isinstance(value, float))
    if isinstance(hint, type) and not getattr(hint, "_is_protocol", False):
        return isinstance(value, hint)
    parts = getattr(hint, "__args__", ())
    return any(part is type(value) or _is_of(part, value) for part in parts if isinstance(part, type))


def test_the_policies_and_placements_are_found() -> None:
    assert {"ByAge", "ByEnd", "ByLifetime", "DecliningCost", "FADaC", "Greedy"} <= {kind.__name__ for kind in _kinds()}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_that_cannot_be_is_named(setting: str) -> None:
    kind, field = SETTINGS[setting]
    hint = get_type_hints(kind)[field.name]
    for strange in STRANGE:
        if _is_of(hint, strange):
            try:
                made = kind(**{**NEEDED.get(kind, {}), field.name: strange})
            except InvalidInput as refused:
                assert field.name in str(refused)
            else:
                assert getattr(made, field.name) == strange
        else:
            with pytest.raises(InvalidInput, match=field.name):
                kind(**{**NEEDED.get(kind, {}), field.name: strange})


@pytest.mark.parametrize("given", [{"utilisation": "x"}, {"utilisation": 1e-320}, {"segments": "x"}, {"segments": 0},
                                   {"segments": 2.5}, {"segments": 10**400}, {"record_overhead_bytes": "x"},
                                   {"record_overhead_bytes": 10**400}, {"header_bytes": None}],
                         ids=lambda given: next(iter(given)))
def test_a_log_for_a_workload_names_what_cannot_be(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(given))):
        BlobSettings.for_workload(Uniform(keys=5, writes=5), **given)


def test_a_setting_that_is_not_there_is_named() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'beauty'"):
        BlobSettings.for_workload(Uniform(keys=5, writes=5), beauty=1)


@pytest.mark.parametrize("given", [{"bucket_seconds": 1e-4}, {"bucket_seconds": 1e306}, {"forecast_seconds": 1e306},
                                   {"deleted_retention_seconds": 1e306}], ids=str)
def test_times_that_no_record_can_hold_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(given))):
        BlobSettings.of_slots(8, 16, **{"forecast_seconds": 1.0, **given})


@pytest.mark.parametrize("classes", [None, "two", 0])
def test_a_placement_that_does_not_say_how_many_classes_it_has_is_named(classes: Any) -> None:
    class Half:
        def placer(self) -> object:
            raise AssertionError("not asked")

    given: Any = Half()
    if classes is not None:
        given.classes = classes
    with pytest.raises(InvalidInput, match="classes"):
        BlobSettings(capacity_bytes=64_000, segment_bytes=1_000, placement=given)
