# SPDX-License-Identifier: Apache-2.0
"""Policies of the blob store, replayed in memory."""
