"""What a host opens: a repository, its verification, and its background worker."""
