# SPDX-License-Identifier: Apache-2.0
"""Traces in Parquet, in the schema of `compactlib.lab.trace`. Needs the extra `lab` or `staging` (pyarrow)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import attrs

from compactlib.errors import CorruptData, MissingDependency
from compactlib.lab.trace import COLUMNS, REQUIRED, OwnTrace
from compactlib.lab.workloads import PIECE

try:
    import pyarrow
    import pyarrow.parquet as parquet
except ImportError:
    raise MissingDependency(package="pyarrow", extra="lab", purpose="reading a trace in Parquet") from None


@attrs.frozen
class ParquetTrace(OwnTrace):
    """A trace in Parquet: the columns of a CSV trace, numbers as numbers, nothing as null. Memory: a batch of rows.

    Attributes:
        path: of the file.
        tick_seconds: how coarse its times are, see `traces`.

    Raises:
        InvalidInput: that is no time.
    """

    name: ClassVar[str] = "parquet_trace"

    def _rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        try:
            with parquet.ParquetFile(self.path) as file:
                names = file.schema_arrow.names
                missing = [name for name in REQUIRED if name not in names]
                if missing:
                    raise CorruptData(path=self.path, offset=0, expected=f"the columns {', '.join(REQUIRED)}",
                                      found=f"the columns {', '.join(names)}")
                wanted = [name for name in COLUMNS if name in names]
                batches = file.iter_batches(batch_size=PIECE, columns=wanted)
                yield from enumerate((row for batch in batches for row in batch.to_pylist()), 1)
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise CorruptData(path=self.path, offset=0, expected="a Parquet file", found=str(error)[:200]) from error
