"""The Spark data source `compactlib.staging`; registered by `compactlib.spark.register`."""

from __future__ import annotations

from typing import ClassVar

from compactlib.spark.sources.planned_reader import PlannedSource, SourceSteps
from compactlib.spark.sources.staging.options import StagingSourceOptions
from compactlib.spark.sources.staging.rows import plan_slices, read_slice


class StagingSource(PlannedSource):
    """A branch's records as rows, partitioned by ranges; see `compactlib.spark.register` for columns and options."""

    format_name: ClassVar[str] = "compactlib.staging"
    steps: ClassVar[SourceSteps] = SourceSteps(StagingSourceOptions.parse, plan_slices, read_slice)
