# SPDX-License-Identifier: Apache-2.0
"""The Spark data sources: logs and blob stores as tables."""
