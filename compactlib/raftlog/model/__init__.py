# SPDX-License-Identifier: Apache-2.0
"""The values of a log: entries, references, names of files, the row of a log, snapshot states, statuses."""
