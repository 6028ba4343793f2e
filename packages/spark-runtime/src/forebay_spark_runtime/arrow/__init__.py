"""Between Arrow and Python: rows in, rows out, types and time zones.

Both operators come here, the keyed one and the ordered wait. Nothing in this room knows state.
"""
