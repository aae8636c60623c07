# SPDX-License-Identifier: Apache-2.0
"""What a host calls: the catalog of one node, its compaction, and a thread that follows the log."""
