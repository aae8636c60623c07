# SPDX-License-Identifier: Apache-2.0
"""The memtable: appended entries that are not yet in a segment, their replay from the WAL, their flush to segments."""
