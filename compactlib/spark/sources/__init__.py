# SPDX-License-Identifier: Apache-2.0
"""The Spark data sources: logs, blob stores and branches as tables."""
