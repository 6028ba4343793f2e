"""Services and threads that live as long as a Python worker process, and its tasks' identity.

The tasks of both operators use them; what one task leaves here, the next one finds.
"""
