# SPDX-License-Identifier: Apache-2.0
"""Policies and triggers of the Raft log, replayed in memory."""
