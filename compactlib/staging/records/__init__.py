# SPDX-License-Identifier: Apache-2.0
"""What the key-value store holds: branches, commits, tokens, staged entries."""
