"""DynamoDB as a key-value store."""
