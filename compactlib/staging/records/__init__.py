"""What the key-value store holds: branches, commits, tokens, staged entries."""
