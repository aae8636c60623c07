"""The Spark data source `compactlib.blobstore`; registered by `compactlib.spark.register`."""

from __future__ import annotations

from typing import ClassVar

from compactlib.spark.sources.blobstore.rows import BlobOptions, plan_slices, read_slice
from compactlib.spark.sources.planned_reader import PlannedSource, SourceSteps


class BlobStoreSource(PlannedSource):
    """A store's records as rows, partitioned by segments; see `compactlib.spark.register` for columns and options."""

    format_name: ClassVar[str] = "compactlib.blobstore"
    steps: ClassVar[SourceSteps] = SourceSteps(BlobOptions.parse, plan_slices, read_slice)
