# SPDX-License-Identifier: Apache-2.0
"""The log of a store as it is open: its segments and their index, loading them, appending to them."""
