# SPDX-License-Identifier: Apache-2.0
"""The atomic step of a compaction, and the recovery that finishes or undoes it."""
