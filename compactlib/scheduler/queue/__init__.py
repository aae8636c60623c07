# SPDX-License-Identifier: Apache-2.0
"""Blocks and jobs that wait, tombstones, the index of metadata, and the state that holds them all."""
