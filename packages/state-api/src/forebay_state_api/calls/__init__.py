"""Clients of a worker process, for functions that call the world."""
