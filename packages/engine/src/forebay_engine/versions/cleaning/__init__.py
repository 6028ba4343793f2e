"""Delete what nobody can open any more, and probe a storage."""
