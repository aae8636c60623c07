# SPDX-License-Identifier: Apache-2.0
"""How rows become bytes: ranges in Parquet or plainly, metaranges, and where a range is split."""
