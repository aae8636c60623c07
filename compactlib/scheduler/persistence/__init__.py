# SPDX-License-Identifier: Apache-2.0
"""The stored form of updates and state: codecs, rows of a snapshot, settings."""
