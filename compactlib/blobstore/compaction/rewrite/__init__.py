# SPDX-License-Identifier: Apache-2.0
"""The heavy step: a cycle's records, copied into private files by a picklable task."""
