# SPDX-License-Identifier: Apache-2.0
"""The write-ahead log (WAL) of a store, with the queued writes of all its logs."""
