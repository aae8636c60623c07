# SPDX-License-Identifier: Apache-2.0
"""Crash tests: every prefix of the writes, every allowed loss of writes that were not synced, and kills."""
