# SPDX-License-Identifier: Apache-2.0
"""The values of the staging area: records, changes, names, options, checks of arguments."""
