# SPDX-License-Identifier: Apache-2.0
"""The values of a blob store: ids, entries, names of segments, the pace of a compaction."""
