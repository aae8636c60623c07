# SPDX-License-Identifier: Apache-2.0
"""The write-ahead log that all logs of a store share: one file at a time, one fsync for what many threads append."""
