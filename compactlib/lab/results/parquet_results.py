# SPDX-License-Identifier: Apache-2.0
"""Comparisons as Parquet files that any tool reads, with all that is needed to run them again. Needs `pyarrow`.

One row an experiment, with the columns of `Comparison.to_dicts`, and:

| column | what it is |
|---|---|
| `compactlib` | the version of the library that ran it |
| `experiment` | JSON: policy, workload, settings, seed, labels, by class and field; of a trace its files' SHA-256 |
| `report` | JSON: the report, or null |
| `failure` | JSON: class and message of the error, or null |

A column whose values are of several types, or whose numbers are too long, is text. The file's metadata say
`compactlib.results`, the format (1), and `skip`, see `Comparison`.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import importlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import attrs

import compactlib
from compactlib.errors import CompactlibError, CorruptData, InvalidInput, MissingDependency, TaskFailed, Unsupported
from compactlib.files.disk import LocalFiles, StrPath, write_durably
from compactlib.lab.results.experiments import Comparison, Experiment
from compactlib.lab.traces.parquet_trace import raise_damaged

try:
    import pyarrow
    import pyarrow.parquet as parquet
except ImportError:
    raise MissingDependency(package="pyarrow", extra="lab", purpose="results in Parquet") from None

_FORMAT = b"1"
_FORMAT_KEY, _SKIP_KEY = b"compactlib.results", b"skip"


def write(comparison: Comparison, path: StrPath) -> None:
    """Write a comparison; a file that is there is replaced.

    Raises:
        InvalidInput: a policy, workload or setting cannot be kept: it is neither a plain value nor an attrs class of a
            module.
    """
    sums: dict[str, str] = {}
    experiments = [json.dumps(_told(each, sums)) for each in comparison.experiments]
    rows = comparison.to_dicts()
    columns = {name: _column([row.get(name) for row in rows]) for name in dict.fromkeys(n for row in rows for n in row)}
    failed = [isinstance(each, CompactlibError) for each in comparison.outcomes]
    columns |= {
        "compactlib": [compactlib.__version__] * len(rows),
        "experiment": experiments,
        "report": pyarrow.array([None if isinstance(each, CompactlibError) else each.to_json()
                                 for each in comparison.outcomes], pyarrow.string()),
        "failure": pyarrow.array([json.dumps([type(each).__name__, str(each)]) if bad else None
                                  for each, bad in zip(comparison.outcomes, failed, strict=True)], pyarrow.string())}
    table = pyarrow.table(columns).replace_schema_metadata(
        {_FORMAT_KEY: _FORMAT, _SKIP_KEY: repr(comparison.skip).encode()})
    content = pyarrow.BufferOutputStream()
    parquet.write_table(table, content)
    write_durably(LocalFiles(), path, [content.getvalue().to_pybytes()])


def read(path: StrPath, classes: Iterable[type] = ()) -> Comparison:
    """The comparison that `write` wrote; `experiments[n].run()` gives the report `outcomes[n]` again.

    Args:
        path: of the file.
        classes: those of policies, workloads and setups that are not the library's. Others' modules are not imported.

    Raises:
        CorruptData: it is no file of results, or the file of a trace has other content than when it was replayed.
        InvalidInput: it names a class that is neither the library's nor given, or has other fields.
        Unsupported: it is of another format.
    """
    name = os.fspath(path)
    try:
        table = parquet.read_table(name)
    except (pyarrow.ArrowException, OSError) as error:
        raise_damaged(name, error)
    metadata = table.schema.metadata or {}
    if _FORMAT_KEY not in metadata:
        raise CorruptData(path=name, offset=0, expected="results of the lab", found="another Parquet file")
    if metadata[_FORMAT_KEY] != _FORMAT:
        raise Unsupported(f"{name} has results in format {metadata[_FORMAT_KEY].decode()}; this release reads "
                          f"{_FORMAT.decode()}")
    known = {_class_name(each): each for each in classes}
    sums: dict[str, str] = {}
    try:
        found = [_outcome_of(row, number, known, sums)
                 for number, row in enumerate(table.select(["experiment", "report", "failure"]).to_pylist())]
        skip = float(metadata[_SKIP_KEY])
    except CompactlibError:
        raise
    except (LookupError, TypeError, ValueError) as error:
        raise CorruptData(path=name, offset=0, expected="results of the lab", found=f"{type(error).__name__}: {error}",
                          ) from error
    return Comparison(tuple(experiment for experiment, _ in found), tuple(outcome for _, outcome in found), skip)


def _outcome_of(row: Mapping[str, Any], number: int, known: Mapping[str, type], sums: dict[str, str]
                ) -> tuple[Experiment, Any]:
    experiment = _restored(json.loads(row["experiment"]), known, sums)
    if not isinstance(experiment, Experiment):
        raise TypeError(f"{type(experiment).__name__} is no experiment")
    if row["failure"] is None:
        return experiment, experiment.settings.read_report(row["report"])
    kind, told = json.loads(row["failure"])
    return experiment, TaskFailed(told, task=f"experiment {number:05d}", kind=kind, detail="")


def _column(values: Sequence[Any]) -> Any:
    kinds = {type(value) for value in values if value is not None}
    are_short = all(abs(value) < 1 << 63 for value in values if type(value) is int)
    if kinds == {bool} or (kinds <= {int, float} and are_short):
        return pyarrow.array(values, pyarrow.float64() if float in kinds or not kinds else None)
    # What no text is, in the name of a file for one, is spelled out.
    return [None if value is None else str(value).encode(errors="backslashreplace").decode() for value in values]


def _class_name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _told(value: Any, sums: dict[str, str]) -> Any:
    """A value in the words of JSON; `sums` are the SHA-256 of traces by their paths, as far as they are known."""
    kind = type(value)
    match value:
        case enum.Enum() if "<" not in kind.__qualname__:
            return {"enum": _class_name(kind), "name": value.name}
        case None | bool() | int() | float() | str():
            return value
        case list():
            return [_told(each, sums) for each in value]
        case tuple():
            return {"tuple": [_told(each, sums) for each in value]}
        case Set():
            return {"frozenset": sorted((_told(each, sums) for each in value), key=json.dumps)}
        case Mapping():
            return {"mapping": [[_told(name, sums), _told(each, sums)] for name, each in value.items()]}
    if not attrs.has(kind) or "<" in kind.__qualname__:
        raise InvalidInput(f"{value!r:.200} cannot be kept: it is neither a plain value nor an attrs class of a module")
    told = {"class": _class_name(kind),
            "fields": {field.alias: _told(getattr(value, field.name), sums)
                       for field in attrs.fields(kind) if field.init}}
    if hasattr(value, "pieces") and isinstance(path := getattr(value, "path", None), str):
        told |= {"sha256": _sha256_of(path, sums)}
    return told


def _restored(told: Any, known: Mapping[str, type], sums: dict[str, str]) -> Any:
    match told:
        case list():
            return [_restored(each, known, sums) for each in told]
        case {"tuple": values}:
            return tuple(_restored(each, known, sums) for each in values)
        case {"frozenset": values}:
            return frozenset(_restored(each, known, sums) for each in values)
        case {"mapping": pairs}:
            return {_restored(name, known, sums): _restored(each, known, sums) for name, each in pairs}
        case {"enum": name, "name": member}:
            return _class(name, known)[member]
        case {"class": name, "fields": fields}:
            given = {alias: _restored(each, known, sums) for alias, each in fields.items()}
            try:
                value = _class(name, known)(**given)
            except TypeError as error:
                raise InvalidInput(f"the results name the class {name} with the fields {', '.join(given)}, which it "
                                   f"does not have here ({error}); read them with their own release") from error
            if "sha256" in told and os.path.exists(value.path) and (
                    found := _sha256_of(value.path, sums)) != told["sha256"]:
                raise CorruptData(path=value.path, offset=0, expected=f"the SHA-256 {told['sha256']} of the trace that "
                                  f"was replayed", found=found)
            return value
        case _:
            return told


def _class(name: str, known: Mapping[str, type]) -> Any:
    if name in known:
        return known[name]
    module, _, qualified = name.partition(":")
    found: Any = None
    if module.startswith("compactlib."):
        # A module that another release has leaves nothing found.
        with contextlib.suppress(ModuleNotFoundError):
            found = importlib.import_module(module)
        for part in qualified.split("."):
            found = getattr(found, part, None)
    if not (isinstance(found, type) and (attrs.has(found) or issubclass(found, enum.Enum))):
        raise InvalidInput(f"the results name the class {name}; give it in `classes`")
    return found


def _sha256_of(path: str, sums: dict[str, str]) -> str:
    """That of a trace, which is read once, however many experiments replay it."""
    if path not in sums:
        sums[path] = _sha256(path)
    return sums[path]


def _sha256(path: str) -> str:
    """Of a file its own; of a folder that of the names and SHA-256 of the files in it, in their order."""
    if os.path.isdir(path):
        files = sorted(entry.name for entry in os.scandir(path) if entry.is_file())
        told = [f"{name} {_sha256(os.path.join(path, name))}\n" for name in files]
        return hashlib.sha256("".join(told).encode(errors="surrogateescape")).hexdigest()
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
