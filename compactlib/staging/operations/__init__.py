# SPDX-License-Identifier: Apache-2.0
"""What can be done on a branch: read, write, list, commit, reset, merge."""
