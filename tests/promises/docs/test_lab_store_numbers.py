# SPDX-License-Identifier: Apache-2.0
"""Each of the five stores, run for real, emits the numbers of its page; the dashboard reads no others."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import prometheus_client
import pytest

from compactlib.observer import PrometheusObserver
from compactlib.raftlog import LogOptions, RaftLogStore, StoreOptions
from tests.harness.recording import RecordingObserver
from tests.promises.core.ordinary_work import STORES

DOCS = Path(__file__).parents[3] / "docs"


def promised() -> dict[str, set[str]]:
    """The series of each kind in the table of the page; a dash is no series."""
    page = (DOCS / "metrics.md").read_text()
    head, = re.findall(r"^\| series \|(.*)\|$", page, re.MULTILINE)
    kinds = [name.strip(" `") for name in head.split("|")]
    found: dict[str, set[str]] = defaultdict(set)
    for name, cells in re.findall(r"^\| `(store_\w+)` \|(.*)\|$", page, re.MULTILINE):
        if cells.count("|") == len(kinds) - 1:
            for kind, cell in zip(kinds, cells.split("|"), strict=True):
                if cell.strip() != "-":
                    found[kind].add(name)
    return found


@pytest.mark.parametrize("kind", STORES)
def test_a_running_store_emits_exactly_the_series_of_the_page(kind: str, tmp_path: Path) -> None:
    observer = RecordingObserver()
    STORES[kind](tmp_path / "store", observer)
    told = {name for name, labels in [*observer.counters, *observer.measured] if ("kind", kind) in labels}
    told |= {name for name, fields in observer.events if fields.get("kind") == kind and fields["value"] is not None}
    assert told == promised()[kind]
    names = {dict(labels)["store"] for name, labels in observer.counters if name == "store_compactions"}
    assert len(names) == 1
    outcomes = {(dict(labels)["outcome"], dict(labels)["reason"]) for name, labels in observer.counters
                if name == "store_compactions"}
    assert {"raftlog": {("skipped", "nothing"), ("failed", "BudgetSpent"), ("done", "seed")},
            "blobstore": {("skipped", "nothing"), ("done", "greedy")},
            "staging": {("skipped", "nothing"), ("done", "always")},
            "catalog": {("skipped", "nothing"), ("done", "cut_to_bound")},
            "scheduler": {("done", "job"), ("failed", "excluded")}}[kind] <= outcomes, outcomes


def test_logs_of_one_id_in_two_stores_have_separate_series(tmp_path: Path) -> None:
    observer = RecordingObserver()
    for name in ("first", "second"):
        with RaftLogStore(tmp_path / name, StoreOptions(log=LogOptions(observer=observer))) as store:
            store.log("7").compact()
    assert {dict(labels)["store"] for name, labels in observer.counters if name == "store_compactions"} == {
        "first/7", "second/7"}


def test_every_store_is_on_the_page() -> None:
    assert promised().keys() == STORES.keys()


# -- the dashboard


def queries(panel: dict[str, Any]) -> list[str]:
    return [target["expr"] for target in panel.get("targets", ())]


def test_the_dashboard_uses_existing_names_and_labels(tmp_path: Path) -> None:
    observer = RecordingObserver()
    for kind, work in STORES.items():
        work(tmp_path / kind, observer)
    registry = prometheus_client.CollectorRegistry()
    exported = PrometheusObserver(registry)
    for name, fields in observer.raw:
        exported.event(name, **fields)
    labels: dict[str, set[str]] = defaultdict(set)
    for family in registry.collect():
        for sample in family.samples:
            labels[sample.name] |= sample.labels.keys()
    dashboard = json.loads((DOCS / "grafana-dashboard.json").read_text())
    asked = [query for panel in dashboard["panels"] for query in queries(panel)]
    assert len(asked) >= 8
    for query in asked:
        names = re.findall(r"compactlib_\w+", query)
        assert names, query
        for name in names:
            assert name in labels, query
        used = set(re.findall(r"(\w+)=~?\"", query)) | {
            label.strip() for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(",")}
        assert used <= set.union(*(labels[name] for name in names)), query
    shown = {name for query in asked for name in re.findall(r"compactlib_(store_\w+?)(?:_total|_bucket)?\b", query)}
    assert shown == set.union(*promised().values()), "every series has its panel"
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
