# SPDX-License-Identifier: Apache-2.0
"""The rows of a rewrite job: tasks on the way in, outcomes on the way back.

`mapInArrow` binds columns by position and ignores names, so every batch is built here, from one list of columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    import pyarrow as pa

PLAN_COLUMNS: tuple[tuple[str, str], ...] = (("number", "bigint"), ("name", "string"), ("task", "binary"))
"""Names and Spark SQL types of the rows that go in."""

RESULT_COLUMNS: tuple[tuple[str, str], ...] = (
    ("number", "bigint"),
    ("name", "string"),
    ("attempt", "string"),
    ("bytes_read", "bigint"),
    ("bytes_written", "bigint"),
    ("seconds", "double"),
    ("report", "binary"),
)
"""Names and Spark SQL types of the rows that come back."""

RESULT_DDL = ", ".join(f"{name} {kind}" for name, kind in RESULT_COLUMNS)
"""`RESULT_COLUMNS` as a Spark schema."""


@attrs.frozen
class PlanRow:
    """One task to run.

    Attributes:
        number: its place in the job; results are matched by it.
        name: the task's name, for those who look at the job.
        task: the pickled task.
    """

    number: int
    name: str
    task: bytes


@attrs.frozen
class ResultRow:
    """How one attempt ended. All but `number` and `report` is for those who look at the job.

    Attributes:
        number: the task's place in the job.
        name: the task's name.
        attempt: the attempt's id.
        bytes_read: bytes read from the sources; `None` for a failure.
        bytes_written: bytes written, also by a failed attempt.
        seconds: how long the attempt took.
        report: the pickled `compactlib.spark.executors.worker.Report`.
    """

    number: int
    name: str
    attempt: str
    bytes_read: int | None
    bytes_written: int
    seconds: float
    report: bytes


def plan_table(rows: Sequence[PlanRow]) -> pa.Table:
    """The tasks of one job as an Arrow table."""
    import pyarrow as pa

    schema = _schema(PLAN_COLUMNS)
    columns = [pa.array([getattr(row, name) for row in rows], field.type)
               for (name, _), field in zip(PLAN_COLUMNS, schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def result_batch(row: ResultRow) -> pa.RecordBatch:
    """One attempt's row as an Arrow batch."""
    import pyarrow as pa

    schema = _schema(RESULT_COLUMNS)
    columns = [pa.array([getattr(row, name)], field.type)
               for (name, _), field in zip(RESULT_COLUMNS, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def plan_rows(batch: pa.RecordBatch) -> list[PlanRow]:
    """The tasks in a batch that Spark hands to a worker."""
    columns = [batch.column(batch.schema.get_field_index(name)).to_pylist() for name, _ in PLAN_COLUMNS]
    return [PlanRow(*values) for values in zip(*columns, strict=True)]


def printable(name: str) -> str:
    """`name` with what UTF-8 cannot hold (file names that were not valid) written as escapes."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def _schema(columns: Sequence[tuple[str, str]]) -> pa.Schema:
    import pyarrow as pa

    types: dict[str, pa.DataType] = {
        "bigint": pa.int64(), "string": pa.string(), "double": pa.float64(), "binary": pa.binary(),
    }
    return pa.schema([pa.field(name, types[kind]) for name, kind in columns])
