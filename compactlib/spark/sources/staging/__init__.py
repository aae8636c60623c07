# SPDX-License-Identifier: Apache-2.0
"""A branch of the staging area as a table."""
