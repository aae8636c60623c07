# SPDX-License-Identifier: Apache-2.0
"""A blob store as a table."""
