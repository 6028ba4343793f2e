"""Calls of the world: clients of a worker process, limits, retries, time limits and counts.

The ordered wait and keyed functions share them.
"""
