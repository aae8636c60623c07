"""What the stores are made of: checks of arguments, pages of entries, connections, group commit."""
