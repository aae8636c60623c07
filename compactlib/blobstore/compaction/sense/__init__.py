# SPDX-License-Identifier: Apache-2.0
"""Statistics of the live bytes in each segment, for policies: kept up to date, and checked against the index."""
