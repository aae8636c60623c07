# SPDX-License-Identifier: Apache-2.0
"""The formats that the tests of ranges run on."""

from __future__ import annotations

import importlib.util

from compactlib.staging import PlainFormat
from compactlib.staging.ranges.rows import RangeFormat

FORMATS: list[RangeFormat] = [PlainFormat()]
if importlib.util.find_spec("pyarrow"):
    from compactlib.staging import ParquetFormat

    FORMATS.append(ParquetFormat(rows_per_group=4))
