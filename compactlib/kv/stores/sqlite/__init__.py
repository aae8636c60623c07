# SPDX-License-Identifier: Apache-2.0
"""SQLite as a key-value store."""
