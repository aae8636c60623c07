# SPDX-License-Identifier: Apache-2.0
"""Fencing: a commit with an older token, of a worker that has lost its lease, is refused where the data lies."""
