# SPDX-License-Identifier: Apache-2.0
"""The durable log of a compaction: what is going on, how far it is, what was finished."""
