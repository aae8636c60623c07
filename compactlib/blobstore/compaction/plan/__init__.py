"""What is compacted: pure functions of a view and a policy."""
