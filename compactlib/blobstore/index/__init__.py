# SPDX-License-Identifier: Apache-2.0
"""The index from blob ids to records in the log: its entries, sealed index segments, and their files."""
