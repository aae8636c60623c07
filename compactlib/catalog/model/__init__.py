# SPDX-License-Identifier: Apache-2.0
"""The values of the catalog: timestamps, partitions, needs and reports."""
