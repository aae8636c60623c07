# SPDX-License-Identifier: Apache-2.0
"""Whatever is given for whichever argument of whatever a host can make or ask: what cannot be is named."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

import pytest

from compactlib.catalog import ActiveTransactions, LocalNeeds, LogFollower, LowWatermark, NodeId, PublishedTimes
from compactlib.catalog.model.partitions import HostedPartitions
from compactlib.catalog.sense.index_builds import IndexBuilds
from compactlib.catalog.sense.rebalance import PlacementTracker
from compactlib.errors import CompactlibError
from tests.catalog.cases import given, history
from tests.catalog.services import grown, service_in
from tests.harness.misfits import HOSTILE

STRANGE: Sequence[Any] = (42, -1, "text", 2.5, None, b"bytes", object(), [object()], {"a": 1}, lambda: None)
WAITS = {"start", "stop", "wait_ready", "wait_until"}
"""Methods that return when something has happened."""


def objects() -> Mapping[str, Any]:
    service = grown(service_in(delay_seconds=0), 3)
    store = service.log.store
    transactions = ActiveTransactions(lambda: service.history, service.clock)
    return {
        "service": service, "log": service.log, "clock": service.clock, "pins": service.pins,
        "history": service.history, "catalog": service.catalog(2), "transactions": transactions,
        "watermark": LowWatermark(store, "A", service.clock), "published": PublishedTimes(store, "A"),
        "builds": IndexBuilds(lambda: service.history, LowWatermark(store, "B", service.clock)),
        "needs": LocalNeeds(NodeId("A"), lambda: service.history, transactions=transactions),
        "follower": LogFollower(service), "hosted": HostedPartitions.of({1: [2]}), "view": given(history()),
        "tracker": PlacementTracker(lambda: 1), "plan": service.plan(), "status": service.status(),
    }


MODULES = (
    "log.log_model", "log.reclaim", "log.records", "log.recover", "log.update_log", "model.partitions",
    "model.timestamp", "model.values", "plan.decision", "plan.plan", "plan.policy", "plan.safety", "plan.verdict",
    "schema.catalog", "schema.commands", "schema.descriptors", "schema.table_commands", "schema.versions",
    "sense.index_builds", "sense.needs", "sense.pins", "sense.published", "sense.rebalance",
    "sense.transactions", "sense.watermark", "service.follower", "service.service", "transport.local_host")
FUNCTIONS = {"check_target", "decide", "plan_update", "rebalance_minimum", "recover_history"}
"""Those that hosts call; the rest of these modules' functions are called with what was checked before."""


def made_here() -> Mapping[str, Any]:
    """What the modules that a host may use define, by name."""
    modules = [importlib.import_module(f"compactlib.catalog.{name}") for name in MODULES]
    return {name: value for module in modules for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
            and (inspect.isclass(value) or name in FUNCTIONS)}


def arguments_of(call: Callable[..., Any]) -> Sequence[str]:
    """The names of the arguments of which a call has some of a fixed number."""
    return [each.name for each in inspect.signature(call).parameters.values()
            if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]


def calls() -> Iterator[str]:
    for name, value in objects().items():
        for method in dir(value):
            call = getattr(value, method, None)
            if not method.startswith("_") and method not in WAITS and inspect.isroutine(call) and arguments_of(call):
                yield f"{name}.{method}"
    for name, made in made_here().items():
        if inspect.isfunction(made) or (inspect.isclass(made) and not issubclass(made, Enum | int)
                                        and not getattr(made, "_is_protocol", False)):
            yield name


@pytest.mark.parametrize("name", sorted(calls()))
def test_what_cannot_be_is_named(name: str) -> None:
    owner, _, method = name.partition(".")
    call = getattr(objects()[owner], method) if method else made_here()[name]
    for strange in (*STRANGE, *HOSTILE):
        try:
            call(**dict.fromkeys(arguments_of(call), strange))
        except CompactlibError as error:
            assert str(error), f"{name}({strange!r})"
        except Exception as error:
            raise AssertionError(f"{name}({strange!r}) raised {error!r}; it has to be a CompactlibError") from error
