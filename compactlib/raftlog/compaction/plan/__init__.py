"""What is compacted: pure functions of a view, a policy and limits."""
