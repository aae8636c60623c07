"""The Spark data sources: logs, blob stores and branches as tables."""
