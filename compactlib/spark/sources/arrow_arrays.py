# SPDX-License-Identifier: Apache-2.0
"""Arrow's types for Spark's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

_TYPES: Final[dict[str, pa.DataType]] = {
    "bigint": pa.int64(), "int": pa.int32(), "boolean": pa.bool_(), "binary": pa.binary(), "string": pa.string(),
}


def schema_of(columns: Iterable[tuple[str, str]]) -> pa.Schema:
    """The Arrow schema of columns that are given by names and Spark SQL types."""
    return pa.schema([pa.field(name, _TYPES[kind]) for name, kind in columns])
