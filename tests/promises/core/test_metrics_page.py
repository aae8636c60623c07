# SPDX-License-Identifier: Apache-2.0
"""`docs/metrics.md` lists every name that the code emits, with kind and labels, and nothing else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import attrs
import prometheus_client
import pytest

from compactlib.observer import PrometheusObserver
from tests.harness.recording import RecordingObserver
from tests.promises.core.ordinary_work import ordinary_work

_ROOT = Path(__file__).parents[3]
_NOT_TOLD_TO_HOSTS = "testing"
_PACKAGES = "blobstore|catalog|command_log|kv|objects|raftlog|scheduler|spark|staging|store"

@attrs.frozen
class Row:
    kind: str
    unit: str
    labels: tuple[str, ...]

_A_FAILURE = ("work", "lane", "error", "message", "failures", "retry_in_seconds")

def listed() -> dict[str, Row]:
    """The rows of the tables of counters, measurements, events and progress, and the levels of all stores."""
    page = (_ROOT / "docs" / "metrics.md").read_text()
    found: list[tuple[str, Row]] = []
    for kind, heads, lines in re.findall(
            r"^\| (counter|measurement|event|progress) \|(.*)\|\n\|[-|]+\|\n((?:\|.*\|\n)+)", page, re.MULTILINE):
        columns = [head.strip() for head in heads.split("|")]
        for line in lines.splitlines():
            name, *cells = (cell.strip() for cell in line.strip("| ").split("|"))
            row: dict[str, str] = dict(zip(columns, cells, strict=True))
            told = row.get("labels", row.get("fields", ""))
            labels = _A_FAILURE if told == "a failure" else tuple(re.findall(r"`(\w+)`", told))
            found.append((name.strip("`"), Row(kind, row.get("unit", ""), labels)))
    assert len(dict(found)) == len(found), "a name is listed twice"
    series = re.findall(r"^\| `(store_\w+)` \|", page, re.MULTILINE)
    return {name: Row("event", "", ("kind", "store", "value")) for name in series} | dict(found)

def _text(node: ast.expr) -> str | None:
    """A literal text, with `*` where something is put in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)
    return None

@pytest.fixture(scope="module")
def nodes() -> list[ast.AST]:
    """Calls, tuples and assignments of the library: where names stand."""
    return [node for node in _all_nodes() if isinstance(node, ast.Call | ast.Tuple | ast.Assign)]

def _all_nodes() -> Iterator[ast.AST]:
    for path in (_ROOT / "compactlib").rglob("*.py"):
        if _NOT_TOLD_TO_HOSTS not in path.parts:
            yield from ast.walk(ast.parse(path.read_text()))

@pytest.fixture(scope="module")
def texts(nodes: list[ast.AST]) -> set[str]:
    """What may be a name: first arguments of calls and those called `event`, first items of tuples, constants."""
    found = set()
    for node in nodes:
        places = ([*node.args, *(given.value for given in node.keywords if given.arg in ("event", "recovered"))]
                  if isinstance(node, ast.Call) else node.elts if isinstance(node, ast.Tuple)
                  else [node.value] if isinstance(node, ast.Assign) else [])
        found |= {text for place in places if (text := _text(place)) is not None}
    return found

@pytest.fixture(scope="module")
def in_the_code(texts: set[str]) -> set[str]:
    """Names that occur whole in the code."""
    return {text for text in texts if re.fullmatch(rf"({_PACKAGES})[_.][a-z_.]+", text)}

def test_every_event_name_in_the_code_is_on_the_page(in_the_code: set[str]) -> None:
    assert in_the_code - listed().keys() == set()
    assert len(in_the_code) > 50

def test_the_page_names_nothing_that_the_code_does_not() -> None:
    """Either as a whole, or as a pattern of parts: `staging_ranges_*`."""
    texts = {text for node in _all_nodes() if isinstance(node, ast.Constant | ast.JoinedStr)
             and (text := _text(node)) is not None and re.fullmatch(r"[a-z_*]+", text) and re.search(r"[a-z]{4}", text)}
    forms = [re.compile(text.replace("*", "[a-z_]+")) for text in texts]
    assert [name for name, row in listed().items()
            if row.kind != "progress" and not any(form.fullmatch(name) for form in forms)] == []

def test_progress_in_the_code_is_on_the_page_with_its_unit(nodes: list[ast.AST]) -> None:
    """Units of literal calls, and the names of those works that are literal."""
    rows = {name: row for name, row in listed().items() if row.kind == "progress"}
    told: set[tuple[str | None, str]] = set()
    for node in nodes:
        given = {each.arg: each.value for each in node.keywords} if isinstance(node, ast.Call) else {}
        if {"work", "unit"} <= given.keys() and (unit := _text(given["unit"])) is not None:
            told.add((_text(given["work"]), unit))
    assert {unit for _, unit in told} == {row.unit for row in rows.values()}
    assert {(work, unit) for work, unit in told if work is not None} <= {(name, row.unit) for name, row in rows.items()}

def test_names_are_spelled_alike() -> None:
    for name, row in listed().items():
        if row.kind != "progress":
            assert re.fullmatch(r"[a-z]+(_[a-z]+)+", name), name
            assert not name.endswith("_total"), "Prometheus adds it"
        if row.kind in ("counter", "measurement"):
            assert (row.kind == "measurement") == name.endswith("_seconds"), "a counter counts whole numbers"
            assert name.endswith("_bytes") or "bytes" not in name, name

@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> RecordingObserver:
    observer = RecordingObserver()
    ordinary_work(tmp_path_factory.mktemp("work"), observer)
    return observer

def test_events_of_ordinary_work_are_on_the_page_with_labels(told: RecordingObserver) -> None:
    rows = listed()
    for kind, counted in (("counter", told.counters.keys()), ("measurement", told.measured.keys())):
        for name, labels in counted:
            assert rows[name].kind == kind
            assert {label for label, _ in labels} == set(rows[name].labels), name
    for name, fields in told.events:
        assert rows[name].kind == "event"
        assert set(rows[name].labels) <= set(fields), name
    forms = {re.compile(re.escape(name).replace(r"\*", ".+")): row.unit for name, row in rows.items()
             if row.kind == "progress"}
    for progress in told.progresses:
        assert any(form.fullmatch(progress.work) and unit == progress.unit for form, unit in forms.items()), progress

def test_ordinary_work_touches_every_package(told: RecordingObserver) -> None:
    names = {name for name, _ in [*told.counters, *told.measured, *told.events]}
    kinds = {dict(labels)["kind"] for name, labels in told.counters if name == "store_compactions"}
    assert kinds | {name.split("_")[0] for name in names} == {"blobstore", "catalog", "raftlog", "scheduler",
                                                             "staging", "store"}
    assert {"compact", "experiments"} <= {each.work for each in told.progresses}

def test_prometheus_exports_all_events_under_the_same_names(told: RecordingObserver) -> None:
    registry = prometheus_client.CollectorRegistry()
    exported = PrometheusObserver(registry)
    for event, fields in told.raw:
        exported.event(event, **fields)
    families = {family.name: family.type for family in registry.collect()}
    assert families.pop("compactlib_events") == "counter"
    expected = {f"compactlib_{name}": "counter" for name, _ in told.counters}
    levels = {f"compactlib_{name}": "gauge" for name, fields in told.events if fields.get("value") is not None}
    assert "compactlib_staging_sealed_tokens" in levels
    assert families == expected | levels | {f"compactlib_{name}": "histogram" for name, _ in told.measured}
