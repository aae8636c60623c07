# SPDX-License-Identifier: Apache-2.0
"""When a compaction is due: statistics of segments, triggers, and the cadence of majors."""
