# SPDX-License-Identifier: Apache-2.0
"""Traces in Parquet, in the schema of `compactlib.lab.traces.traces`. Needs the extra `lab` or `staging` (pyarrow)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import attrs

from compactlib.errors import CorruptData, MissingDependency
from compactlib.lab.traces.operations import Operations
from compactlib.lab.traces.traces import COLUMNS, REQUIRED, path_text, pieces_of, tick_field
from compactlib.lab.traces.workloads import PIECE

try:
    import pyarrow
    import pyarrow.parquet as parquet
except ImportError:
    raise MissingDependency(package="pyarrow", extra="lab", purpose="reading a trace in Parquet") from None


@attrs.frozen
class ParquetTrace:
    """A trace in Parquet: the columns of a CSV trace, numbers as numbers, nothing as null.

    Attributes:
        path: of the file.
        tick_seconds: how coarse its times are, see `traces`.

    Raises:
        InvalidInput: that is no time.
    """

    path: str = attrs.field(converter=path_text)
    tick_seconds: float = tick_field()

    name: ClassVar[str] = "parquet_trace"
    operations: ClassVar[int] = 0

    def pieces(self, seed: int) -> Iterator[Operations]:
        """See `Workload.pieces`; the seed changes nothing. Memory: the keys, and one batch of rows.

        Raises:
            CorruptData: the file is no Parquet file, lacks a column, or holds a row that is not in the schema; the
                row's number, counted from 1, is the index.
        """
        yield from pieces_of(self._rows(), self.path, self.tick_seconds, first=1)

    def _rows(self) -> Iterator[dict[str, Any]]:
        try:
            with parquet.ParquetFile(self.path) as file:
                names = file.schema_arrow.names
                missing = [name for name in REQUIRED if name not in names]
                if missing:
                    raise CorruptData(path=self.path, offset=0, expected=f"the columns {', '.join(REQUIRED)}",
                                      found=f"the columns {', '.join(names)}")
                wanted = [name for name in COLUMNS if name in names]
                for batch in file.iter_batches(batch_size=PIECE, columns=wanted):
                    yield from batch.to_pylist()
        except pyarrow.ArrowException as error:
            raise CorruptData(path=self.path, offset=0, expected="a Parquet file", found=str(error)[:200]) from error

    def __str__(self) -> str:
        return f"{self.name}({self.path})"
