# SPDX-License-Identifier: Apache-2.0
"""Ranges as objects: writing, reading, caching, verifying and collecting them."""
