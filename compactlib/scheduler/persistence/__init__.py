"""How updates and state are stored."""
