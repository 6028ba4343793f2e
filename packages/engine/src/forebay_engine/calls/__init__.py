"""Calls of external services: clients of a worker process, limits, retries, timeouts, counts.

The ordered wait and keyed functions share them.
"""
