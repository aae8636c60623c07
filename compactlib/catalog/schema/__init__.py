# SPDX-License-Identifier: Apache-2.0
"""Versions of a schema: descriptors, the commands that change them, and the history of all."""
