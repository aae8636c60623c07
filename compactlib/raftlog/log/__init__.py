# SPDX-License-Identifier: Apache-2.0
"""A single log without a shared write-ahead log: `SegmentLog` (the writer), `LogReader`, and their parts."""
