# SPDX-License-Identifier: Apache-2.0
"""Range formats keep what all of them promise: the plain one, and Parquet."""

from __future__ import annotations

from compactlib.staging import ParquetFormat, PlainFormat
from compactlib.testing import RangeFormatConformance


class TestPlainFormat(RangeFormatConformance):
    def make_format(self) -> PlainFormat:
        return PlainFormat()


class TestParquetFormat(RangeFormatConformance):
    def make_format(self) -> ParquetFormat:
        return ParquetFormat(rows_per_group=7)
