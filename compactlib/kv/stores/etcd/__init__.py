"""etcd as a key-value store."""
