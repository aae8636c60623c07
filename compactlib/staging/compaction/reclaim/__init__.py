"""What no token and no branch can reach, and its removal."""
