"""Conversion between Arrow and Python: rows in, rows out, types and time zones.

Both operators use it, the keyed one and the ordered wait. Nothing here depends on state.
"""
