"""What a host calls: the scheduler of one replica, and one that is kept in a key-value store."""
