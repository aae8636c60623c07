"""The Spark data source `compactlib.raftlog`; registered by `compactlib.spark.register`."""

from __future__ import annotations

from typing import ClassVar

from compactlib.spark.sources.planned_reader import PlannedSource, SourceSteps
from compactlib.spark.sources.raftlog.rows import SourceOptions, plan_slices, read_slice


class RaftLogSource(PlannedSource):
    """A log's entries as rows, partitioned by segments; see `compactlib.spark.register` for columns and options."""

    format_name: ClassVar[str] = "compactlib.raftlog"
    steps: ClassVar[SourceSteps] = SourceSteps(SourceOptions.parse, plan_slices, read_slice)
